"""Ranges and marks for NVIDIA's tools, under torch.cuda.nvtx's names. Needs NVIDIA's library, but no device."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resilin.errors import UsageError

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]

LIBRARY = "libnvToolsExt.so.1"  # of CUDA up to 12
SINCE_13 = "libnvtx3interop.so.1"  # the same functions
_PACKAGES = (("nvtx", LIBRARY), ("nvtx", SINCE_13), ("cu13", SINCE_13))  # folders of NVIDIA's packages


def load(open_library: Callable[[str], Any] = ctypes.CDLL) -> Any:
    """Return NVIDIA's library of ranges. UsageError when it is not installed."""
    packaged = [Path(folder, "nvidia", of, "lib", name) for folder in sys.path if folder for of, name in _PACKAGES]
    for place in (LIBRARY, SINCE_13, *[str(path) for path in packaged]):
        try:
            return open_library(place)
        except OSError:
            continue
    raise UsageError(
        f"NVTX: neither {LIBRARY} nor {SINCE_13} was found; install NVIDIA's nvtx (pip install nvidia-nvtx, or "
        "nvidia-nvtx-cu12), or use resilin.profiler.profile, which needs none"
    )


@functools.cache
def _library() -> Any:
    library = load()
    library.nvtxRangeStartA.restype = ctypes.c_uint64
    library.nvtxRangeEnd.argtypes = (ctypes.c_uint64,)
    return library


def range_push(msg: str) -> int:
    """Begin a range called `msg` in those of this thread; gives its depth, from 0. UsageError without the library."""
    return int(_library().nvtxRangePushA(msg.encode()))


def range_pop() -> int:
    """End the range of this thread that began last; gives its depth, from 0."""
    return int(_library().nvtxRangePop())


def range_start(msg: str) -> int:
    """Begin a range that any thread may end; gives its number, for `range_end`."""
    return int(_library().nvtxRangeStartA(msg.encode()))


def range_end(range_id: int) -> None:
    """End the range that `range_start` gave this number."""
    _library().nvtxRangeEnd(range_id)


def mark(msg: str) -> None:
    """Mark this moment."""
    _library().nvtxMarkA(msg.encode())


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A range for a `with` block, or as a decorator for a function, called `msg.format(*args, **kwargs)`."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
