"""Elementwise functions that take more than PyTorch's; the others are imported as they are."""

from __future__ import annotations

from typing import Any

from resilin.core.api import convert, math, shaping
from resilin.core.tensor import Tensor


def positive(x: Tensor, /) -> Tensor:
    """A copy of `x`."""
    return x.clone()  # type: ignore[no-any-return]


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """Elements limited to [min, max], numbers or tensors that broadcast, in the dtype of `x`; a copy without limits."""
    if min is None and max is None:
        return shaping.clone(x)
    low, high = (_as_limit(limit, x) for limit in (min, max))
    return convert.to(math.clamp(x, low, high), x.dtype)


def _as_limit(limit: Any, x: Tensor) -> Any:
    """A limit as a tensor of the dtype of `x`, where it is one."""
    return convert.to(limit, x.dtype) if isinstance(limit, Tensor) else limit
