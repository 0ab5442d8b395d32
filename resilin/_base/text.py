"""Texts of others, for a terminal."""

from __future__ import annotations


def visible(text: str) -> str:
    """`text` in which what a terminal would obey (colours, bells) or no file takes is written out: "\\x1b[31m"."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
