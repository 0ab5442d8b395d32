"""Interpolation of torch.nn.functional: sizes and scales checked, and which input elements make an output element.

Every mode is separable: along one dimension after the other, an output element is a weighted sum of a few input
elements. A `Taps` table says which, with which weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.mathematics.windows import need_room
from resilin.core.api.nn.neural import need_tensors
from resilin.core.api.nn.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from resilin.core.ops import resampling as ops
from resilin.core.tensor import Tensor

_DIMS = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5, "lanczos": 4}
_MODES = ("nearest", "linear", "bilinear", "bicubic", "trilinear", "lanczos", "area", "nearest-exact")
_AREA = {3: adaptive_avg_pool1d, 4: adaptive_avg_pool2d, 5: adaptive_avg_pool3d}


class Taps(NamedTuple):
    """Output element rows[k] takes weights[k] times input element columns[k]; rows ascend; None: all weights are 1."""

    rows: Any
    columns: Any
    weights: Any


class _Axis(NamedTuple):
    length: int
    size: int
    factor: float | None  # scale_factor, where it counts and not the two lengths
    corners: bool

    def scale(self) -> float:
        """Distance of neighbouring output elements in the input, in elements."""
        if self.corners:
            return (self.length - 1) / (self.size - 1) if self.size > 1 else 0.0
        return 1 / self.factor if self.factor is not None and self.factor > 0 else self.length / self.size

    def places(self, real: Any, edge: bool) -> Any:
        """Where the output elements lie in the input; `edge`: not before its first element."""
        i = np.arange(self.size, dtype=real)
        if self.corners:
            return i * real(self.scale())
        at = (i + real(0.5)) * real(self.scale()) - real(0.5)
        return np.maximum(at, 0) if edge else at


@rounded_once
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Images (N, C, ...) of one, two or three dimensions at another `size`, or at `scale_factor` times theirs.

    mode: "nearest", "nearest-exact", "area"; "linear" (one dimension), "bilinear", "bicubic", "lanczos" (two, the last
    with antialias only), "trilinear" (three). antialias: bilinear and bicubic widen their filters when they shrink.
    dtype: floating point; "nearest" and "nearest-exact" also take the others, "bilinear", "bicubic" and "lanczos"
        uint8, rounded after each dimension.
    Order: dimensions from the last to the first, elements in ascending position. Gradients are sums in that order too.
    """
    need_tensors("interpolate", input=input)
    _check_mode(input, mode, align_corners, antialias)
    wanted, factors = _sizes(input, size, scale_factor, recompute_scale_factor)
    lengths = input._array.shape[2:]
    if mode == "area":
        pooled: Tensor = _AREA[input.dim()](input, wanted)
        return pooled
    if min(wanted) < 1 or min(lengths) < 1:
        raise RuntimeError(
            f"interpolate: Input and output sizes should be greater than 0, but got input {lengths} and output {wanted}"
        )
    if 0 in input._array.shape[1:]:
        raise RuntimeError(f"interpolate: Non-empty {input.dim()}D data tensor expected but got {tuple(input.shape)}")
    need_room(input, wanted)
    out = input
    for number in reversed(range(len(wanted))):
        length, longer, factor = lengths[number], wanted[number], factors[number]
        if mode == "nearest" and len(wanted) == 2 and longer in (length, 2 * length):
            factor = None  # as PyTorch does for images, and for nothing else
        axis = _Axis(length, longer, factor, bool(align_corners))
        real = np.float64 if input._array.dtype.itemsize in (1, 8, 16) else np.float32
        taps = _taps(mode, axis, antialias, real)
        if out._array.dtype == np.uint8 and not mode.startswith("nearest"):
            out = out if length == longer else _in_bytes(out, taps, axis, number + 2)
        elif not _same_places(mode, axis, antialias, real):
            out = ops.resample.call(out, *taps, axis.size, number + 2)
    return input.clone() if out is input else out


