"""What CUDA says when a device failed, in this library's words: which rank, which work, which stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from resilin._base import env
from resilin.errors import AcceleratorError, KernelError

NOT_INITIALIZED = 3  # what the driver and CUDA's runtime say where the process was forked after CUDA's first use
FORKED = (
    "A process that was forked from one that used CUDA cannot use it: start it otherwise "
    "(multiprocessing.get_context('spawn'); DataLoader(multiprocessing_context='spawn')), or leave CUDA to the parent"
)
QUEUED = 8  # kernels launched last that are named

_PLACE = re.compile(r"^(\w+\.cuh?)[(:](\d+)\)?.*\berror\b.*$", re.MULTILINE)


def of_cuda(cupy: Any) -> tuple[type[Exception], ...]:
    """The classes of CuPy's errors that come from CUDA's runtime and driver."""
    driver = getattr(getattr(cupy.cuda, "driver", None), "CUDADriverError", None)
    return (cupy.cuda.runtime.CUDARuntimeError, *([driver] if driver else []))


@contextmanager
def translated(xp: Any, doing: str) -> Iterator[None]:
    """Raise AcceleratorError for an error of CUDA inside; `doing` is what noticed it."""
    try:
        yield
    except of_cuda(xp.module) as error:
        raise fault(xp, doing, error) from error


def fault(xp: Any, doing: str, error: Exception) -> AcceleratorError:
    """The error of a device that failed: what it was doing is among the kernels queued last, or CuPy's own."""
    rank = env.get("RANK")
    where = f"rank {rank}: " if rank else ""
    stream = getattr(xp.module.cuda.get_current_stream(), "ptr", 0)
    if getattr(error, "status", 0) == NOT_INITIALIZED:
        return AcceleratorError(f"{where}{doing}: {error}. {FORKED}", NOT_INITIALIZED)
    last = ", ".join(xp.launched) or "none of this library's"
    blocking = "" if env.get("CUDA_LAUNCH_BLOCKING") == "1" else "; CUDA_LAUNCH_BLOCKING=1 finds which"
    return AcceleratorError(
        f"{where}the CUDA device failed: {error}. It was noticed in {doing}, stream {stream:#x}; kernels "
        f"launched last: {last}{blocking}. This process cannot use the device any more: start it again",
        int(getattr(error, "status", 0)),
    )


def uncompiled(source: str, kernel: str, error: Exception) -> KernelError:
    """The error of a kernel that does not compile: file and line of the first complaint, and all words."""
    words = str(error)
    found = _PLACE.search(words)
    place = f"{found[1]}, line {found[2]}" if found else f"{source}.cu"
    return KernelError(f"{place}: the CUDA kernel {kernel} does not compile. The compiler says:\n{words}")
