"""Elementwise functions that take more than PyTorch's; the others are imported as they are."""

from __future__ import annotations

from typing import Any

from resilin.array_api.types import result_type
from resilin.core.api.conversion import convert
from resilin.core.api.manipulation import indexing, shaping
from resilin.core.api.mathematics import arithmetic, complexes, elementwise
from resilin.core.tensor import Tensor


def round(x: Tensor, /) -> Tensor:
    """Rounded half to even, complex numbers by parts."""
    return (
        complexes.complex(arithmetic.round(x.real), arithmetic.round(x.imag)) if x.is_complex() else arithmetic.round(x)
    )


def positive(x: Tensor, /) -> Tensor:
    """A copy of `x`."""
    return x.clone()


def _pair(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors of their common dtype; one of them may be a number."""
    target, known = result_type(x1, x2), x1 if isinstance(x1, Tensor) else x2
    first, second = (
        convert.to(x, target) if isinstance(x, Tensor) else known.new_full((), x, dtype=target) for x in (x1, x2)
    )
    return first, second


def copysign(x1: Any, x2: Any, /) -> Tensor:
    """The magnitude of `x1` with the sign of `x2`; one of them may be a number."""
    return elementwise.copysign(*_pair(x1, x2))


def nextafter(x1: Any, x2: Any, /) -> Tensor:
    """The next number after `x1` towards `x2`; one of them may be a number."""
    return elementwise.nextafter(*_pair(x1, x2))


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1; x / |x| of complex numbers; NaN of NaN, which PyTorch's functions give 0."""
    signs = elementwise.sgn(x)
    if x.dtype.kind < 2:
        return signs
    chosen: Tensor = indexing.where(arithmetic.isnan(x), x, signs)
    return chosen


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """Elements limited to [min, max], numbers or tensors that broadcast, in the dtype of `x`; a copy without limits."""
    if min is None and max is None:
        return shaping.clone(x)
    low, high = (_as_limit(limit, x) for limit in (min, max))
    return convert.to(arithmetic.clamp(x, low, high), x.dtype)


def _as_limit(limit: Any, x: Tensor) -> Any:
    """A limit as a tensor of the dtype of `x`, where it is one."""
    return convert.to(limit, x.dtype) if isinstance(limit, Tensor) else limit
