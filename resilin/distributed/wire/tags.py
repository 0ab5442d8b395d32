"""Name tags of messages: those of users are not negative; the library's own have names, which errors say."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

from resilin.errors import UsageError

BARRIER, OBJECTS, SETUP = -1, -2, -1000
_NAMES = {BARRIER: "for monitored_barrier", OBJECTS: "of objects", SETUP: "for the start of a backend"}
_ranges: dict[range, Callable[[int], str]] = {}
_LIMIT = 1 << 31  # a frame has 32 bits, with a sign, for it


def checked(tag: Any, function: str) -> int:
    """A tag of the user's. UsageError for others."""
    if isinstance(tag, Integral) and 0 <= (number := int(tag)) < _LIMIT:
        return number
    raise UsageError(f"{function}: tag: expected an integer from 0 to {_LIMIT - 1}, got {tag!r}")


def name(tags: range, words: Callable[[int], str]) -> None:
    """Have `words(tag)` say what messages with these tags are, as in "recv from rank 1 of objects"."""
    _ranges[tags] = words


def spoken(tag: int) -> str:
    """Say in words what a message with `tag` is."""
    if tag < 0:
        for tags, words in _ranges.items():
            if tag in tags:
                return words(tag)
    return _NAMES.get(tag) or f"with tag {tag}"
