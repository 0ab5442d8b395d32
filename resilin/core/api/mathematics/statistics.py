"""Statistics, integrals and histograms with PyTorch's names and arguments.

`__all__` are the functions of `resilin`; those of `METHODS` are methods of `Tensor`, too.
"""

from __future__ import annotations

import math as constants
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import return_types
from resilin.core.api.conversion.through_host import through_host
from resilin.core.api.manipulation import indexing, joining, rearranging, shaping, sorting
from resilin.core.api.mathematics import arithmetic, one_pass, products, reducing
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.kernels import pack
from resilin.core.kernels.loader import kernel
from resilin.core.ops import index as index_ops
from resilin.core.ops import reduce as reduce_ops
from resilin.core.ops import shape as shape_ops
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor, wrap

__all__ = [
    "aminmax",
    "corrcoef",
    "cov",
    "cumulative_trapezoid",
    "gradient",
    "histc",
    "histogram",
    "histogramdd",
    "logcumsumexp",
    "mode",
    "nanmedian",
    "nanquantile",
    "quantile",
    "renorm",
    "trapezoid",
    "trapz",
]
_count_in_bins = kernel("count_in_bins")
_FUNCTIONS = ("cumulative_trapezoid", "gradient", "histogramdd", "trapezoid", "trapz")
METHODS = [name for name in __all__ if name not in _FUNCTIONS]
METHODS += ["dist"]  # as a function it would hide the package resilin.distributed


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> return_types.aminmax:
    """`amin` and `amax` over `dim` (all when None)."""
    if dim is None and input._array.size == 0:
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity."
        )
    if dim is None and (found := one_pass.extremes(input, keepdim)) is not None:
        return return_types.aminmax(found)
    return return_types.aminmax((reducing.amin(input, dim, keepdim), reducing.amax(input, dim, keepdim)))


