"""Texts of others, for a terminal."""

from __future__ import annotations

import reprlib
from typing import Any


def visible(text: str) -> str:
    """`text` in which what a terminal would obey (colours, bells) or no file takes is written out: "\\x1b[31m"."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: Any) -> str:
    """The start of `repr(value)` of plain values, which costs little, however large or deep what others sent is."""
    return _BRIEF.repr(value)


class _Brief(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 256 else f"<an integer of {x.bit_length()} bits>"

    def repr_instance(self, x: Any, level: int) -> str:
        return repr(x)[:80] if type(x) in (bool, float, complex, type(None)) else f"<{type(x).__name__}>"


_BRIEF = _Brief()
_BRIEF.maxlevel = 3
_BRIEF.maxstring = _BRIEF.maxother = 80
