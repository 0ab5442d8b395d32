"""Tags of messages: those of users are not negative; the library's own have names, which errors say."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from resilin.errors import UsageError

BARRIER, OBJECTS, SETUP = -1, -2, -1000
_NAMES = {BARRIER: "for monitored_barrier", OBJECTS: "of objects", SETUP: "for the start of a backend"}
_LIMIT = 1 << 31  # a frame has 32 bits, with a sign, for it


def checked(tag: Any, function: str) -> int:
    """A tag of the user's. UsageError for others."""
    if isinstance(tag, Integral) and 0 <= (number := int(tag)) < _LIMIT:
        return number
    raise UsageError(f"{function}: tag: expected an integer from 0 to {_LIMIT - 1}, got {tag!r}")


def spoken(tag: int) -> str:
    """What a message with `tag` is, in words."""
    return _NAMES.get(tag) or f"with tag {tag}"