@rounded_once
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log of the running sums of exp(input) along `dim`; nothing overflows."""
    if input._array.dtype.kind in "biu":
        raise NotImplementedError(f"logcumsumexp(): not implemented for {input.dtype}; convert to a float dtype")
    axis = check_dim(dim, input._array.ndim)
    if not input._array.ndim or not input._array.size:
        return input.clone()
    if input._array.dtype.kind != "c":
        return reduce_ops.logcumsumexp.call(input, axis)
    lines = joining.unbind(input, axis)
    out = [lines[0]]  # one logaddexp per place: a sum shifted once for the line would underflow at its small start
    for line in lines[1:]:
        out.append(arithmetic.logaddexp(out[-1], line))
    return joining.stack(out, axis)


def _quantile(
    name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, nan: bool
) -> Tensor:
    if input._array.dtype not in (np.float32, np.float64):
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype, got {input.dtype}")
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise RuntimeError(
            f"{name}(): interpolation must be linear, lower, higher, midpoint or nearest, got {interpolation!r}"
        )
    points = q._array if isinstance(q, Tensor) else np.asarray(q, input._array.dtype)
    if points.dtype != input._array.dtype or points.ndim > 1:
        raise RuntimeError(f"{name}(): q must be a number or a vector of dtype {input.dtype}, got {points.dtype}")
    if points.size and not (points.min() >= 0 and points.max() <= 1):
        raise RuntimeError(f"{name}() q values must be in the range [0, 1]")
    if input._array.size == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    ndim = input._array.ndim
    axis = 0 if dim is None else check_dim(dim, ndim)
    lines = input.reshape(-1) if dim is None or not ndim else input
    order = sorting.sort(lines, axis).values
    last = lines._array.shape[axis] - 1
    bad = np.isnan(lines._array).sum(axis, keepdims=True)
    spread = points.reshape(-1, *(1,) * lines._array.ndim)
    ranks = np.maximum(spread * ((last - bad if nan else np.full_like(bad, last))[None]), 0.0)
    if not nan:
        ranks = np.where(bad[None] > 0, last, ranks)  # NaN sorts last, so a line with NaN gives NaN
    scaled = ranks
    if isinstance(q, Tensor) and q.requires_grad:
        lasts = wrap(last - bad if nan else np.full_like(bad, last), input._dev)
        hidden = wrap(input._dev.xp.broadcast_to((bad > 0) & (not nan), ranks.shape), input._dev)
        scaled = (q.reshape(spread.shape) * lasts).masked_fill(hidden, last)
    if points.size:
        values = _between(order, ranks, axis, interpolation, scaled)
    else:
        values = order.narrow(axis, 0, 1).unsqueeze(0)[:0]
    if not keepdim:
        values = shaping.squeeze(values, axis + 1)
    elif dim is None or not ndim:
        values = values.reshape(values._array.shape[0], *(1,) * ndim)
    return values if points.ndim else shaping.squeeze(values, 0)


def _between(order: Tensor, ranks: Any, axis: int, interpolation: str, scaled: Any) -> Tensor:
    """Elements of sorted lines at fractional ranks: shape (ranks, *lines with 1 along axis).

    `scaled` are the ranks once more, recorded when q wants a gradient.
    """
    if interpolation == "nearest":
        ranks = np.rint(ranks)
    below, above = np.floor(ranks).astype(np.int64), np.ceil(ranks).astype(np.int64)
    lower, upper = (
        joining.stack([index_ops.take_along_axis.call(order, place, axis) for place in places])
        for places in (below, above)
    )
    if interpolation in ("lower", "nearest"):
        return lower
    if interpolation == "higher":
        return upper
    if interpolation == "midpoint":
        return arithmetic.lerp(lower, upper, 0.5)
    part = scaled - (wrap(below, order._dev) if isinstance(scaled, Tensor) else below)
    weight = part if isinstance(part, Tensor) else wrap(part.astype(order._array.dtype), order._dev)
    return arithmetic.lerp(lower, upper, weight)


@through_host
def quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The quantiles `q` (in [0, 1]) over `dim` (all when None); several give a new first dimension. NaN gives NaN."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@through_host
def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """`quantile` of the elements that are not NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median (the lower one of two) of the elements that are not NaN; with `dim` a pair (values, indices)."""
    if dim is None:
        flat = input.reshape(-1)
        return (
            sorting.shared(flat, nanmedian(flat.detach(), 0).values)
            if flat.numel()
            else sorting.median_of_none("nanmedian", input)
        )
    axis = check_dim(dim, input._array.ndim)
    array = input._array
    if array.ndim == 0:
        return return_types.nanmedian(sorting.sort(input))
    if array.shape[axis] == 0:
        raise IndexError(f"nanmedian(): Expected reduction dim {axis} to have non-zero size.")
    good = (array == array).sum(axis, keepdims=True)
    order = sorting.order_along(array, axis, False)
    places = np.take_along_axis(order, np.maximum(good - 1, 0) // 2, axis)
    return return_types.nanmedian(sorting.picked(input, places, axis, keepdim))


@through_host
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> return_types.mode:
    """The most frequent element along `dim` (the smallest of equally frequent) and the index of its last occurrence.

    NaN equals nothing, also not NaN: a line has it for its mode only if it has nothing else.
    """
    axis = check_dim(dim, input._array.ndim)
    if input._array.ndim == 0:
        return return_types.mode(sorting.sort(input))
    if input._array.shape[axis] == 0:
        raise IndexError(f"mode(): Expected reduction dim {axis} to have non-zero size.")
    lines = np.moveaxis(input._array, axis, -1)
    order = np.argsort(lines, -1, kind="stable")
    ranked = np.take_along_axis(lines, order, -1)
    places = np.arange(lines.shape[-1])
    begins = np.concatenate([np.ones((*lines.shape[:-1], 1), bool), ranked[..., 1:] != ranked[..., :-1]], -1)
    run = places - np.maximum.accumulate(np.where(begins, places, 0), -1)  # how many equal ones come before
    found = np.take_along_axis(order, np.argmax(run, -1)[..., None], -1)
    return return_types.mode(sorting.picked(input, np.moveaxis(found, -1, axis), axis, keepdim))


@rounded_once
def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariances of variables (rows) over observations (columns), with integer and real weights of the latter."""
    if input._array.ndim > 2:
        raise RuntimeError(f"cov(): expected input to have two or fewer dimensions but got {input._array.ndim}")
    x = rearranging.atleast_2d(input)
    if x._array.dtype.kind in "biu":
        x = shape_ops.astype.call(x, dtypes.default_np())
    count = x._array.shape[1]
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is not None and tuple(given.shape) != (count,):
            raise RuntimeError(f"cov(): expected {name} of shape ({count},), got {tuple(given.shape)}")
        if given is not None and (given._array.dtype.kind in "iu") != (name == "fweights"):
            wanted = "integers" if name == "fweights" else "floating point numbers"
            raise RuntimeError(f"cov(): expected {name} to be {wanted}, got {given.dtype}")
        if given is not None and count and float(given.min()) < 0:
            raise RuntimeError(f"cov(): {name} cannot be negative, got {given.min().item()}")
    weights: Any = fweights
    if aweights is not None:
        weights = aweights if fweights is None else fweights * aweights
    total: Any = count if weights is None else weights.sum()
    mean = (x if weights is None else x * weights).sum(1, keepdim=True) / total
    norm = total - correction
    if aweights is not None and correction:
        norm = total - correction * (weights * aweights).sum() / total
    centred = x - mean
    right = centred if weights is None else centred * weights
    free = max(norm, 0) if isinstance(norm, int) else arithmetic.clamp(norm, min=0)
    product = products.matmul(centred, arithmetic.conj(right).transpose(0, 1)) / free
    return product.squeeze()


