"""One setting: `fill_uninitialized_memory`, True unless it is assigned.

While `use_deterministic_algorithms(True)` is in force, what `empty` and its like give is filled (NaN, the largest
integer, True), so that a program that reads it by mistake does the same on each run.
"""

from __future__ import annotations

import sys
from types import ModuleType

from resilin.core.determinism import choice


class _Module(ModuleType):
    @property
    def fill_uninitialized_memory(self) -> bool:
        """Whether memory that nobody wrote is filled while deterministic algorithms are in force."""
        return choice.fill

    @fill_uninitialized_memory.setter
    def fill_uninitialized_memory(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise RuntimeError(f"fill_uninitialized_memory: expected a bool, but got {type(value)}")
        choice.fill = value


sys.modules[__name__].__class__ = _Module
