"""Texts of others, for a terminal: what it would obey is written out, so that it shows them and does nothing else."""

from __future__ import annotations

import reprlib
from typing import Any


def visible(text: str) -> str:
    """`text` as one line, in which what a terminal would obey or no file takes is written out: "\\x1b[31m", "\\n".

    That is all of which Unicode says that nothing is to be seen, but for the space: C0 and C1 codes (escapes, bells,
    returns), marks that change the direction of a text or have no width, lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible_lines(text: str) -> str:
    """`text` as `visible` has it, line by line: its line feeds and tabs stay. A carriage return before one goes."""
    if text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in lines)


def indented(text: str) -> str:
    """`text` as `visible_lines` has it, with all lines but the first indented: none looks like another message."""
    return visible_lines(text).replace("\n", "\n  ")


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
