"""Switches of PyTorch's that programs set at their start. Most change nothing in this library.

They check and keep what they are given, so that such programs run; each says why it has no effect.
"""

from __future__ import annotations

_kept: dict[str, int] = {"interop_threads": 1}


def get_num_interop_threads() -> int:
    """What `set_num_interop_threads` was given last; 1 at first."""
    return _kept["interop_threads"]


def set_num_interop_threads(n: int) -> None:
    """Say how many operations may run side by side. They run one after another here; `set_num_threads` sets theirs."""
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"set_num_interop_threads: expected an int, got {type(n).__name__}")
    if n < 1:
        raise RuntimeError(f"set_num_interop_threads: expected a positive number of threads, got {n}")
    _kept["interop_threads"] = n


def set_flush_denormal(mode: bool) -> bool:
    """False, as PyTorch gives where the processor cannot do it: numbers near 0 keep their value here."""
    return False
