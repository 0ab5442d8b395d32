"""Logging habits: constant messages with values as fields, one stamp for node, rank and generation.

Libraries get a logger here and never configure handlers; the launcher calls `configure` once. In programs that
configure no logging, warnings go to standard error as Python's last resort would write them, but with their fields.
A record that cannot be written is left out: no handler, ours or the program's, ends or holds up who logs (`event`).
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from typing import Any, TextIO

from resilin._base import standard_error
from resilin._base.clock import SYSTEM, Clock
from resilin._base.text import indented, visible

_STAMP: dict[str, Any] = {}  # node, rank, generation: who is speaking


def stamp(**fields: Any) -> None:
    """Set fields that every later record of this process carries, e.g. `stamp(rank=3, generation=7)`."""
    _STAMP.update(fields)


def logger(name: str) -> logging.Logger:
    """The logger for package `name`, e.g. `logger("elastic.agent")`."""
    return logging.getLogger(f"resilin.{name}")


def event(log: logging.Logger, level: int, message: str, **fields: Any) -> None:
    """Log a constant `message` with `fields`: `event(log, logging.INFO, "generation decided", number=7)`.

    Never raises. Of `exc_info`, an exception, the traceback is shown.
    """
    if log.isEnabledFor(level):
        try:
            log.log(level, message, exc_info=fields.pop("exc_info", None), extra={"fields": fields})
        except Exception as error:  # noqa: BLE001 - of a handler that the program has added; who logs goes on
            what = f"resilin: a logging handler failed: {type(error).__name__}: {error}; {message}"
            standard_error.write(indented(what))


class Ration:
    """Lets `most` lines pass within `within_s`: what strangers cause must not fill a disk. Thread-safe."""

    def __init__(self, most: int, within_s: float, clock: Clock = SYSTEM) -> None:
        self._most = most
        self._within_s = within_s
        self._clock = clock
        self._lock = threading.Lock()
        self._passed: list[float] = []  # guarded by _lock: when
        self._held = 0  # guarded by _lock

    def take(self) -> int | None:
        """May a line be written now? How many were held back since the last one, or None: this one is, too."""
        now = self._clock.monotonic()
        with self._lock:
            self._passed = [at for at in self._passed if at > now - self._within_s]
            if len(self._passed) >= self._most:
                self._held += 1
                return None
            self._passed.append(now)
            held, self._held = self._held, 0
            return held


class _Formatter(logging.Formatter):
    def __init__(self, as_json: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields = {**_STAMP, **getattr(record, "fields", {})}
        message = record.getMessage()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._json:
            fields |= {"traceback": trace} if trace else {}
            head = {"time": record.created, "level": record.levelname, "logger": record.name, "message": message}
            return json.dumps({**head, **fields}, default=str)
        tail = " ".join(f"{key}={value}" for key, value in fields.items())
        line = f"{self.formatTime(record, self.datefmt)} {record.levelname:<7} {message}"
        # fields are often others' texts: one record is one line, and a traceback's are indented
        return visible(f"{line}  {tail}" if tail else line) + (f"\n  {indented(trace)}" if trace else "")


class _Handler(logging.Handler):
    """Writes to `stream`; None: to what is standard error at that moment. Never raises."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        standard_error.write(self.format(record), self._stream)


class _LastResort(_Handler):
    """Writes where nobody else does. Python's own would leave out the fields, which say what the message is about."""

    def emit(self, record: logging.LogRecord) -> None:
        here: logging.Logger | None = logging.getLogger(record.name)
        while here is not None:
            if any(handler is not self for handler in here.handlers):
                return
            here = here.parent if here.propagate else None
        super().emit(record)


_last_resort = _LastResort()
_last_resort.setLevel(logging.WARNING)
_last_resort.setFormatter(_Formatter(as_json=False))
logging.getLogger("resilin").addHandler(_last_resort)


def configure(level: str = "WARNING", as_json: bool = False, stream: TextIO | None = None) -> None:
    """Send resilin's records to `stream` (standard error). Called by command lines only."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(_Formatter(as_json))
    root = logging.getLogger("resilin")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
