"""What does the host pay for a kernel's launch and for a product, before CUDA's driver is called?"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from resilin.core.backends import cupy_names
from resilin.core.backends.cuda_driver import Driver
from resilin.core.kernels.cuda import products

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "gpu"))
from null_libraries import NullDriver, function

CALLS = 2000  # per sample
METHOD = """No GPU: the driver and cuBLASLt are the tests' own, which note a call and return (products: of 1 x 1). The
median over {samples} samples of {calls} calls. Arrays are stand-ins that answer `data.ptr` as CuPy's do, from slots.
"ctypes" makes the same call of the driver with arguments prepared beforehand, as a program without native code could
at best."""


class _Memory:
    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class _Array:
    """What a launch asks an array for."""

    __slots__ = ("data", "dtype", "flags", "ndim", "shape", "size", "strides")

    def __init__(self, host: Any) -> None:
        self.data, self.flags = _Memory(host.ctypes.data), SimpleNamespace(c_contiguous=True)
        self.dtype, self.ndim, self.shape, self.size, self.strides = (
            host.dtype, host.ndim, host.shape, host.size, host.strides
        )  # fmt: skip

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)


def launches(samples: int) -> dict[str, list[float]]:
    """Seconds per call: `samples` samples of each."""
    null, stream = NullDriver(), _Memory(0)
    null.reset()
    null.listen(None)
    driver = Driver(null.path, null.path, lambda: stream, bytearray, waits=False)
    one = _Array(np.ones((1, 1), np.float32))
    given = (np.int64(1), one, one, one, np.int64(2), np.float32(3))
    few, many = function("few", 8, 8, 8, 8, 8, 4), function("many", *[8] * 24)
    launched: deque[str] = deque(maxlen=1)
    made = SimpleNamespace(driver=driver, kernels={}, plans={}, launched=launched, empty=lambda shape, dtype: one)
    for name, handle in (("few", few), ("many", many)):
        made.kernels[name, name] = driver.kernel(name, ctypes.addressof(handle))
    lots = tuple([one] * 8 + [np.int64(1)] * 16)
    calls: dict[str, Callable[[], Any]] = {
        "launch, 3 arrays and 3 numbers": lambda: cupy_names.launch(made, "few", "few", (1,), (1,), given),
        "launch, 8 arrays and 16 numbers": lambda: cupy_names.launch(made, "many", "many", (1,), (1,), lots),
        "the same 6 arguments by ctypes": _by_ctypes(null.path, few, given),
        "product, its plan known": lambda: products.matmul(made, one, one),
    }
    return {name: [_sample(call) for _ in range(samples)] for name, call in calls.items()}


def _by_ctypes(path: str, handle: Any, given: tuple[Any, ...]) -> Callable[[], Any]:
    run = ctypes.CDLL(path).cuLaunchKernel
    words = [value.data.ptr if isinstance(value, _Array) else int(value) for value in given]
    held = [ctypes.c_uint64(word) for word in words]
    places = (ctypes.c_void_p * len(held))(*[ctypes.addressof(word) for word in held])
    at, no = ctypes.c_void_p(ctypes.addressof(handle)), ctypes.c_void_p(None)
    return lambda: run(at, 1, 1, 1, 1, 1, 1, 0, no, places, no)


def _sample(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS


def benchmark(options: Options) -> Report:
    """A launch of few and of many arguments, and a product."""
    samples = 5 if options.quick else 200
    found = launches(samples)
    return Report(
        name="cuda_launch",
        question="A launch and a product on CUDA: what the host pays, the driver's own time left out.",
        method=METHOD.format(samples=samples, calls=CALLS),
        rows=[
            Row(
                what=name,
                unit="us",
                ours=statistics.median(values) * 1e6,
                peer=None,
                spread=harness.spread(values, 1e6),
            )
            for name, values in found.items()
        ],
        data={"median_us": {name: statistics.median(values) * 1e6 for name, values in found.items()}},
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