@rounded_once
def corrcoef(input: Tensor) -> Tensor:
    """Pearson's correlations of variables (rows) over observations (columns)."""
    c = cov(input)
    if c._array.ndim == 0:
        return c / c
    size = arithmetic.sqrt(arithmetic.real(shaping.diagonal(c)))
    ratio = c / size.unsqueeze(1) / size.unsqueeze(0)
    return ratio if ratio.is_complex() else arithmetic.clamp(ratio, -1, 1)


def _steps(y: Tensor, x: Any, dx: Any, axis: int) -> Any:
    """The widths between samples, to multiply with along `axis`. RuntimeError unless each sample has its point."""
    if x is None:
        return 1.0 if dx is None else dx
    length, points = y._array.shape[axis], x._array.shape[axis - y._array.ndim if x._array.ndim > 1 else 0 :][:1]
    if points != (length,) and (x._array.ndim == 1 or points != (1,)):
        raise RuntimeError(
            f"trapezoid(): there must be one x value for each sample point, got {points[0] if points else 0} for "
            f"{length}: x {tuple(x.shape)}, y {tuple(y.shape)}"
        )
    if x._array.ndim == 1:
        return rearranging.diff(x).reshape(-1, *(1,) * (y._array.ndim - 1 - axis))
    return rearranging.diff(x, dim=axis - y._array.ndim)


def _areas(y: Tensor, x: Any, dx: Any, dim: int) -> tuple[Tensor, int]:
    if not y._array.ndim:
        raise IndexError(f"trapezoid(): dim {dim} of a tensor of 0 dimensions: it has none to integrate along")
    axis = check_dim(dim, y._array.ndim)
    length = y._array.shape[axis]
    y, x = (v.to(dtypes.int64) if v is not None and v._array.dtype.kind in "biu" else v for v in (y, x))
    ahead = joining.narrow(y, axis, 1, max(length - 1, 0)) if length else y
    behind = joining.narrow(y, axis, 0, max(length - 1, 0))
    return (ahead + behind) * _steps(y, x, dx, axis) / 2, axis


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integral along `dim` by trapezoids, between points `x`, or `dx` (1) apart; 0 of no samples."""
    if x is None and y._array.ndim == 1 and dim in (0, -1):
        found = one_pass.trapezoid(y, 1.0 if dx is None else dx)
        if found is not None:
            return found
    return _trapezoid(y, x, dx, dim)


@rounded_once
def _trapezoid(y: Tensor, x: Tensor | None, dx: Any, dim: int) -> Tensor:
    axis = check_dim(dim, y._array.ndim) if y._array.ndim else 0
    if 0 in y._array.shape[axis : axis + 1]:
        return y.new_zeros(y._array.shape[:axis] + y._array.shape[axis + 1 :])
    if x is None and y._array.ndim and y._array.shape[axis] > 1:  # each but the ends is in two areas
        y = y.to(dtypes.int64) if y._array.dtype.kind in "biu" else y
        last = y._array.shape[axis] - 1
        ends = (y.select(axis, 0) + y.select(axis, last)) / 2
        return (joining.narrow(y, axis, 1, last - 1).sum(axis) + ends) * _steps(y, None, dx, axis)
    areas, axis = _areas(y, x, dx, dim)
    return areas.sum(axis)


trapz = trapezoid


@rounded_once
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The running integral along `dim` by trapezoids: one element less than `y`."""
    areas, axis = _areas(y, x, dx, dim)
    return reducing.cumsum(areas, axis)


