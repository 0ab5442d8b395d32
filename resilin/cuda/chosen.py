"""The backend of CUDA devices, and the device that a program means."""

from __future__ import annotations

from typing import Any

from resilin.core import device as devices


def backend() -> Any:
    """The CUDA backend. RuntimeError says why there is none."""
    return devices.backend_of("cuda")


def current_device() -> int:
    """Number of the device that "cuda" means."""
    return int(backend().current())


def index_of(device: Any) -> int:
    """The number of a device that is given as a number, a string or a `device`; None is the current one."""
    if device is None:
        return current_device()
    backend()
    found = devices.device("cuda", device) if isinstance(device, int) else devices.device(device)
    if found.type != "cuda":
        raise ValueError(f"expected a cuda device, got {found}")
    return int(found.index or 0)


def is_initialized() -> bool:
    """Whether CUDA has been used in this process: a device was asked about with success, or a tensor made there."""
    return "cuda" in devices.device_types()


def is_own(device: Any) -> bool:
    """Whether `device` is the one that this process computes on; another has none of its memory."""
    return device is None or index_of(device) == current_device()
