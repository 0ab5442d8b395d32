"""Page-locked memory, from which copies to a GPU run beside its work. `METHODS` are methods of `Tensor`."""

from __future__ import annotations

from typing import Any

from resilin.core.backends.base import ArrayBackend
from resilin.core.device import backend_of
from resilin.core.tensor import Tensor

METHODS = ["pin_memory", "is_pinned"]


def gpu() -> ArrayBackend | None:
    """The backend of the CUDA devices; None when there are none."""
    try:
        return backend_of("cuda")
    except RuntimeError:  # it says why, to those who use the device
        return None


def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """The values in page-locked memory; the tensor itself when it lies there already, or when there is no GPU.

    The result has no part in the graph. Raises: RuntimeError for a tensor that is not in the host's memory.
    """
    backend = gpu()
    if backend is None or is_pinned(self):
        return self
    if self.device.type != "cpu":
        raise RuntimeError(f"pin_memory: only tensors on the CPU can be pinned, got one on {self.device}")
    return Tensor._wrap(backend.pin(self.detach()._array))


def is_pinned(self: Tensor, device: Any = None) -> bool:
    """Whether the tensor lies in page-locked memory."""
    backend = gpu()
    return backend is not None and self.device.type == "cpu" and backend.is_pinned(self.detach()._array)
