"""What several layers need."""

from __future__ import annotations

from typing import Any

from resilin.core.ops import creation
from resilin.core.tensor import Tensor


def empty(shape: tuple[int, ...], device: Any, dtype: Any) -> Tensor:
    """Memory for a parameter, not set to anything."""
    return creation.empty(*shape, device=device, dtype=dtype)
