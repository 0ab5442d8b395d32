"""Say once in a process what a name of PyTorch does not do here. Thread-safe."""

from __future__ import annotations

import logging
import threading
from typing import Any

from resilin._base import log

_lock = threading.Lock()
_said: set[str] = set()  # guarded by _lock


def say_once(logger: logging.Logger, message: str, **fields: Any) -> None:
    """Log a constant `message` with `fields` as a warning, the first time only."""
    key = f"{logger.name}: {message} {sorted(fields.items())}"
    with _lock:
        if key in _said:
            return
        _said.add(key)
    log.event(logger, logging.WARNING, message, **fields)