def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """Derivatives along each of `dim` by central differences of second order, one-sided at the edges.

    spacing: one number, one per dimension, or one vector of coordinates per dimension.
    """
    ndim = input._array.ndim
    axes = list(range(ndim)) if dim is None else [check_dim(d, ndim) for d in ([dim] if isinstance(dim, int) else dim)]
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"gradient: a dimension appears multiple times in dim={dim}")
    spacing = 1 if spacing is None else spacing
    steps = list(spacing) if isinstance(spacing, list | tuple) else [spacing] * len(axes)
    if len(steps) != len(axes):
        raise RuntimeError(f"gradient: expected {len(axes)} spacings, one per dimension, got {len(steps)}")
    if edge_order not in (1, 2):
        raise RuntimeError(f"gradient: edge_order must be 1 or 2, got {edge_order}")
    for axis in axes:
        if input._array.shape[axis] < edge_order + 1:
            raise RuntimeError(f"gradient: each dimension needs at least edge_order + 1 = {edge_order + 1} elements")
    return tuple(_slope(input, axis, step, edge_order) for axis, step in zip(axes, steps, strict=True))


def _slope(x: Tensor, axis: int, step: Any, edge_order: int) -> Tensor:
    """`gradient` along one dimension; 16-bit floats are computed in float32."""
    kind = x._array.dtype if x._array.dtype.kind in "fVc" else dtypes.default_np()
    wide = dtypes.from_numpy(np.dtype(np.float32) if kind.itemsize == 2 else kind)
    f = shaping.movedim(x if x._array.dtype.kind in "iu" else x.to(wide), axis, -1)
    rise, chord = (f[..., 1:] - f[..., :-1]).to(wide), (f[..., 2:] - f[..., :-2]).to(wide)  # exact of integers
    if isinstance(step, Tensor) and step._array.ndim:
        if step._array.shape != (f._array.shape[-1],):
            raise RuntimeError(
                f"gradient: expected a vector of {f.shape[-1]} coordinates, one per element, got {tuple(step.shape)}"
            )
        widths = rearranging.diff(step.to(wide))
        before, behind = widths[:-1], widths[1:]
        slopes = rise / widths
        inside = (slopes[..., :-1] * behind + slopes[..., 1:] * before) / (before + behind)
    else:
        slopes, inside = rise / float(step), chord / (2 * float(step))
    first, last = slopes[..., :1], slopes[..., -1:]
    if edge_order == 2:  # of the parabola through three points
        first, last = 2 * first - inside[..., :1], 2 * last - inside[..., -1:]
    return shaping.movedim(joining.cat([first, inside, last], -1), -1, axis).to(dtypes.from_numpy(kind))


@through_host
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements fall in each of `bins` equal bins of [min, max]; of the elements' range when both are equal."""
    if bins <= 0:
        raise RuntimeError(f"histc(): bins must be > 0, got {bins}")
    array = input._array
    if array.dtype.kind not in "fViu":
        raise NotImplementedError(f"histc(): not implemented for {input.dtype}")
    wide = pack.widened(array)
    low, high = _range("histc", wide, min, max)
    counts = _bin_counts(wide.reshape(-1), bins, float(low), float(high))
    return wrap(pack.astype(counts, array.dtype), input._dev)  # infinite where 16 bits do not hold them


