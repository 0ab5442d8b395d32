"""The switches of torch.backends.cudnn. They keep what they are given, and nothing depends on them.

cuDNN is not used: there is nothing to `benchmark`, and what `deterministic` asks for holds without it, on every device
(docs/determinism.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    enabled = enabled if _enabled is None else _enabled
    benchmark = benchmark if _benchmark is None else _benchmark
    benchmark_limit = benchmark_limit if _benchmark_limit is None else _benchmark_limit
    deterministic = deterministic if _deterministic is None else _deterministic
    allow_tf32 = allow_tf32 if _allow_tf32 is None else _allow_tf32
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
