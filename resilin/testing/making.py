"""`make_tensor`: a tensor of any dtype with numbers drawn evenly from a range. Arguments and ranges are PyTorch's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import resilin
from resilin.core import dtype as dtypes
from resilin.core.ops import creation, random
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError

_LARGEST_DRAWN = (1 << 63) - 1  # the end of the widest range of integers, not drawn itself


def make_tensor(
    *shape: Any,
    dtype: dtypes.dtype,
    device: Any,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Return a tensor with numbers of [low, high), which are those that `dtype` has of it.

    low, high:     0 and 2 of bool, -9 and 10 of integers (0 and 10 without sign), -9 and 9 of floats and complex ones.
    noncontiguous: every second element of a larger tensor.
    exclude_zero:  zeros become 1, of floats and complex numbers the smallest normal one.
    UsageError for a range that is empty, is NaN or has nothing that `dtype` holds; for gradients of integers; for
    `noncontiguous` beside a memory format.
    """
    if not isinstance(dtype, dtypes.dtype):
        raise UsageTypeError(f"make_tensor: dtype must be a dtype, got {dtype!r:.80}")
    lengths = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if noncontiguous and memory_format is not None:
        raise UsageError(
            "make_tensor: the parameters `noncontiguous` and `memory_format` are mutually exclusive, but got "
            f"noncontiguous={noncontiguous} and memory_format={memory_format}"
        )
    if requires_grad and whole:
        raise UsageError(f"make_tensor: `requires_grad=True` is not supported for boolean and integral dtypes: {dtype}")
    begin, end = _range(dtype, low, high)
    apart = noncontiguous and math.prod(lengths) > 1
    drawn = (*lengths[:-1], 2 * lengths[-1]) if apart else lengths
    if whole:
        made = random.randint(math.ceil(begin), math.ceil(end), drawn, dtype=dtype, device=device)
    else:
        made = _floats(drawn, dtype, device, begin, end)
    if apart:
        made = made[..., 1::2]
    elif memory_format is not None:
        made = made.clone(memory_format=memory_format)
    if exclude_zero:
        made[made == 0] = 1 if whole else dtypes.finfo(dtype).tiny
    return made.requires_grad_(requires_grad) if requires_grad else made


def _floats(shape: tuple[int, ...], dtype: dtypes.dtype, device: Any, low: float, high: float) -> Tensor:
    made: Any = creation.empty(shape, dtype=dtype, device=device)
    parts = resilin.view_as_real(made) if dtype.is_complex else made
    if high - low >= dtypes.finfo(dtype).max:  # as wide as the dtype: drawn at half the width
        parts.uniform_(low / 2, high / 2).mul_(2)
    else:
        parts.uniform_(low, high)
    return made  # type: ignore[no-any-return]


def _range(dtype: dtypes.dtype, low: float | None, high: float | None) -> tuple[float, float]:
    """The bounds, limited to what `dtype` holds."""
    least, most, usual = _limits(dtype)
    low, high = (usual[0] if low is None else low), (usual[1] if high is None else high)
    if math.isnan(low) or math.isnan(high):
        raise UsageError(f"make_tensor: `low` and `high` cannot be NaN, but got low={low} and high={high}")
    if low == high and (dtype.is_floating_point or dtype.is_complex):
        warnings.warn(
            "Passing `low==high` to `make_tensor` for floating or complex types is deprecated: use `full`",
            FutureWarning,
            stacklevel=4,
        )
    elif low >= high:
        raise UsageError(f"make_tensor: `low` must be less than `high`, but got {low} >= {high}")
    elif high < least or low >= most:
        raise UsageError(
            f"make_tensor: the value interval specified by `low` and `high` is [{low}, {high}), but {dtype} only "
            f"supports [{least}, {most})"
        )
    return min(max(low, least), most), min(max(high, least), most)


def _limits(dtype: dtypes.dtype) -> tuple[float, float, tuple[int, int]]:
    """The least number of `dtype`, the end of its range, and the usual bounds."""
    if dtype.is_floating_point or dtype.is_complex:
        info = dtypes.finfo(dtype)
        return info.min, info.max, (-9, 9)
    if dtype is dtypes.bool_:
        return 0, 2, (0, 2)
    whole = dtypes.iinfo(dtype)
    return whole.min, min(whole.max + 1, _LARGEST_DRAWN), (-9, 10)
