"""Reductions and scans. `axis` is None (all), an int or a tuple of ints, already counted from the front.

`xp.sum` and `xp.mean` of a backend are accurate along every axis (`kernels/reduce_rows.py` states numpy's order); what
is made of them here is computed in float32 for 16-bit floats. Scans add in the next wider dtype.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from resilin.core.kernels import pack, reduce_rows, scan
from resilin.core.kernels.loader import kernel
from resilin.core.ops.registry import op, override

_native_var, _native_std = kernel("var_last"), kernel("std_last")

# x: input, y: output, g: gradient of y


def _axes(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4),), (r(3, 4), 0), (r(2, 3, 4), (0, 2), True), (r(3, 4), 1, True)]


def _spread(xp, value, axis, keepdims):
    """`value` of a reduction with the reduced dimensions back, as length 1."""
    if axis is None or keepdims:
        return value
    return xp.expand_dims(value, axis)


def _count(shape, axis):
    if axis is None:
        axis = tuple(range(len(shape)))
    elif isinstance(axis, int):
        axis = (axis,)
    count = 1
    for i in axis:
        count *= shape[i]
    return count


def _wide(x):
    """16-bit floats as float32, whose squares and sums neither overflow nor saturate."""
    if isinstance(x, np.ndarray):
        return pack.widened(x)
    return x.astype("float32") if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x


def _wide_in_rule(xp, x):
    """`_wide` of a rule's argument, which is a tensor when derivatives of the rule are wanted."""
    return xp.astype(x, "float32") if str(x.dtype) in ("float16", "bfloat16") else x


@op(complex=True, narrow=True, samples=_axes, kernel=kernel("sum_axes"))
def sum(xp, x, axis=None, keepdims=False):
    """The sum over `axis`."""
    return xp.sum(x, axis, keepdims=keepdims)


@sum.vjp
def _(xp, g, _y, _x, axis=None, keepdims=False):
    return xp.broadcast_to(_spread(xp, g, axis, keepdims), _x.shape)


@op(takes="fc", complex=True, narrow=True, samples=_axes, kernel=kernel("mean_axes"))
def mean(xp, x, axis=None, keepdims=False):
    """The arithmetic mean over `axis`; NaN when it is empty."""
    return xp.mean(x, axis=axis, keepdims=keepdims)


@mean.vjp
def _(xp, g, _y, _x, axis=None, keepdims=False):
    count = _count(_x.shape, axis)
    return xp.broadcast_to(_divided(xp, _spread(xp, g, axis, keepdims), count or float("nan")), _x.shape)


def _divided(xp, g, count):
    """g / count, which may be more than float16 holds."""
    dtype = getattr(g.dtype, "np", g.dtype)
    return g / count if dtype.itemsize > 2 else xp.astype(xp.astype(g, np.dtype(np.float32)) / count, dtype)


def _with_zeros(r: Any) -> Any:
    """No 0, one and two in a line: the derivatives of products differ there."""
    x = r(3, 4, low=0.5, high=2.0)
    x[1, 2] = x[2, 0] = x[2, 3] = 0
    return x


@op(
    complex=True,
    samples=lambda r: [*_axes(r), (_with_zeros(r), 1), (_with_zeros(r)[1],)],
    kernel=kernel("product_last"),
)
def prod(xp, x, axis=None, keepdims=False):
    """The product over `axis`."""
    return xp.prod(_wide(x), axis=axis, keepdims=keepdims).astype(x.dtype, copy=False)


@prod.vjp
def _(xp, g, y, x, axis=None, keepdims=False):
    if isinstance(x, np.ndarray) and x.dtype.kind in "fc" and np.count_nonzero(x) == x.size:
        others = _spread(xp, y, axis, keepdims) / x  # what follows of numbers without a 0, in two passes
        return _spread(xp, g, axis, keepdims) * (xp.conj(others) if x.dtype.kind == "c" else others)
    # The product of the others at a 0: of all that is not 0 when there is one 0, and times the other 0 when there are
    # two, which is 0 itself and has a derivative.
    g, y = _spread(xp, g, axis, keepdims), _spread(xp, y, axis, keepdims)
    zero = x == 0
    filled = xp.where(zero, xp.ones_like(x), x)
    zeros = xp.where(zero, x, xp.zeros_like(x))
    number = xp.count_nonzero(zero, axis, keepdims=True)
    alone, pair = xp.astype(number == 1, x.dtype), xp.astype(number == 2, x.dtype)
    other = xp.sum(zeros, axis, keepdims=True) - zeros
    others = (alone + pair * other) * xp.prod(filled, axis=axis, keepdims=True)
    return g * xp.conj(xp.where(zero, others, y / filled))


