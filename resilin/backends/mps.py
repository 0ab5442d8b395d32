"""torch.backends.mps: there are no devices of this kind."""

from __future__ import annotations

__all__ = ["is_available", "is_built"]


def is_available() -> bool:
    """False."""
    return False


def is_built() -> bool:
    """False."""
    return False
