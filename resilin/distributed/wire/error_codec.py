"""Carry errors from one rank to another, and copy them. Nothing that arrives is unpickled or imported.

An exception travels as the name of its class, its words and a few plain values. The class of Python's own and of
resilin's exceptions is found by its name in a fixed table; any other one becomes RemoteError. What ends a program, as
KeyboardInterrupt does, is raised on no other rank: its peers have GroupAborted.
"""

from __future__ import annotations

import builtins
import json
import re
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import resilin.errors as errors
from resilin._base import json_text
from resilin._base.text import visible_lines
from resilin.errors import (
    CollectiveTimeout,
    DistError,
    ElasticError,
    GroupAborted,
    PeerLost,
    RemoteError,
)

_ABORTED = re.compile(r"rank -?\d+ aborted the group: ")
_WHERE = re.compile(r"\((?:on|seen by) rank \d+\)$")
_TEXT_CHARS, _TRACE_CHARS = 4000, 8000  # of an error's words and of its traceback
_MOST_BYTES = 60_000  # of an error on its way: a control frame holds it
_CONTROL_FLOW = ("StopIteration", "StopAsyncIteration", "ExceptionGroup")  # mean something else where they arrive

KINDS: dict[str, type[Exception]] = {
    name: kind
    for module in (builtins, errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and name not in _CONTROL_FLOW
}
"""The classes that can arrive, by name."""


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"expected texts, got {value!r:.80}")
    return tuple(value)


def _ranks(value: Any) -> frozenset[int]:
    return frozenset(_number(each) for each in value)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"expected a whole number, got {value!r:.80}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"expected a text, got {value!r:.80}")
    return value


_DATA = {
    **dict.fromkeys(("path", "refused"), _text),
    **dict.fromkeys(("errno", "revision", "generation"), _number),
    **dict.fromkeys(("missing", "unexpected", "different"), _texts),
    **dict.fromkeys(("ranks", "world_ranks"), _ranks),
}
"""The attributes of errors that travel, and what makes each of them of JSON."""


def in_world(ranks: Iterable[int], members: Sequence[int]) -> frozenset[int]:
    """`ranks` of a group as ranks in the world; what a peer made up is left out."""
    return frozenset(members[rank] for rank in ranks if 0 <= rank < len(members))


def copy_error(error: BaseException) -> BaseException:
    """A fresh exception of the same type and data, without traceback; works for any constructor's signature."""
    clone = type(error).__new__(type(error), *error.args)
    clone.args = error.args
    clone.__dict__.update(error.__dict__)
    return clone


def prefixed(error: BaseException, what: str) -> BaseException:
    """A copy of `error` whose message begins with what was under way."""
    return worded(error, f"{what}: {error}")


def worded(error: BaseException, message: str) -> BaseException:
    """A copy of `error` with another message."""
    clone = copy_error(error)
    clone.args = (message, *error.args[1:])
    return clone


def words_of(error: BaseException) -> str:
    """What `error` says, with its notes, which say where it was raised."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])[:_TEXT_CHARS]


# --- an error as plain values ---


def described(error: BaseException) -> dict[str, Any]:
    """`error` as JSON values."""
    kind = kind_of(error)
    found: dict[str, Any] = {"kind": kind, "text": words_of(error)}
    if not isinstance(error, Exception):
        found["ends"] = True
    elif kind not in KINDS:
        found["trace"] = "".join(traceback.format_exception(error))[-_TRACE_CHARS:]
    data = {name: getattr(error, name) for name in _DATA if getattr(error, name, None) is not None}
    if data and kind in KINDS:
        found["data"] = {
            name: sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value
            for name, value in data.items()
        }
    return found


def said(reason: Mapping[str, Any]) -> str:
    """The words of what was `described`, with the name of a class that the one who reads it does not see otherwise."""
    kind, text = _text(reason["kind"]), _text(reason["text"])
    return text if text and kind in KINDS else f"{kind}: {text}" if text else kind


def encoded(reason: dict[str, Any]) -> str:
    """JSON of what was `described`, in ASCII; without the attributes, and then the traceback, that have no room."""
    for spare in ("data", "trace", ""):
        text = json.dumps(reason)
        if len(text) <= _MOST_BYTES:
            break
        reason = {name: value for name, value in reason.items() if name != spare}
    return text


def kind_of(error: BaseException) -> str:
    """The name by which the class of `error` is known to other ranks: resilin's inner classes by that of their base."""
    kind: type = getattr(type(error), "of_kind", type(error))
    if kind.__module__.partition(".")[0] == "resilin":
        kind = next((base for base in kind.__mro__ if base.__module__ == errors.__name__), kind)
    known = kind.__module__ in ("builtins", errors.__name__)
    return kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"[:200]


def rebuilt(reason: Mapping[str, Any], rank: int, message: str) -> Exception:
    """The error of `rank` that was `described`, of its class, with `message` for its words. ValueError for no reason.

    GroupAborted for what ended that rank's program. Its words are shown in tracebacks: nothing in them is a command to
    a terminal.
    """
    message = visible_lines(message)
    if reason.get("ends"):
        return GroupAborted(message)
    name = _text(reason["kind"])
    if name not in KINDS:
        error = RemoteError(message, rank, name, visible_lines(_text(reason.get("trace", ""))))
        if error.remote_traceback:
            error.add_note(f"On rank {rank}: {error.remote_traceback}")
        return error
    data = {name: _DATA[name](value) for name, value in dict(reason.get("data", {})).items() if name in _DATA}
    return _made(KINDS[name], message, data)