def _not_empty(name, x, axis):
    """IndexError, as in PyTorch, when there is no element to choose from."""
    if x.size:
        return
    if axis is None:
        raise IndexError(f"{name}(): Expected reduction dim to be specified for input.numel() == 0.")
    for i in (axis,) if isinstance(axis, int) else axis:
        if x.shape[i] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {i} to have non-zero size.")


@op(takes="biuf", samples=_axes, kernel=kernel("largest_last"))
def amax(xp, x, axis=None, keepdims=False):
    """The largest element over `axis`, NaN if there is one; ties share the gradient, as NaNs do."""
    _not_empty("amax", x, axis)
    return xp.max(x, axis=axis, keepdims=keepdims)


@op(takes="biuf", samples=_axes, kernel=kernel("smallest_last"))
def amin(xp, x, axis=None, keepdims=False):
    """The smallest element over `axis`, NaN if there is one; ties share the gradient, as NaNs do."""
    _not_empty("amin", x, axis)
    return xp.min(x, axis=axis, keepdims=keepdims)


@amax.vjp
@amin.vjp
def _(xp, g, y, x, axis=None, keepdims=False):
    y = _spread(xp, y, axis, keepdims)
    mine = xp.astype(xp.logical_or(x == y, xp.logical_and(x != x, y != y)), g.dtype)
    return _spread(xp, g, axis, keepdims) * mine / xp.sum(mine, axis, keepdims=True)


def _variance(xp, x, axis, correction, keepdims):
    count = _count(x.shape, axis)
    count = max(count - correction, 0) if count else 0
    centred = _centred(xp, x, axis)
    square = (centred * xp.conj(centred)).real if x.dtype.kind == "c" else centred * centred
    total = xp.sum(square, axis=axis, keepdims=keepdims)
    return total / total.dtype.type(count)


def _centred(xp, x, axis):
    """x without its mean. The mean is rounded to x's dtype: what that leaves, which may be as large as the spread of
    numbers far from 0, is taken off in a second pass."""
    centred = x - xp.mean(x, axis=axis, keepdims=True)
    return centred - xp.mean(centred, axis=axis, keepdims=True)


def _well_in_range(xp, y):
    """Whether no element of y is so large or so small that squares on the way to it may have left the range."""
    low, high = _ranges(y.dtype)
    return not xp.elements or bool(xp.max(y) < high and xp.min(y) > low)


@functools.cache
def _ranges(dtype):
    info = np.finfo(dtype)
    return info.tiny * 2**60, info.max / 2**10


def _deviation(xp, x, axis, correction, keepdims, root):
    """The variance of x, or its root. Where squares leave the range of float32 they are summed in float64, as in
    PyTorch; where they leave that of float64, the numbers are scaled by a power of two before."""
    wide, scale, native = _wide(x), None, _native_std if root else _native_var
    y = native(wide, axis, correction, keepdims) if isinstance(wide, np.ndarray) else None
    if y is not None:
        return _returned(y, x)
    y = _variance(xp, wide, axis, correction, keepdims)
    if y.size and wide.size and not _well_in_range(xp, y):
        complex_ = x.dtype.kind == "c"
        if y.dtype == np.float32:
            wide = wide.astype("complex128" if complex_ else "float64")
        else:
            largest = xp.max(xp.absolute(wide), axis=axis, keepdims=True)
            exponent = xp.frexp(xp.where(xp.isfinite(largest), largest, xp.ones_like(largest)))[1]
            scale = xp.exp2(xp.clip(exponent, -1000, 1000).astype("float64"))
            wide = wide / scale
            scale = scale if keepdims else xp.squeeze(scale, axis)
        y = _variance(xp, wide, axis, correction, keepdims)
    y = xp.sqrt(y) if root else y
    if scale is not None:
        y = y * scale if root else y * scale * scale
    return y.astype("float32") if x.dtype == np.complex64 else _returned(y, x)


def _returned(y, x):
    """`y`, computed from `_wide(x)`, in the dtype of the op's result: that of x, or of its size if x is complex."""
    return y if x.dtype.kind == "c" else y.astype(x.dtype, copy=False)


_SPREADS: Any = {"complex": True, "samples": lambda r: [(r(3, 4),), (r(3, 4), 0, 1), (r(2, 3, 4), (0, 2), 0, True)]}


@op(takes="fc", kernel=kernel("var_last"), **_SPREADS)
def var(xp, x, axis=None, correction=1, keepdims=False):
    """The variance over `axis`, dividing by n - correction."""
    return _deviation(xp, x, axis, correction, keepdims, root=False)


@var.vjp
def _(xp, g, _y, x, axis=None, correction=1, keepdims=False):
    count, x = _count(x.shape, axis) - correction, _wide_in_rule(xp, x)
    g = _spread(xp, g, axis, keepdims)
    if count > 0 or axis is not None:
        return g * (2 / count if count else float("inf")) * _centred(xp, x, axis)
    # as in PyTorch: of all elements, the quotient by nothing is infinite, but for an element that is the mean
    flat, one = x == xp.mean(x, axis=axis, keepdims=True), xp.ones_like(x)
    return g * xp.where(flat, one * float("nan"), one * float("inf"))