def _in_bytes(x: Tensor, taps: Taps, axis: _Axis, dim: int) -> Tensor:
    """The sums of `taps` over uint8, as PyTorch and Pillow make them: in whole numbers, with weights of 16 bits that
    have as many binary places as the largest one leaves, rounded to the nearest pixel."""
    places, which = np.unique(taps.rows * axis.length + taps.columns, return_inverse=True)
    weights = np.bincount(which, taps.weights)  # of one input element, which may stand for several beyond the edge
    digits = 0
    while digits < 22 and int(0.5 + weights.max() * (1 << (digits + 1))) < 1 << 15:
        digits += 1
    scaled = weights * (1 << digits)
    whole = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32)
    rows, columns = np.divmod(places, axis.length)
    sums = ops.resample.call(x.to(dtypes.int32), rows, columns, whole, axis.size, dim)
    half = 1 << (digits - 1) if digits else 0
    return ((sums + half) >> digits).clamp(0, 255).to(x.dtype)


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """`interpolate`, under its former name; deprecated in PyTorch."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` with mode "nearest"; deprecated in PyTorch."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` with mode "bilinear" and aligned corners; deprecated in PyTorch."""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)


def _check_mode(input: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> None:
    dim = input._array.ndim
    interpolating = mode in ("linear", "bilinear", "bicubic", "trilinear")
    if mode not in _MODES or not 3 <= dim <= 5:
        raise NotImplementedError(
            f"interpolate: only 3D, 4D and 5D input and the modes {' | '.join(_MODES)} are supported, got {dim}D and "
            f"{mode!r}"
        )
    if align_corners is not None and not interpolating and mode != "lanczos":
        raise ValueError(
            "interpolate: align_corners option can only be set with the interpolating modes: linear | bilinear | "
            f"bicubic | trilinear, got {mode!r}"
        )
    if antialias and (mode not in ("bilinear", "bicubic", "lanczos") or dim != 4):
        raise ValueError(
            "interpolate: antialias is restricted to the modes bilinear, bicubic and lanczos and requires a 4D tensor "
            f"as input, got {mode!r} and {dim}D"
        )
    if mode == "lanczos" and (align_corners or not antialias):
        raise ValueError("interpolate: lanczos mode requires antialias=True and does not support align_corners=True")
    if _DIMS.get(mode, dim) != dim:
        raise NotImplementedError(f"interpolate: got {dim}D input, but {mode} mode needs {_DIMS[mode]}D input")
    pixels = input._array.dtype == np.uint8 and mode in ("bilinear", "bicubic", "lanczos")
    if input._array.dtype.kind not in "fVc" and not mode.startswith("nearest") and not pixels:
        raise NotImplementedError(
            f"interpolate: mode {mode!r} is for floating point tensors, got {input.dtype}; convert it first"
        )


def _sizes(input: Tensor, size: Any, scale_factor: Any, recompute: bool | None) -> tuple[list[int], list[Any]]:
    """The output's size, and the factors that say where its elements lie (None: the sizes say it)."""
    lengths = input._array.shape[2:]
    if size is not None and scale_factor is not None:
        raise ValueError("interpolate: only one of size or scale_factor should be defined")
    if size is not None:
        if recompute:
            raise ValueError("interpolate: recompute_scale_factor is not meaningful with an explicit size")
        return [_integer(n) for n in _each("size", size, lengths)], [None] * len(lengths)
    if scale_factor is None:
        raise ValueError("interpolate: either size or scale_factor should be defined")
    factors = [float(factor) for factor in _each("scale_factor", scale_factor, lengths)]
    if not all(map(math.isfinite, factors)):
        raise ValueError(f"interpolate: expected finite scale factors, got {scale_factor}")
    wanted = [math.trunc(n * factor) for n, factor in zip(lengths, factors, strict=True)]
    return wanted, [None] * len(lengths) if recompute else factors


def _integer(value: Any) -> int:
    if isinstance(value, float) or not hasattr(value, "__index__"):
        raise TypeError(f"interpolate: expected size to be of integers, got {value!r}")
    return int(value)


def _each(name: str, value: Any, lengths: tuple[int, ...]) -> list[Any]:
    """`value` for every spatial dimension."""
    if not isinstance(value, tuple | list):
        return [value] * len(lengths)
    if len(value) != len(lengths):
        raise ValueError(
            f"interpolate: Input and {name} must have the same number of spatial dimensions, but got input with "
            f"{lengths} and {name} {tuple(value)}; input is (N, C, d1, d2, ...)"
        )
    return list(value)


@functools.lru_cache(128)
def _same_places(mode: str, axis: _Axis, antialias: bool, real: Any) -> bool:
    return _keeps(_taps(mode, axis, antialias, real), axis)


def _keeps(taps: Taps, axis: _Axis) -> bool:
    """Whether every element stays what and where it is."""
    return axis.length == axis.size and taps.weights is None and bool((taps.columns == taps.rows).all())


@functools.lru_cache(128)
def _taps(mode: str, axis: _Axis, antialias: bool, real: Any) -> Taps:
    """The table of a mode, the same arrays for all that ask for it."""
    taps = _table(mode, axis, antialias, real)
    for array in taps:
        if array is not None:
            array.flags.writeable = False
    return taps


def _table(mode: str, axis: _Axis, antialias: bool, real: Any) -> Taps:
    if mode.startswith("nearest"):
        return _nearest(axis, 0.5 if mode == "nearest-exact" else 0.0, real)
    if antialias:
        return _filtered(axis, *_FILTERS[mode], real)
    return _cubic(axis, real) if mode == "bicubic" else _linear(axis, real)


def _nearest(axis: _Axis, shift: float, real: Any) -> Taps:
    rows = np.arange(axis.size)
    places = np.floor((rows.astype(real) + real(shift)) * real(axis.scale()))
    return Taps(rows, np.minimum(places.astype(np.int64), axis.length - 1), None)


def _linear(axis: _Axis, real: Any) -> Taps:
    rows = np.arange(axis.size)
    if axis.length == axis.size:
        return Taps(rows, rows, None)
    places = axis.places(real, edge=True)
    first = np.minimum(places.astype(np.int64), axis.length - 1)
    after = np.clip(places - first.astype(real), 0, 1)
    columns = np.stack([first, np.minimum(first + 1, axis.length - 1)], 1)
    return Taps(rows.repeat(2), columns.reshape(-1), np.stack([1 - after, after], 1).reshape(-1))


def _cubic(axis: _Axis, real: Any) -> Taps:
    places = axis.places(real, edge=False)
    first = np.floor(places)
    away = (places - first)[:, None] + np.array([1, 0, -1, -2], real)
    columns = np.clip(first.astype(np.int64)[:, None] + np.arange(-1, 3), 0, axis.length - 1)
    weights = _cubic_filter(np.abs(away), -0.75)
    return Taps(np.arange(axis.size).repeat(4), columns.reshape(-1), weights.reshape(-1))


def _filtered(axis: _Axis, filter: Callable[[Any], Any], reach: int, real: Any) -> Taps:
    """Every output element is the mean of the input around it, weighted by `filter` of the distance."""
    if axis.length == axis.size:
        return Taps(np.arange(axis.size), np.arange(axis.size), None)
    scale = axis.scale()
    width = max(scale, 1.0)
    center = (np.arange(axis.size) + 0.5) * scale
    first = np.maximum((center - reach * width + 0.5).astype(np.int64), 0)
    last = np.minimum((center + reach * width + 0.5).astype(np.int64), axis.length)
    counts = np.maximum(last - first, 1)
    rows = np.arange(axis.size).repeat(counts)
    columns = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows] + first[rows]
    weights = filter(np.abs((columns - center[rows] + 0.5) / width))
    weights = weights / np.bincount(rows, weights, axis.size)[rows]
    return Taps(rows, np.minimum(columns, axis.length - 1), weights.astype(real))


def _cubic_filter(x: Any, a: float) -> Any:
    """Keys' cubic of the distance `x` >= 0."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


_FILTERS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "bilinear": (lambda x: np.maximum(1 - x, 0), 1),
    "bicubic": (lambda x: _cubic_filter(x, -0.5), 2),
    "lanczos": (lambda x: np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0), 3),
}
