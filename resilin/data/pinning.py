"""Batches in page-locked memory, from which copies to a GPU run beside its work."""

from __future__ import annotations

import warnings
from typing import Any

from resilin.core.api.conversion.pinning import gpu
from resilin.data.containers import map_structure


def pin(data: Any) -> Any:
    """`data` with every part that has a method `pin_memory()` replaced by what that gives; in containers too."""
    if hasattr(data, "pin_memory"):
        return data.pin_memory()
    return map_structure(pin, data)


def check_pins(pin_memory: bool, pin_memory_device: str, stacklevel: int) -> bool:
    """Whether batches are to be pinned: when asked for, and there is a GPU. Warns as PyTorch does."""
    if not pin_memory:
        return False
    if pin_memory_device:
        warnings.warn(
            f"DataLoader: pin_memory_device={pin_memory_device!r} is deprecated and ignored; memory is pinned for the "
            "current device",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
    if gpu() is None:
        warnings.warn(
            "DataLoader: pin_memory=True has no effect: there is no CUDA device", UserWarning, stacklevel=stacklevel + 1
        )
        return False
    return True
