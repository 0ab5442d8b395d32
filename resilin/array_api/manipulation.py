"""Shapes under the standard's signatures: `axis` instead of `dim`, and every argument in one tuple."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.array_api.types import promoted
from resilin.core.api.manipulation import indexing, joining, rearranging, shaping
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor

Axis = int | tuple[int, ...] | None


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Views of all tensors in their common shape."""
    return list(rearranging.broadcast_tensors(*arrays))


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """A view with dimensions of length 1 stretched to `shape`."""
    return shaping.broadcast_to(x, shape)


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors joined along `axis` in their common dtype; flattened first when it is None."""
    parts = promoted(*arrays)
    if axis is None:
        return joining.cat([shaping.ravel(x) for x in parts], 0)
    return joining.cat(parts, axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new dimension, in their common dtype."""
    return joining.stack(promoted(*arrays), axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Views of all slices along `axis`."""
    return joining.unbind(x, axis)


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """A view with a new dimension of length 1 at `axis`."""
    return shaping.unsqueeze(x, axis)


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """A view without the dimensions `axis`. ValueError when one of them has a length other than 1."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    for one in axes:
        if x.shape[check_dim(one, x.ndim)] != 1:
            raise ValueError(f"squeeze: dimension {one} of shape {tuple(x.shape)} has a length other than 1")
    return shaping.squeeze(x, axes)


def flip(x: Tensor, /, *, axis: Axis = None) -> Tensor:
    """The order along `axis` (every dimension when None) reversed."""
    return shaping.flip(x, tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis)


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """A view with dimensions moved."""
    return shaping.movedim(x, source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """A view with the dimensions in the order `axes`."""
    return shaping.permute(x, tuple(axes))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element `repeats` times in place along `axis` (of the flattened tensor when None)."""
    return shaping.repeat_interleave(x, repeats, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The elements in C order in another shape: a view where possible, always with `copy=False`, never with True.

    ValueError when `copy` is False and the elements do not lie as a view would need them.
    """
    if copy:
        return shaping.reshape(shaping.clone(x), shape)
    if copy is None:
        return shaping.reshape(x, shape)
    try:
        return shaping.view(x, shape)
    except RuntimeError as error:
        raise ValueError(f"reshape: copy=False, but {error}") from None


def roll(x: Tensor, /, shift: Any, *, axis: Axis = None) -> Tensor:
    """Elements moved by `shift` along `axis` (of the flattened tensor when None); those that leave come back."""
    if axis is None:
        flat = shaping.ravel(x)
        total = shift if isinstance(shift, int) else sum(shift)
        return shaping.reshape(shaping.roll(flat, total, 0), x.shape)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
    return shaping.roll(x, shifts, axes)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The tensor repeated along each dimension."""
    return shaping.tile(x, tuple(repetitions))


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Slices of `axis` (needed unless `x` is a vector) at `indices`, a vector; negative ones count from the end."""
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: give axis; the tensor has {x.ndim} dimensions")
        axis = 0
    return indexing.getitem(x, (*(slice(None),) * check_dim(axis, x.ndim), indices))


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Elements at `indices` along `axis`; other dimensions broadcast, negative indices count from the end."""
    length = x.shape[check_dim(axis, x.ndim)]
    return indexing.take_along_dim(x, indexing.where(indices < 0, indices + length, indices), axis)