@op(takes="fc", kernel=kernel("std_last"), **_SPREADS)
def std(xp, x, axis=None, correction=1, keepdims=False):
    """The square root of the variance over `axis`; the gradient of equal numbers is zero, as in PyTorch."""
    return _deviation(xp, x, axis, correction, keepdims, root=True)


@std.vjp
def _(xp, g, y, x, axis=None, correction=1, keepdims=False):
    count = max(_count(x.shape, axis) - correction, 0) or float("nan")
    x, y = _wide_in_rule(xp, x), _spread(xp, y, axis, keepdims)
    flat = y == 0
    ratio = _centred(xp, x, axis) / xp.where(flat, xp.ones_like(y), y)  # within a range of count
    return _spread(xp, g, axis, keepdims) * xp.where(flat, xp.zeros_like(ratio), ratio) * (1 / count)


@op(takes="fc", complex=True, samples=_axes, kernel=kernel("log_sum_last"))
def logsumexp(xp, x, axis=None, keepdims=False):
    """log(sum(exp(x))) over `axis`, -inf of none; shifted by the maximum, so it cannot overflow."""
    wide = _wide(x)
    # numpy orders complex numbers by their real parts first; the real part is all that can overflow
    m = xp.max(xp.real(wide), axis=axis, keepdims=True, initial=-float("inf"))
    m = xp.where(xp.isfinite(m), m, xp.zeros_like(m))
    y = (m + xp.log(xp.sum(xp.exp(wide - m), axis=axis, keepdims=True))).astype(x.dtype, copy=False)
    return y if keepdims else xp.squeeze(y, axis)


@logsumexp.vjp
def _(xp, g, y, x, axis=None, keepdims=False):
    return _spread(xp, g, axis, keepdims) * xp.conj(xp.exp(x - _spread(xp, y, axis, keepdims)))


@op(
    takes="fc",
    complex=True,
    samples=lambda r: [(r(3, 4),), (r(3, 4), 0), (r(3, 4), 1, True)],
    kernel=kernel("norm_last"),
)
def norm2(xp, x, axis=None, keepdims=False):
    """The Euclidean norm over `axis`; the gradient of a zero vector is zero."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "fV":
        return reduce_rows.norm(x, axis, keepdims)
    size = xp.absolute(_wide(x))
    return _returned(xp.sqrt(xp.sum(size * size, axis=axis, keepdims=keepdims)), x)


@norm2.vjp
def _(xp, g, y, x, axis=None, keepdims=False):
    y = _spread(xp, y, axis, keepdims)
    safe = xp.where(y == 0, xp.ones_like(y), y)
    return x / safe * _spread(xp, g, axis, keepdims)


@op(
    takes="f",
    samples=lambda r: [(r(3, 4, low=0.5, high=2.0), None, False, 3.0), (r(3, 4, low=0.5, high=2.0), 0, True, -1.0)],
)
def norm_of(xp, x, axis=None, keepdims=False, p=3.0):
    """The p-norm over `axis` of numbers that are not negative, for p other than 0 and infinity.

    An element that is 0 has the gradient 0, as in PyTorch.
    """
    return _returned(xp.sum(_wide(x) ** p, axis=axis, keepdims=keepdims) ** (1 / p), x)


@norm_of.vjp
def _(xp, g, y, x, axis=None, keepdims=False, p=3.0):
    y = _spread(xp, y, axis, keepdims)
    flat = xp.logical_or(x == 0, y == 0)
    ratio = xp.where(flat, xp.ones_like(x), x) / xp.where(y == 0, xp.ones_like(y), y)
    return xp.where(flat, xp.zeros_like(x), ratio ** (p - 1) * _spread(xp, g, axis, keepdims))


@op(complex=True, samples=lambda r: [(r(3, 4), 0), (r(3, 4), 1)])
def cumsum(xp, x, axis=0):
    """Running sums along `axis`, ascending, added in float64 (complex128) and rounded to x's dtype."""
    return scan.accumulate(xp.add, x, axis)


@cumsum.vjp
def _(xp, g, _y, _x, axis=0):
    return xp.flip(xp.cumsum(xp.flip(g, axis), axis), axis) if g.ndim else g


override(
    "cumsum",
    "cpu",
    lambda xp, x, axis: scan.running_sum(x, axis),
    lambda xp, needs, g, _y, _x, axis: (scan.running_sum(g, axis, reverse=True),),
)


