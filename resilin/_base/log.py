"""Logging habits: constant messages with values as fields, one stamp for node, rank and generation.

Libraries get a logger here and never configure handlers; the launcher calls `configure` once. In programs that
configure no logging, warnings go to standard error as Python's last resort would write them, but with their fields.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, TextIO

_STAMP: dict[str, Any] = {}  # node, rank, generation: who is speaking


def stamp(**fields: Any) -> None:
    """Set fields that every later record of this process carries, e.g. `stamp(rank=3, generation=7)`."""
    _STAMP.update(fields)


def logger(name: str) -> logging.Logger:
    """The logger for package `name`, e.g. `logger("elastic.agent")`."""
    return logging.getLogger(f"resilin.{name}")


def event(log: logging.Logger, level: int, message: str, **fields: Any) -> None:
    """Log a constant `message` with `fields`: `event(log, logging.INFO, "generation decided", number=7)`."""
    if log.isEnabledFor(level):
        log.log(level, message, extra={"fields": fields})


class _Formatter(logging.Formatter):
    def __init__(self, as_json: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields = {**_STAMP, **getattr(record, "fields", {})}
        message = record.getMessage()
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._json:
            head = {"time": record.created, "level": record.levelname, "logger": record.name, "message": message}
            return json.dumps({**head, **fields}, default=str)
        tail = " ".join(f"{key}={value}" for key, value in fields.items())
        line = f"{self.formatTime(record, self.datefmt)} {record.levelname:<7} {message}"
        return f"{line}  {tail}" if tail else line


class _LastResort(logging.Handler):
    """Writes where nobody else does. Python's own would leave out the fields, which say what the message is about."""

    def emit(self, record: logging.LogRecord) -> None:
        here: logging.Logger | None = logging.getLogger(record.name)
        while here is not None:
            if any(handler is not self for handler in here.handlers):
                return
            here = here.parent if here.propagate else None
        print(self.format(record), file=sys.stderr)


_last_resort = _LastResort(logging.WARNING)
_last_resort.setFormatter(_Formatter(as_json=False))
logging.getLogger("resilin").addHandler(_last_resort)


def configure(level: str = "WARNING", as_json: bool = False, stream: TextIO | None = None) -> None:
    """Send resilin's records to `stream` (standard error). Called by command lines only."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Formatter(as_json))
    root = logging.getLogger("resilin")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
