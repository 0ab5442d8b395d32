"""Validation rules in CEL, run by a library that must be installed: pip install 'resilin[test]'."""

from __future__ import annotations

import functools
import re
from typing import Any, Protocol

import cel

_OLD = re.compile(r"\boldSelf\b")


class Rule(Protocol):
    """One rule, compiled."""

    compares: bool  # whether it looks at the object before
    text: str

    def problem(self, value: Any, old: Any) -> str | None:
        """None if the rule holds; "" if not; what went wrong if it could not be told."""
        ...


class _CelRule:
    def __init__(self, text: str) -> None:
        """ValueError: it is no CEL."""
        self.text = text
        self.compares = compares(text)
        self._program = cel.compile(text)

    def problem(self, value: Any, old: Any) -> str | None:
        try:
            holds = self._program.execute({"self": value, "oldSelf": old})
        except (ValueError, TypeError, RuntimeError, KeyError) as error:
            return f"rule {self.text.strip()!r} cannot be evaluated: {error}"
        return None if holds is True else ""


def compares(text: str) -> bool:
    """Whether a rule looks at the object before."""
    return _OLD.search(text) is not None


@functools.lru_cache(maxsize=1000)
def compiled(text: str) -> Rule:
    """A rule, compiled once per process."""
    return _CelRule(text)