def _made(kind: type[Exception], message: str, data: Mapping[str, Any]) -> Exception:
    if kind.__module__ == errors.__name__ or issubclass(kind, GroupAborted):
        try:
            return kind(message, **data)
        except TypeError:  # another version's values
            pass
    for base in kind.__mro__:  # as UnicodeDecodeError, which is not made of a text
        if issubclass(base, Exception):
            try:
                made: Exception = base(message)
            except TypeError:
                continue
            if isinstance(made, OSError) and isinstance(data.get("errno"), int):
                made.errno = data["errno"]
            return made
    raise AssertionError(f"{kind} is no Exception")


# --- whether all ranks have an error already ---


class _Depth(threading.local):
    depth = 0  # of this thread: blocks around others that tell


_here = _Depth()


class telling_once:
    """Around a block in which ranks tell one another of errors, and which tells of its own: each is told once."""

    __slots__ = ()

    def __enter__(self) -> None:
        _here.depth += 1

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _here.depth -= 1
        if error is not None and not _here.depth:  # a program may raise the same one again
            error.__dict__.pop("_shared_by", None)


def mark_shared(error: BaseException, group: int, arrived: bool = False) -> None:
    """All ranks of `group` have heard of `error`, each by an error of its own: blocks around need not tell it again.

    arrived: it is another rank's, made for this one.
    """
    if arrived or _here.depth:
        error.__dict__["_shared_by"] = (*getattr(error, "_shared_by", ()), group)


def is_shared(error: BaseException, group: int) -> bool:
    """Whether all ranks of `group` have `error` without being told: the group's own, the world's end, or told so."""
    if isinstance(error, DistError | ElasticError):
        return True
    return bool(_here.depth) and group in getattr(error, "_shared_by", ())


# --- why a group ended ---


_MADE: dict[type, type[GroupAborted]] = {}


def aborted_by(kind: type[Exception]) -> type[GroupAborted]:
    """The class of what peers raise when an error of `kind` ended the group: GroupAborted, and a `kind`.

    DistErrors and ElasticErrors are the group's own ends: of these it is GroupAborted alone.
    """
    if issubclass(kind, DistError | ElasticError):
        return GroupAborted
    if kind in _MADE:
        return _MADE[kind]
    members: dict[str, Any] = {
        "__module__": errors.__name__,
        "__doc__": f"Another rank's {kind.__name__} ended the group.",
        "__str__": Exception.__str__,  # KeyError's shows the message in quotes
        "__reduce__": lambda self: (_remade, (kind, self.args, self.__dict__)),
        "of_kind": kind,
    }
    if issubclass(kind, OSError):  # by lookup it would be RuntimeError's, which cannot make an OSError
        members["__new__"] = lambda cls, *args, **named: OSError.__new__(cls, *args[:1])
    return _MADE.setdefault(kind, type(f"GroupAborted[{kind.__name__}]", (GroupAborted, kind), members))


def _remade(kind: type[Exception], args: tuple[Any, ...], data: Mapping[str, Any]) -> GroupAborted:
    made = aborted_by(kind).__new__(aborted_by(kind), *args)
    made.args = args
    made.__dict__.update(data)
    return made


def abort_reason(error: BaseException, rank: int, where: str) -> GroupAborted:
    """What the calls of a group raise, on all its ranks, that `rank` ended because of `error` in what `where` says."""
    return _aborted(described(error), rank, ": ".join(filter(None, (where, words_of(error)))))


def _aborted(reason: Mapping[str, Any], rank: int, said: str) -> GroupAborted:
    """GroupAborted that names `rank` and the class of its error, and is of that class, too."""
    name = _text(reason["kind"])
    message = visible_lines(said if _ABORTED.match(said) else f"rank {rank} aborted the group: {name}: {said}")
    if reason.get("ends"):
        return GroupAborted(message)
    error = rebuilt(reason, rank, message)
    kind = aborted_by(type(error))
    made = kind.__new__(kind, message)
    made.args = (message,)
    made.__dict__.update(error.__dict__)
    return made


def encode_reason(error: BaseException, rank: int) -> str:
    """JSON of why `rank` aborts, for an ABORT frame."""
    ranks = sorted(error.ranks) if isinstance(error, PeerLost | CollectiveTimeout) else [rank]
    return encoded({**described(error), "ranks": ranks})


def _seen(said: str, where: str) -> str:
    """`said` with where it was seen, unless a rank that passed it on has said that."""
    return said if _WHERE.search(said) else f"{said} ({where})"


def decode_reason(text: str, rank: int) -> BaseException:
    """The error that `rank` sent as `text`; GroupAborted for what is no reason of this library."""
    try:
        reason = json_text.parse(text, finite=True)
        kind, ranks, said = str(reason["kind"]), [int(r) for r in reason["ranks"]], str(reason["text"])
        if kind == "PeerLost":
            return PeerLost(_seen(said, f"seen by rank {rank}"), ranks)
        if kind == "CollectiveTimeout" and ranks:  # else that rank gave up without knowing whom it waited for
            return CollectiveTimeout(_seen(said, f"on rank {rank}"), ranks)
        return _aborted(reason, rank, said)
    except (ValueError, KeyError, TypeError, AttributeError):
        return GroupAborted(f"rank {rank} aborted the group: {text}")
