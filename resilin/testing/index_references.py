"""What indexing, scattering and views give, written out on numpy arrays element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def _places(shape: Any, index: Any) -> Array:
    """The flat positions that `index` picks of an array of `shape`."""
    return np.arange(int(np.prod(shape))).reshape(shape)[index]


def index_add_zeros(g: Array, shape: Any, index: Any, once: bool = False) -> Array:
    """Element by element."""
    out = np.zeros(int(np.prod(shape)), g.dtype)
    for place, value in zip(np.ravel(_places(shape, index)), np.ravel(g), strict=True):
        out[place] += value
    return out.reshape(shape)


def index_put(x: Array, value: Array, index: Any) -> Array:
    """Element by element."""
    out, places = np.array(x).reshape(-1), _places(x.shape, index)
    for place, one in zip(np.ravel(places), np.ravel(np.broadcast_to(value, places.shape)), strict=True):
        out[place] = one
    return out.reshape(x.shape)


def _along(index: Array, axis: int) -> Any:
    """(place in `index`, the place in the other array that it names along `axis`)."""
    for place in np.ndindex(*index.shape):
        yield place, (*place[:axis], index[place], *place[axis + 1 :])


def scatter(x: Array, value: Array, index: Array, axis: int) -> Array:
    """Element by element."""
    out = np.array(x)
    for place, to in _along(index, axis):
        out[to] = value[place]
    return out


def scatter_add_zeros(g: Array, shape: Any, axis: int, index: Array) -> Array:
    """Element by element."""
    out = np.zeros(shape, g.dtype)
    for place, to in _along(index, axis):
        out[to] += g[place]
    return out


def scatter_add_to(x: Array, g: Array, axis: int, index: Array) -> Array:
    """Element by element."""
    out = np.array(x)
    for place, to in _along(index, axis):
        out[to] += g[place]
    return out


def index_add_to(x: Array, g: Array, index: Any) -> Array:
    """Element by element of the places that the index picks."""
    out, places = np.array(x).reshape(-1), _places(x.shape, index)
    for place, value in zip(np.ravel(places), np.ravel(g), strict=True):
        out[place] += value
    return out.reshape(x.shape)


def scatter_product(x: Array, src: Array, index: Array, axis: int, own: Array) -> Array:
    """Element by element."""
    out = np.where(own, x, np.ones_like(x))
    for place, to in _along(index, axis):
        out[to] *= src[place]
    return out


def scatter_extreme(x: Array, src: Array, index: Array, axis: int, largest: bool, own: Array) -> Array:
    """Element by element."""
    candidates: dict[Any, list[Any]] = {to: [x[to]] if own[to] else [] for to in np.ndindex(*x.shape)}
    for place, to in _along(index, axis):
        candidates[tuple(map(int, to))].append(src[place])
    return np.reshape([(max if largest else min)(values) for values in candidates.values()], x.shape)


def view_as_real(x: Array) -> Array:
    """Real and imaginary parts side by side."""
    return np.stack([np.real(x), np.imag(x)], -1)


def view_as_complex(x: Array) -> Array:
    """The first of two plus i times the second."""
    return x[..., 0] + 1j * x[..., 1]


def as_strided(x: Array, size: Any, stride: Any, offset: int) -> Array:
    """Each element from its place in the memory."""
    flat = x.reshape(-1)
    places = [offset + sum(i * s for i, s in zip(at, stride, strict=True)) for at in np.ndindex(*size)]
    return flat[places].reshape(size)


def pad_constant(x: Array, widths: Any, value: float) -> Array:
    """The array in the middle of constants."""
    out = np.full([n + before + after for n, (before, after) in zip(x.shape, widths, strict=True)], value, x.dtype)
    out[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths, strict=True))] = x
    return out


def split_parts(x: Array, axis: int, sizes: Any) -> tuple[Array, ...]:
    """numpy's split at the sums of the sizes."""
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


def einsum_terms(arrays: Any, terms: Any, out: str) -> Array:
    """All products first, then the sums."""
    letters = sorted({letter for term in terms for letter in term})
    product: Array = 1
    for array, term in zip(arrays, terms, strict=True):
        order = np.argsort([letters.index(letter) for letter in term])
        lengths = [array.shape[term.index(letter)] if letter in term else 1 for letter in letters]
        product = product * array.transpose(order).reshape(lengths)
    total = product.sum(axis=tuple(i for i, letter in enumerate(letters) if letter not in out))
    left = [letter for letter in letters if letter in out]
    return np.transpose(total, [left.index(letter) for letter in out])


def resample(x: Array, rows: Array, columns: Array, weights: Array, size: int, axis: int) -> Array:
    """Term by term."""
    source = np.moveaxis(x, axis, 0)
    out = np.zeros((size, *source.shape[1:]), x.dtype)
    for k, (row, column) in enumerate(zip(rows, columns, strict=True)):
        out[row] = out[row] + source[column] * (1 if weights is None else weights[k])
    return np.moveaxis(out, 0, axis)


def weighted_points(x: Array, weights: Array, places: Array) -> Array:
    """Point by point."""
    out = np.zeros((*x.shape[:2], places.shape[2]), x.dtype)
    for k, n, p in np.argwhere(places >= 0):
        out[n, :, p] = out[n, :, p] + weights[k, n, p] * x[n, :, places[k, n, p]]
    return out


ALL = {
    fn.__name__: fn
    for fn in (
        index_add_zeros, index_put, scatter, scatter_add_zeros, scatter_product, scatter_extreme, as_strided,
        scatter_add_to, index_add_to,
        view_as_real, view_as_complex,
        pad_constant, split_parts, einsum_terms, resample, weighted_points,
    )
}  # fmt: skip
