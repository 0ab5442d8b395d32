"""CUDA's driver and cuBLASLt, by native code of ours (`core/native/cuda`). The one file that opens them.

Both are looked for when the first CUDA device is named, so one build serves CUDA 12 and 13, and machines with neither.
Kernels are launched and matrices multiplied through them; what they do not do, CuPy does.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from resilin._base import env, world
from resilin.core.backends import device_errors
from resilin.core.kernels.loader import native
from resilin.errors import AcceleratorError, OutOfMemoryError

DRIVER = "libcuda.so.1"
WORKSPACE_KIB = 32 << 10  # what Hopper's fastest products ask for; CUBLASLT_WORKSPACE_SIZE changes it, as in PyTorch

_OUT_OF_MEMORY = 2
_ENDED = range(700, 720)  # after these, the process can do nothing more on its device
_BLAS_STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
}
_BLAS_OUT_OF_MEMORY = 3


class Driver:
    """The driver in the file `driver`, and the products of cuBLASLt's file `blaslt`.

    stream: gives the stream to work on, which has its address as `ptr`; empty: makes an array of so many bytes.
    RuntimeError names library and symbol, or its version, where a file cannot be used.
    """

    def __init__(
        self,
        driver: str,
        blaslt: str | None,
        stream: Callable[[], Any],
        empty: Callable[[int], Any],
        waits: bool | None = None,
    ) -> None:
        self._native = native.CudaDriver(driver)
        self._stream = stream
        self._empty = empty
        self._waits = env.get("CUDA_LAUNCH_BLOCKING") == "1" if waits is None else waits
        self.version: int = self._native.version
        self.workspace_bytes = (env.get_int("CUBLASLT_WORKSPACE_SIZE") or WORKSPACE_KIB) << 10
        self.workspaces: dict[int, Any] = {}  # stream's address -> the memory that products use there
        self.products: Any = None  # native.CudaProducts; None: products go through CuPy
        if blaslt is not None:
            given = (stream, self._workspace, self._failed_product, self.workspace_bytes)
            self.products = native.CudaProducts(blaslt, *given)

    def kernel(self, name: str, function: int) -> Callable[..., None]:
        """The kernel whose handle is `function` as a function (grid, block, args, shared_bytes=0), as CuPy's are."""
        made: Callable[..., None] = self._native.kernel(function, name, self._stream, self._failed, self._waits)
        return made

    def _workspace(self, stream: int) -> int:
        memory = self.workspaces.setdefault(stream, self._empty(self.workspace_bytes))  # of two threads' the first's
        return int(memory.data.ptr)

    def _failed(self, name: str, stream: int, status: int) -> NoReturn:
        code, text = self._native.describe(status)
        what = f"{_rank()}{name}, launched on stream {stream:#x}: {code} ({status}), {text}"
        if status == _OUT_OF_MEMORY:
            raise OutOfMemoryError(f"{what}. Free tensors or use smaller batches")
        if status == device_errors.NOT_INITIALIZED:
            what += f". {device_errors.FORKED}"
        if status in _ENDED:
            what += (
                ". It, or a kernel that was launched before it, did this; CUDA_LAUNCH_BLOCKING=1 in the environment "
                "shows which. This process can do nothing more on its GPU: restart it"
            )
        raise AcceleratorError(what, status)

    def _failed_product(self, name: str, stream: int, status: int) -> NoReturn:
        what = f"{_rank()}{name}, launched on stream {stream:#x}: {_BLAS_STATUS.get(status, 'status')} ({status})"
        if status == _BLAS_OUT_OF_MEMORY:
            raise OutOfMemoryError(f"{what}. Free tensors or use smaller batches")
        raise AcceleratorError(f"{what}. CUBLASLT_LOG_LEVEL=2 in the environment makes the library say why", status)


def load(cupy: Any) -> Driver | None:
    """The driver beside `cupy`; None without native code. RuntimeError where the driver cannot be used.

    Where only cuBLASLt cannot, products go through CuPy, and a warning says why.
    """
    if native is None:
        return None
    stream = cupy.cuda.get_current_stream

    def empty(size: int) -> Any:
        return cupy.empty(size, "u1")

    try:
        return Driver(DRIVER, _blaslt_path(cupy), stream, empty)
    except RuntimeError as error:
        without = Driver(DRIVER, None, stream, empty)
        warnings.warn(f"matrix products go through CuPy, which is slower: {error}", RuntimeWarning, stacklevel=2)
        return without


def _blaslt_path(cupy: Any) -> str:
    """Where cuBLASLt lies, by the finder that CuPy brings; else its name, for the system's loader to look for."""
    name = f"libcublasLt.so.{int(cupy.cuda.runtime.runtimeGetVersion()) // 1000}"
    try:
        finder = importlib.import_module("cuda.pathfinder")
        found = str(finder.load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (ImportError, RuntimeError):
        return name
    return found if Path(found).name.split(".")[:3] == name.split(".") else name  # else it is another version's


def _rank() -> str:
    """Which worker it happened to, where there are several."""
    here = world.current()
    return "" if here is None else f"rank {here[0]} of {here[1]}: "
