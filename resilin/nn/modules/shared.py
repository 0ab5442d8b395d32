"""What several layers need."""

from __future__ import annotations

from typing import Any

from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.errors import UsageError


def empty(shape: tuple[int, ...], device: Any, dtype: Any) -> Tensor:
    """Memory for a parameter, not set to anything."""
    return creation.empty(*shape, device=device, dtype=dtype)


def pair(value: int | tuple[int, ...], name: str) -> tuple[int, int]:
    """`value` for both spatial dimensions."""
    if isinstance(value, int):
        return value, value
    if len(value) != 2:
        raise UsageError(f"{name}: expected one integer or two, got {value!r}")
    return value[0], value[1]
