"""Carry what a remote function raised to its caller: class, words, traceback and plain attributes."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from resilin.errors import RemoteError
from resilin.rpc.worker_info import WorkerInfo

Told = tuple[str, str, bytes | None, dict[str, Any]]
"""What `described` returns."""
_TRACE_CHARS = 16_000


def described(error: BaseException, me: WorkerInfo) -> Told:
    """Return what travels: the text, the name of the class, the class as a pickle, and attributes that can travel."""
    kind = type(error)
    trace = "".join(traceback.format_exception(error))[-_TRACE_CHARS:]
    text = f"On {me}:\n{kind.__name__}: {_words(error)}\n{trace}"
    try:
        named: bytes | None = pickle.dumps(kind)
    except Exception:  # noqa: BLE001 - whatever pickling a class of the user's raises: it is told by its name
        named = None
    return (
        text,
        f"{kind.__module__}.{kind.__qualname__}",
        named,
        _plain(vars(error) if hasattr(error, "__dict__") else {}),
    )


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - whatever a class of the user's raises: who waits is told all the same
        return f"<its str() raised {type(failed).__name__}>"


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    kinds = (int, float, str, bytes, bool, type(None))
    plain: dict[str, Any] = {name: value for name, value in attributes.items() if isinstance(value, kinds)}
    for name, value in attributes.items():
        if isinstance(value, frozenset | set | tuple | list) and all(isinstance(each, kinds) for each in value):
            plain[name] = value
    return {name: value for name, value in plain.items() if not name.startswith("__")}


def rebuilt(told: Told, source: int) -> BaseException:
    """Return the exception that was `described`, of its class; RemoteError where that is not here or cannot be made."""
    text, name, named, attributes = told
    try:
        kind = None if named is None else pickle.loads(named)
    except Exception:  # noqa: BLE001 - of modules that the callee alone has
        kind = None
    if not (isinstance(kind, type) and issubclass(kind, Exception)):  # an interruption there is none here
        return RemoteError(text, source, name, text)
    try:
        error = kind(text)
        if type(error) is not kind:
            raise TypeError(f"{name}(...) made a {type(error).__name__}")
    except Exception as failed:  # noqa: BLE001 - whatever the constructor of a user's class raises
        return RemoteError(
            f"Failed to create original exception type. Error msg was {failed} Original exception on remote side was "
            f"{text}",
            source,
            name,
            text,
        )
    if hasattr(error, "__dict__"):
        error.__dict__.update(attributes)
    return error
