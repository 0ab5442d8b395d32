"""Name a worker."""

from __future__ import annotations

import re
from typing import Any

from resilin.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_:-]+")
_MOST_CHARS = 128
_MOST_ID = 1 << 16


def check_name(name: Any) -> str:
    """Return `name`. UsageError unless a worker may have it."""
    if not isinstance(name, str):
        raise UsageError(f"worker name: expected text, got {name!r:.80}")
    if not name:
        raise UsageError("Worker name must be non-empty.")
    if len(name) >= _MOST_CHARS:
        raise UsageError(f"Worker name must be shorter than {_MOST_CHARS} chars, got {len(name)}: {name:.40}...")
    if not _NAME.fullmatch(name):
        raise UsageError(f"Worker name must match ^[A-Za-z0-9-_:]*$, got {name!r:.80}.")
    return name


class WorkerInfo:
    """A worker's name and id. Equal where both are; may be sent, and be a key."""

    __slots__ = ("id", "name")
    id: int
    name: str

    def __init__(self, name: str, id: int) -> None:
        if type(id) is not int or not 0 <= id < _MOST_ID:
            raise UsageError(f"worker id: expected an integer in 0..{_MOST_ID - 1}, got {id!r:.80}")
        object.__setattr__(self, "name", check_name(name))
        object.__setattr__(self, "id", id)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"WorkerInfo.{name} cannot be changed")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerInfo) and self.id == other.id and self.name == other.name

    def __hash__(self) -> int:
        return hash((self.name, self.id))

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, name={self.name})"

    def __reduce__(self) -> Any:
        return WorkerInfo, (self.name, self.id)
