"""The switches of torch.backends.cudnn. They check and keep what they are given, and nothing depends on them.

cuDNN is not used: there is nothing to `benchmark`, and what `deterministic` asks for holds without it, on every device
(docs/determinism.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from resilin.core.argument_checks import flag

__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "flags", "is_available", "set_flags", "version"]

enabled = True
benchmark = False
deterministic = False
allow_tf32 = True
benchmark_limit: int | None = 10


def is_available() -> bool:
    """False: no operation goes through cuDNN."""
    return False


def version() -> int | None:
    """None, as without cuDNN."""
    return None


def set_flags(
    _enabled: bool | None = None,
    _benchmark: bool | None = None,
    _benchmark_limit: int | None = None,
    _deterministic: bool | None = None,
    _allow_tf32: bool | None = None,
) -> tuple[bool, bool, int | None, bool, bool]:
    """Set the switches that are not None, and return what all of them were."""
    global enabled, benchmark, benchmark_limit, deterministic, allow_tf32
    before = enabled, benchmark, benchmark_limit, deterministic, allow_tf32
    enabled = enabled if _enabled is None else flag("backends.cudnn.enabled", _enabled)
    benchmark = benchmark if _benchmark is None else flag("backends.cudnn.benchmark", _benchmark)
    benchmark_limit = benchmark_limit if _benchmark_limit is None else _benchmark_limit
    deterministic = deterministic if _deterministic is None else flag("backends.cudnn.deterministic", _deterministic)
    allow_tf32 = allow_tf32 if _allow_tf32 is None else flag("backends.cudnn.allow_tf32", _allow_tf32)
    return before


@contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
) -> Iterator[None]:
    """The switches within a `with` block."""
    before = set_flags(enabled, benchmark, benchmark_limit, deterministic, allow_tf32)
    try:
        yield
    finally:
        set_flags(*before)


class _Switches(ModuleType):
    """This module, whose flags are checked when they are set. UsageTypeError for what is no flag."""

    def __setattr__(self, name: str, value: Any) -> None:
        checked = name in ("enabled", "benchmark", "deterministic", "allow_tf32")
        super().__setattr__(name, flag(f"backends.cudnn.{name}", value) if checked else value)


sys.modules[__name__].__class__ = _Switches
