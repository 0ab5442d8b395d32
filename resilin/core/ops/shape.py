"""Shapes: views, rearrangements, joining and splitting. Dimensions are already counted from the front."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from resilin.core.kernels import contiguous
from resilin.core.kernels.loader import kernel
from resilin.core.ops.registry import op


@op(
    view=True,
    complex=True,
    samples=lambda r: [(r(3, 4), (2, 6)), (r(3, 4), (12,)), (r(1), ())],
    kernel=kernel("reshaped"),
)
def reshape(xp, x, shape=()):
    """The elements in C order under another shape; a view where the strides allow."""
    return x.reshape(shape)


@reshape.vjp
def _(xp, g, _y, _x, shape=()):
    return g.reshape(_x.shape)


@op(view=True, complex=True, samples=lambda r: [(r(3, 4), (1, 0)), (r(2, 3, 4), (2, 0, 1))])
def permute_dims(xp, x, axes=()):
    """Dimensions in the order `axes`."""
    return x.transpose(axes)


@permute_dims.vjp
def _(xp, g, _y, _x, axes=()):
    inverse = [0] * len(axes)
    for position, axis in enumerate(axes):
        inverse[axis] = position
    return xp.permute_dims(g, tuple(inverse))


@op(view=True, complex=True, samples=lambda r: [(r(3, 4), 0, 1), (r(2, 3, 4), 1, 2)])
def swapaxes(xp, x, a=0, b=1):
    """Dimensions `a` and `b` exchanged."""
    return x.swapaxes(a, b)


@swapaxes.vjp
def _(xp, g, _y, _x, a=0, b=1):
    return xp.swapaxes(g, a, b)


@op(view=True, complex=True, samples=lambda r: [(r(3, 4), 0), (r(3, 4), (0, 3))])
def expand_dims(xp, x, axis=0):
    """New dimensions of length 1 at `axis`."""
    return xp.expand_dims(x, axis)


@op(view=True, complex=True, samples=lambda r: [(r(3, 1, 4), 1), (r(1, 3, 1), None)])
def squeeze(xp, x, axis=None):
    """Without the dimensions `axis`, which have length 1 (all such when None)."""
    return xp.squeeze(x, axis)


@expand_dims.vjp
@squeeze.vjp
def _(xp, g, _y, _x, axis=None):
    return g.reshape(_x.shape)


@op(view=True, complex=True, samples=lambda r: [(r(3, 1), (2, 3, 4)), (r(), (2, 3))])
def broadcast_to(xp, x, shape=()):
    """Dimensions of length 1 stretched to `shape`, without a copy."""
    return xp.broadcast_to(x, shape)


@broadcast_to.vjp
def _(xp, g, _y, _x, shape=()):
    return g  # the engine sums over what was stretched


@op(view=True, complex=True, samples=lambda r: [(r(3, 4), 0, 0, 1), (r(3, 4, 5), 1, 0, 2)])
def diagonal(xp, x, offset=0, axis1=0, axis2=1):
    """The diagonal of dimensions `axis1` and `axis2`, as the last dimension."""
    return xp.diagonal(x, offset, axis1, axis2)


@diagonal.vjp
def _(xp, g, _y, _x, offset=0, axis1=0, axis2=1):
    rows = xp.arange(g.shape[-1]) + max(-offset, 0)
    columns = xp.arange(g.shape[-1]) + max(offset, 0)
    order = (axis1, axis2, *(i for i in range(_x.ndim) if i not in (axis1, axis2)))
    moved = xp.index_add_zeros(xp.moveaxis(g, -1, 0), tuple(_x.shape[i] for i in order), (rows, columns))
    return xp.permute_dims(moved, tuple(order.index(i) for i in range(_x.ndim)))


@op(
    complex=True, moves=True, samples=lambda r: [(r(6, 2), (2, 3, 2), (1, 2, 0), (6, 2)), (r(4, 1), (4,), (0,), (2, 2))]
)
def rearrange(xp, x, split=(), order=(), shape=()):
    """The elements, seen as `split` with its dimensions in `order`, copied in C order under another shape."""
    seen = x.reshape(split).transpose(order)
    return (seen.copy() if seen.flags.c_contiguous else xp.ascontiguousarray(seen)).reshape(shape)


@rearrange.vjp
def _(xp, g, _y, _x, split=(), order=(), shape=()):
    back = tuple(order.index(i) for i in range(len(order)))
    return xp.rearrange(g, tuple(split[i] for i in order), back, tuple(_x.shape))


@op(
    complex=True, moves=True, samples=lambda r: [(r(2, 3, 4), (0, 2, 1), (0, 2, 1)), (r(2, 3, 4), (2, 0, 1), (1, 2, 0))]
)
def laid_out(xp, x, order=(), back=()):
    """A copy whose dimensions lie in memory in `order`, of which `back` is the inverse."""
    return xp.array(x.transpose(order), copy=True, order="C").transpose(back)


@laid_out.vjp
def _(xp, g, _y, _x, order=(), back=()):
    return g


@op(complex=True, moves=True, samples=lambda r: [(r(3, 4), -1, 0)])
def moveaxis(xp, x, source=0, destination=0):
    """Dimension `source` moved to `destination`."""
    return xp.moveaxis(x, source, destination)


@moveaxis.vjp
def _(xp, g, _y, _x, source=0, destination=0):
    return xp.moveaxis(g, destination, source)


_interleaved = kernel("interleaved")


@op(complex=True, moves=True, samples=lambda r: [(r(3, 4), 0), (r(3, 4), (0, 1))], kernel=kernel("flip"))
def flip(xp, x, axis=0):
    """The order along `axis` reversed (a copy)."""
    return xp.flip(x, axis).copy()


@flip.vjp
def _(xp, g, _y, _x, axis=0):
    return xp.flip(g, axis)


@op(
    complex=True,
    moves=True,
    samples=lambda r: [(r(3, 4), 1, None), (r(3, 4), (1, -2), (0, 1))],
    kernel=kernel("roll"),
)
def roll(xp, x, shift=0, axis=None):
    """Elements moved by `shift` along `axis`; those that leave come back at the start."""
    return xp.roll(x, shift, axis)


@roll.vjp
def _(xp, g, _y, _x, shift=0, axis=None):
    back = tuple(-s for s in shift) if isinstance(shift, tuple) else -shift
    return xp.roll(g, back, axis)


@op(complex=True, moves=True, samples=lambda r: [(r(3, 4), (2, 1)), (r(2), (2, 3))], kernel=kernel("tile"))
def tile(xp, x, reps=()):
    """`x` repeated `reps` times along the dimensions (as many as `x` has, or more in front)."""
    return xp.tile(x, reps)


@tile.vjp
def _(xp, g, _y, _x, reps=()):
    shape = (1,) * (len(reps) - _x.ndim) + tuple(_x.shape)
    split = tuple(part for pair in zip(reps, shape, strict=True) for part in pair)
    return xp.sum(g.reshape(split), axis=tuple(range(0, len(split), 2))).reshape(_x.shape)


@op(complex=True, moves=True, samples=lambda r: [(r(3, 4), ((1, 2), (0, 1)), 0.0)], kernel=kernel("pad_constant"))
def pad_constant(xp, x, widths=(), value=0.0):
    """`widths[i]` = (before, after) elements of `value` around dimension i; negative widths cut."""
    nothing = type(value) is float and value == 0.0 and math.copysign(1.0, value) > 0
    cut, shape, inside = _padding(x.shape, tuple(widths))
    inner = x if cut is None else x[cut]
    out = xp.zeros(shape, x.dtype) if nothing else xp.full(shape, value, dtype=x.dtype)
    out[inside] = inner
    return out


@functools.lru_cache(256)
def _padding(lengths: tuple[int, ...], widths: tuple[tuple[int, int], ...]) -> tuple[Any, list[int], tuple[slice, ...]]:
    """What is cut out (None: all of it), the padded shape, and where what was cut out lies in it."""
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, lengths, strict=True))
    kept = [max(part.stop - part.start, 0) for part in cut]
    grow = [(max(a, 0), max(b, 0)) for a, b in widths]
    whole = all(a >= 0 and b >= 0 for a, b in widths)
    shape = [n + a + b for n, (a, b) in zip(kept, grow, strict=True)]
    return None if whole else cut, shape, tuple(slice(a, a + n) for n, (a, _) in zip(kept, grow, strict=True))


@pad_constant.vjp
def _(xp, g, _y, _x, widths=(), value=0.0):
    return xp.pad_constant(g, tuple((-a, -b) for a, b in widths))


@op(complex=True, moves=True, samples=lambda r: [(r(3, 4), 0), (r(2, 3, 3), -1)])
def tril(xp, x, diagonal=0):
    """The part on and below a diagonal; zeros above."""
    found = contiguous.triangle(x, diagonal, False)
    return xp.tril(x, diagonal) if found is None else found


@tril.vjp
def _(xp, g, _y, _x, diagonal=0):
    return xp.tril(g, diagonal)


@op(complex=True, moves=True, samples=lambda r: [(r(3, 4), 0), (r(2, 3, 3), 1)])
def triu(xp, x, diagonal=0):
    """The part on and above a diagonal; zeros below."""
    found = contiguous.triangle(x, diagonal, True)
    return xp.triu(x, diagonal) if found is None else found


@triu.vjp
def _(xp, g, _y, _x, diagonal=0):
    return xp.triu(g, diagonal)


@op(complex=True, moves=True, samples=lambda r: [(r(3, 4),)])
def copy(xp, x):
    """The same elements in new memory, in C order."""
    return xp.array(x, copy=True) if x.flags.c_contiguous else xp.ascontiguousarray(x)


@op(complex=True, moves=True, samples=lambda r: [(r(3, 4),)])
def ascontiguous(xp, x):
    """The same elements in C order."""
    return xp.ascontiguousarray(x)


@copy.vjp
@ascontiguous.vjp
def _(xp, g, _y, _x):
    return g


@op(
    view=True,
    complex=True,
    moves=True,
    quiet=True,
    samples=lambda r: [(r(3, 4), "float64"), (r(3), "float32")],
    order=0,
    kernel=kernel("convert_elements"),
)
def astype(xp, x, dtype=None):
    """Converted to `dtype`; a copy unless it has that dtype, then a view of all of it."""
    return xp.astype(x, dtype)


@astype.vjp
def _(xp, g, _y, _x, dtype=None):
    return g  # the engine converts back


@op(
    tensors=-1,
    complex=True,
    moves=True,
    quiet=False,
    samples=lambda r: [([r(2, 3), r(4, 3)], 0, (2, 4)), ([r(2, 3), r(2, 1)], 1, (3, 1))],
)
def concat(xp, arrays, axis=0, sizes=()):
    """Arrays joined along an existing dimension; `sizes` are their lengths there."""
    return xp.concatenate(arrays, axis)


@concat.vjp_sequence
def _(xp, needs, g, _x, axis=0, sizes=()):
    parts = []
    start = 0
    for need, size in zip(needs, sizes, strict=True):
        index = (slice(None),) * axis + (slice(start, start + size),)
        parts.append(g[index] if need else None)
        start += size
    return parts


@op(
    tensors=-1,
    complex=True,
    moves=True,
    quiet=False,
    samples=lambda r: [([r(2, 3), r(2, 3)], 0), ([r(2), r(2), r(2)], 1)],
)
def stack(xp, arrays, axis=0):
    """Arrays of one shape joined along a new dimension."""
    return xp.stack(arrays, axis)


@stack.vjp_sequence
def _(xp, needs, g, _x, axis=0):
    index = (slice(None),) * axis
    return [g[(*index, i)] if need else None for i, need in enumerate(needs)]


@op(outputs=0, complex=True, moves=True, samples=lambda r: [(r(5, 3), 0, (2, 3)), (r(2, 6), 1, (1, 2, 3))])
def split_parts(xp, x, axis=0, sizes=()):
    """Views of consecutive parts of the given sizes along `axis`."""
    parts = []
    start = 0
    for size in sizes:
        parts.append(x[(slice(None),) * axis + (slice(start, start + size),)])
        start += size
    return tuple(parts)


@split_parts.vjp_all
def _(xp, needs, g, _y, _x, axis=0, sizes=()):
    like = next(part for part in g if part is not None)
    shape = tuple(like.shape)
    filled = [
        xp.zeros_like(like, shape=(*shape[:axis], size, *shape[axis + 1 :])) if part is None else part
        for part, size in zip(g, sizes, strict=True)
    ]
    return (xp.concat(filled, axis),)


@op(view=True, complex=True, samples=lambda r: [(r(3, 4),)])
def real(xp, x):
    """The real part."""
    return x.real


@real.vjp
def _(xp, g, _y, _x):
    return g


@op(view=True, complex=True, samples=lambda r: [(r(3, 4, complex=True),)])
def imag(xp, x):
    """The imaginary part of a complex array."""
    return x.imag


@imag.vjp
def _(xp, g, _y, _x):
    return g * 1j


@op(complex=True, samples=lambda r: [(r(3, 4),)])
def conj(xp, x):
    """The complex conjugate; real arrays as they are."""
    return xp.conj(x)


@conj.vjp
def _(xp, g, _y, _x):
    return xp.conj(g)


@op(takes="biuf", samples=lambda r: [(r(3, 4), r(3, 4))])
def make_complex(xp, re, im):
    """Complex numbers with these real and imaginary parts; unlike re + 1j * im also of infinities and NaN."""
    if isinstance(re, np.ndarray) and (found := _interleaved(re, im)) is not None:
        return found
    total = re + im
    narrow = total.dtype.kind in "fV" and total.dtype.itemsize <= 4
    out = xp.empty(total.shape, "complex64" if narrow else "complex128")
    out.real[...] = re
    out.imag[...] = im
    return out


@make_complex.vjp(0)
def _(xp, g, _y, _re, _im):
    return xp.real(g)


@make_complex.vjp(1)
def _(xp, g, _y, _re, _im):
    return xp.imag(g)
