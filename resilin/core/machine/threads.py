"""How many threads the CPU kernels use."""

from __future__ import annotations

import atexit
import os

from resilin._base import env
from resilin.core.kernels.loader import kernel, native
from resilin.core.machine import blas
from resilin.errors import UsageError

_set_pool = kernel("set_num_threads")


def set_num_threads(n: int) -> None:
    """Use `n` threads in native kernels and in matrix products. Results do not depend on it.

    Without native code numpy's OpenBLAS gets the threads, and results of matrix products may depend on their number;
    that is why there is one by default then.
    """
    if not isinstance(n, int) or n < 1:
        raise UsageError(f"set_num_threads: expected an int of at least 1, got {n!r}")
    _set_pool(n)
    setter, getter = blas.function("set_num_threads"), blas.function("get_num_threads")
    wanted = n if native is None else 1
    if setter is not None and (getter is None or getter() != wanted):  # in a forked child it would start OpenBLAS anew
        setter(wanted)
    _chosen[0] = n


def get_num_threads() -> int:
    """The number of threads in use: RESILIN_NUM_THREADS, else OMP_NUM_THREADS, else the CPUs this process may use.

    Without native code: one, where neither variable is set.
    """
    return _chosen[0]


def default() -> int:
    """What the environment says: see `get_num_threads`."""
    for name in ("RESILIN_NUM_THREADS", "OMP_NUM_THREADS"):
        n = env.get_int(name)
        if n is not None:
            if not isinstance(n, int) or n < 1:
                raise UsageError(f"environment variable {name}: expected an int of at least 1, got {n!r}")
            return n
    return len(os.sched_getaffinity(0)) if native is not None else 1


_chosen = [1]
set_num_threads(default())
atexit.register(_set_pool, 1)  # ends the pool's threads
