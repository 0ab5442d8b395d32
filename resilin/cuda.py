"""The names of torch.cuda. No CUDA backend is registered in this version, and these functions say so."""

from __future__ import annotations

from typing import Any


def is_available() -> bool:
    """Whether a CUDA device can be used."""
    return False


def device_count() -> int:
    """Number of usable CUDA devices."""
    return 0


def is_initialized() -> bool:
    """Whether CUDA has been used in this process."""
    return False


def synchronize(device: Any = None) -> None:
    """Wait for the device. RuntimeError: there is none."""
    raise RuntimeError("no CUDA device is available: resilin has no registered 'cuda' backend")


def manual_seed(seed: int) -> None:
    """Seed the current CUDA device, if there is one; ignored otherwise, as in PyTorch."""


def manual_seed_all(seed: int) -> None:
    """Seed all CUDA devices, if there are any; ignored otherwise, as in PyTorch."""


def empty_cache() -> None:
    """Give cached device memory back; there is none."""
