"""How many threads the CPU kernels and numpy's OpenBLAS use."""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from resilin._base import env
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

_set_pool = kernel("set_num_threads")
_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "_64", "")


def set_num_threads(n: int) -> None:
    """Use `n` threads in native kernels and in numpy's OpenBLAS. The results of native kernels do not depend on it."""
    if n < 1:
        raise UsageError(f"set_num_threads: expected at least 1, got {n}")
    _set_pool(n)
    setter = _openblas("set_num_threads")
    if setter is not None:
        setter(n)
    _chosen[0] = n


def get_num_threads() -> int:
    """The number of threads in use: RESILIN_NUM_THREADS, else OMP_NUM_THREADS, else the CPUs this process may use."""
    return _chosen[0]


def _default() -> int:
    for name in ("RESILIN_NUM_THREADS", "OMP_NUM_THREADS"):
        n = env.get_int(name)
        if n is not None:
            if n < 1:
                raise UsageError(f"environment variable {name}: expected at least 1, got {n}")
            return n
    return len(os.sched_getaffinity(0))


@cache
def _openblas(function: str) -> Callable[..., int] | None:
    """`function` of the OpenBLAS in this process (numpy's wheels bundle one under a prefix), or None without one."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "openblas" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                found = getattr(library, f"{prefix}_{function}{suffix}", None)
                if found is not None:
                    return found  # type: ignore[no-any-return]
    return None


_chosen = [1]
set_num_threads(_default())
atexit.register(_set_pool, 1)  # ends the pool's threads
