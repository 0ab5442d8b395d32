"""The names of torch.accelerator: the CUDA devices, if there are any, under names that say nothing of CUDA.

Where there is no such device, `is_available()` is False and `current_accelerator()` None, and what needs one raises
RuntimeError.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import resilin.cuda
from resilin.core.device import device
from resilin.core.dtype import ALL, ALL_COMPLEX

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.accelerator import memory as memory

__all__ = [
    "current_accelerator",
    "current_device_idx",
    "current_device_index",
    "current_stream",
    "device_count",
    "device_index",
    "empty_cache",
    "get_device_capability",
    "get_memory_info",
    "is_available",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_device_idx",
    "set_device_index",
    "set_stream",
    "synchronize",
]


def is_available() -> bool:
    """Return whether there is a CUDA device."""
    return resilin.cuda.is_available()


def device_count() -> int:
    """Return the number of CUDA devices."""
    return resilin.cuda.device_count()


def current_accelerator(check_available: bool = False) -> device | None:
    """Return the device of CUDA that is used; None where there is none."""
    return device("cuda") if is_available() else None


def _cuda() -> ModuleType:
    if not is_available():
        raise RuntimeError("Cannot access accelerator device when none is available.")
    return resilin.cuda


def current_device_index() -> int:
    """Return the number of the device that is used."""
    return int(_cuda().current_device())


def set_device_index(device: Any, /) -> None:
    """Compute on the device of this number or name from now on."""
    _cuda().set_device(device)


current_device_idx, set_device_idx = current_device_index, set_device_index


class device_index:
    """Compute on the device of this number for a block; None changes nothing."""

    def __init__(self, device: int | None, /) -> None:
        self.idx = device
        self._block: Any = None

    def __enter__(self) -> None:
        if self.idx is not None:
            self._block = _cuda().device(self.idx)
            self._block.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self._block is not None:
            self._block.__exit__(*exc)
            self._block = None


def current_stream(device: Any = None, /) -> Any:
    """Return the stream on which a device's work is queued."""
    return _cuda().current_stream(device)


def set_stream(stream: Any) -> None:
    """Queue work on `stream` from now on."""
    _cuda().set_stream(stream)


def synchronize(device: Any = None, /) -> None:
    """Wait for all work of a device."""
    _cuda().synchronize(device)


def get_device_capability(device: Any = None, /) -> dict[str, Any]:
    """Return what a device can hold: {"supported_dtypes": the dtypes}."""
    _cuda()
    return {"supported_dtypes": {*ALL, *ALL_COMPLEX}}


def empty_cache() -> None:
    """Give memory that no tensor uses back to the device."""
    _cuda().empty_cache()


def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
    """Return a device's free bytes, and all of its bytes."""
    free, total = _cuda().mem_get_info(device_index)
    return int(free), int(total)


def memory_stats(device_index: Any = None, /) -> dict[str, Any]:
    """Return the figures of the allocator of a device, by name."""
    return dict(_cuda().memory_stats(device_index))


def memory_allocated(device_index: Any = None, /) -> int:
    """Return the bytes that tensors of a device take."""
    return int(_cuda().memory_allocated(device_index))


def max_memory_allocated(device_index: Any = None, /) -> int:
    """Return the most bytes that tensors of a device took."""
    return int(_cuda().max_memory_allocated(device_index))


def memory_reserved(device_index: Any = None, /) -> int:
    """Return the bytes that the allocator of a device holds."""
    return int(_cuda().memory_reserved(device_index))


def max_memory_reserved(device_index: Any = None, /) -> int:
    """Return the most bytes that the allocator of a device held."""
    return int(_cuda().max_memory_reserved(device_index))


def reset_peak_memory_stats(device_index: Any = None, /) -> None:
    """Let the most bytes be counted from now on."""
    _cuda().reset_peak_memory_stats(device_index)
