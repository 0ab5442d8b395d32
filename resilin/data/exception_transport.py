"""Errors on their way from a worker process to its parent: kept as what they are, as far as pickling allows."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from resilin.data import messages
from resilin.errors import ResilinError


@dataclass(frozen=True)
class WorkerError:
    """An error of a worker: the exception, or the parts to make one of the same type, or None; and its traceback."""

    error: Exception | ExceptionParts | None
    text: str


@dataclass(frozen=True)
class ExceptionParts:
    """An exception whose class cannot be called with its `args`, as pickling does: many constructors take others."""

    kind: type[Exception]
    args: tuple[Any, ...]
    state: dict[str, Any]

    def made(self) -> Exception:
        """The exception, without a call of its constructor."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        error.__dict__.update(self.state)
        return error


def describe(error: Exception) -> WorkerError:
    """`error` in a form that can be pickled and unpickled."""
    text = "".join(traceback.format_exception(error))
    parts = ExceptionParts(type(error), error.args, dict(error.__dict__))
    if _arrives(error, type(error), lambda copy: copy):
        return WorkerError(error, text)
    if _arrives(parts, type(error), lambda copy: copy.made()):
        return WorkerError(parts, text)
    return WorkerError(None, text)


def _arrives(form: Any, kind: type[Exception], made: Callable[[Any], Any]) -> bool:
    try:
        return type(made(messages.check_picklable(form))) is kind
    except Exception:  # noqa: BLE001 - user-defined exceptions may fail to pickle in any way; another form is sent then
        return False


def restore(failure: WorkerError, number: int, pid: int) -> Exception:
    """The worker's error as an exception to raise here: its own type where possible, its traceback as a note."""
    where = f"in DataLoader worker {number} (pid {pid}):\n{failure.text.rstrip()}"
    if failure.error is None:
        return ResilinError(f"error {where}")
    error = failure.error.made() if isinstance(failure.error, ExceptionParts) else failure.error
    error.add_note(f"raised {where}")
    return error