def _bin_counts(values: Any, bins: int, low: float, high: float) -> Any:
    try:
        if values.dtype.kind == "f":
            edges = np.linspace(low, high, bins + 1, dtype=values.dtype)
            counts = _count_in_bins(values, edges) if (edges[1:] > edges[:-1]).all() else None
            if counts is not None:
                return counts
        return np.histogram(values, bins, (low, high))[0]
    except ValueError:  # numpy wants edges that differ in the values' dtype
        inside = values[(values >= low) & (values <= high)].astype(np.float64)
        place = np.minimum(((inside - low) * (bins / (high - low))).astype(np.int64), bins - 1)
        return np.bincount(place, minlength=bins)


def _range(name: str, array: Any, low: float, high: float) -> tuple[float, float]:
    if low == high and array.size:
        low, high = float(array.min()), float(array.max())
    if not (constants.isfinite(low) and constants.isfinite(high)):
        raise RuntimeError(f"{name}(): range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError(f"{name}(): max must be larger than min, got [{low}, {high}]")
    return (low - 1, high + 1) if low == high else (low, high)


@through_host
def histogram(
    input: Tensor, bins: Any = 100, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> return_types.histogram:
    """Counts (or sums of weights, or densities) of elements in `bins` equal bins or between the given edges."""
    array = input._array
    if array.dtype not in (np.float32, np.float64):
        raise NotImplementedError(f"histogram(): not implemented for {input.dtype}; supported: float32, float64")
    if isinstance(bins, Tensor):
        edges: Any = bins._array
    else:
        low, high = _range("histogram", array, *(range or ((0, 0) if array.size else (0, 1))))
        if range is None and array.size and low < float(array.min()):  # all equal: PyTorch widens by half as numpy does
            low, high = low + 0.5, high - 0.5
        edges = np.linspace(low, high, int(bins) + 1).astype(array.dtype)
    if weight is not None and weight._array.shape != array.shape:
        raise RuntimeError(
            f"histogram(): expected a weight for each element of {tuple(input.shape)}, got {tuple(weight.shape)}"
        )
    weights = None if weight is None else weight._array.reshape(-1)
    counts = np.histogram(array.reshape(-1), edges.astype(np.float64), weights=weights, density=density)[0]
    return return_types.histogram(
        (wrap(counts.astype(array.dtype), input._dev), wrap(input._dev.xp.asarray(edges), input._dev))
    )


@through_host
def histogramdd(
    input: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> return_types.histogramdd:
    """Counts (or sums of weights, or densities) of points (..., D) in a grid of bins in D dimensions.

    `bins`: how many there are in all dimensions or in each, or a tensor of edges for each. `range`: the lowest and the
    highest edge of the first dimension, of the second, ...
    """
    array = input._array
    if array.dtype not in (np.float32, np.float64):
        raise NotImplementedError(f"histogramdd(): not implemented for {input.dtype}; supported: float32, float64")
    if array.ndim < 2:
        raise RuntimeError(f"histogramdd(): input tensor should have at least 2 dimensions, got {array.ndim}")
    count = array.shape[-1]
    each = [bins] * count if isinstance(bins, int) else list(bins)
    if len(each) != count or (range is not None and len(range) != 2 * count):
        raise RuntimeError(f"histogramdd(): expected bins and two ends of a range for each of {count} dimensions")
    points = array.reshape(-1, count)
    edges = []
    for axis, wanted in enumerate(each):
        ends = None if range is None else tuple(range[2 * axis : 2 * axis + 2])
        edges.append(histogram(wrap(points[:, axis], input._dev), wanted, range=ends).bin_edges)
    weights = None if weight is None else weight._array.reshape(-1)
    wide = [edge._array.astype(np.float64) for edge in edges]
    counts = np.histogramdd(points, wide, weights=weights, density=density)[0]
    return return_types.histogramdd((wrap(counts.astype(array.dtype), input._dev), tuple(edges)))


@one_pass.preferring(one_pass.distance)
@rounded_once
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of input - other."""
    return reducing.norm(input - other, p)


@rounded_once
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Slices along `dim` whose p-norm exceeds `maxnorm`, scaled down to it."""
    axis = check_dim(dim, input._array.ndim)
    if input._array.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input._array.ndim} dimensions")
    if maxnorm < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    rest = [d for d in range(input._array.ndim) if d != axis]
    size = reducing.norm(input, p, rest, True)
    return input * indexing.where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)