@op(complex=True, samples=lambda r: [(r(3, 4, low=0.5, high=2.0), 0), (_with_zeros(r), 1), (_with_zeros(r), 0)])
def cumprod(xp, x, axis=0):
    """Running products along `axis`, ascending, multiplied in float64 (complex128) and rounded to x's dtype."""
    return scan.accumulate(xp.multiply, x, axis)


@cumprod.vjp
def _(xp, g, y, x, axis=0):
    # Before the first 0 the other factors' product is y / x; at it, the product with that factor left out; behind it,
    # the same of the factors without it, times that 0, which is 0 itself and has a derivative.
    if not g.ndim:
        return g
    zero = x == 0
    if isinstance(zero, np.ndarray) and not zero.any():  # most calls
        return _from_here_on(xp, g * xp.conj(y), axis) / xp.conj(x)
    seen = xp.cumsum(xp.astype(zero, x.dtype), axis)
    first, second = (xp.logical_and(zero, seen == n) for n in (1, 2))
    one, nothing = xp.ones_like(x), xp.zeros_like(x)
    filled = xp.where(zero, one, x)
    without = xp.where(first, one, x)
    quotient = _from_here_on(xp, g * xp.conj(y), axis) / xp.conj(filled)
    alone = _from_here_on(xp, g * xp.conj(xp.cumprod(without, axis)), axis)
    alone_again = _from_here_on(xp, g * xp.conj(xp.cumprod(xp.where(second, one, without), axis)), axis)
    behind = xp.where(second, alone_again, xp.where(seen == 1, alone / xp.conj(filled), nothing))
    behind = xp.where(xp.isfinite(behind), behind, nothing) * xp.conj(xp.cumsum(xp.where(first, x, nothing), axis))
    return xp.where(seen == 0, quotient, xp.where(first, alone, behind))


def _from_here_on(xp, x, axis):
    return xp.flip(xp.cumsum(xp.flip(x, axis), axis), axis)


override(
    "cumprod",
    "cpu",
    lambda xp, x, axis: scan.running_product(x, axis),
    cumprod.generic.vjp,
)


@op(takes="f", host="CuPy's logaddexp does not accumulate", samples=lambda r: [(r(3, 4), 0), (r(3, 4), 1)])
def logcumsumexp(xp, x, axis=0):
    """log of the running sums of exp(x) along `axis`, ascending, in float64, each rounded to x's dtype."""
    return scan.accumulate(xp.logaddexp, x, axis)


@logcumsumexp.vjp
def _(xp, g, y, x, axis=0):
    # exp(x_j - y_j) times the sum of g_i exp(y_j - y_i) over i >= j, whose exponentials are at most 1: sums of 1, 2,
    # 4, ... terms, each of two halves
    if not g.ndim:
        return g
    n, total, nothing = g.shape[axis], g, xp.zeros_like(g)
    place = xp.cumsum(xp.ones_like(g), axis)
    for step in [1 << k for k in range((n - 1).bit_length())]:
        inside = place <= n - step
        decay = xp.exp(xp.where(inside, y - xp.roll(y, -step, axis), nothing))
        total = total + xp.where(inside, decay * xp.roll(total, -step, axis), nothing)
    return xp.exp(x - y) * total


override(
    "logcumsumexp",
    "cpu",
    lambda xp, x, axis: scan.running_log_sum(x, axis),
    lambda xp, needs, g, _y, x, axis: (scan.running_log_sum_backward(g, x, axis),),
)


def _test(name: str) -> Any:
    def forward(xp, x, axis=None, keepdims=False):
        return getattr(xp, name)(x, axis=axis, keepdims=keepdims)

    forward.__name__ = name
    forward.__doc__ = f"numpy's {name} over `axis`; no gradient."
    return op(differentiable=False, single=True, samples=lambda r: [(r(3, 4),), (r(3, 4), 0), (r(3, 4), 1, True)])(
        forward
    )


any, all, count_nonzero = (_test(name) for name in ("any", "all", "count_nonzero"))


@op(
    takes="biuf",
    differentiable=False,
    single=True,
    samples=lambda r: [(r(3, 4),), (r(3, 4), 0), (r(3, 4), 1, True)],
    kernel=kernel("largest_place"),
)
def argmax(xp, x, axis=None, keepdims=False):
    """Index of the largest element (the first of equals)."""
    _not_empty("argmax", x, axis)
    return xp.argmax(x, axis=axis, keepdims=keepdims)


@op(
    takes="biuf",
    differentiable=False,
    single=True,
    samples=lambda r: [(r(3, 4),), (r(3, 4), 0), (r(3, 4), 1, True)],
    kernel=kernel("smallest_place"),
)
def argmin(xp, x, axis=None, keepdims=False):
    """Index of the smallest element (the first of equals)."""
    _not_empty("argmin", x, axis)
    return xp.argmin(x, axis=axis, keepdims=keepdims)
