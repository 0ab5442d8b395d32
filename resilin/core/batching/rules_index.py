"""Rules of indexing and choosing, where indices may be batched themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.batching.active import batched_in
from resilin.core.batching.dispatch import Batch, of_params, rule, shown
from resilin.core.batching.levels import levels_of
from resilin.core.kernels.common import array_namespace
from resilin.core.ops import shape as shape_ops
from resilin.core.ops.registry import OPS, Op
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor


def _is_array(part: Any) -> bool:
    return hasattr(part, "shape")


class _Index:
    """An index of one sample as one of all: `index` for the whole, and how its result's dimensions are moved."""

    def __init__(self, batch: Batch, index: Any, shape: tuple[int, ...], front: tuple[int, ...]) -> None:
        """`shape` is that of one sample, `front` what the whole has before it."""
        parts = _spelled_out(index, len(shape))
        self._k, arrays = batch.k, [part for part in parts if _is_array(part)]
        self.index: tuple[Any, ...] = (*(slice(None),) * batch.k, *parts)
        self._moved = (0, 0)  # (from, count): the arrays' dimensions in the whole's result; where they belong: `_place`
        self._place = batch.k
        if not arrays:
            return
        rank = len(np.broadcast_shapes(*(part.shape for part in arrays)))
        before, after = _around(parts)
        apart = any(not _is_array(part) for part in parts[before : len(parts) - after])
        if not batched_in(arrays):
            if apart:  # numpy puts the arrays' dimensions first, before the hidden ones
                self._moved, self._place = (0, rank), batch.k
            return
        led = [_lengthened(batch.array(part), batch.k, rank) if _is_array(part) else part for part in parts]
        xp = array_namespace(next(part for part in led if _is_array(part)))
        grid = [xp.arange(n).reshape(-1, *(1,) * (batch.k - 1 - i + rank)) for i, n in enumerate(front)]
        self.index = (*grid, *led)
        if not apart and before:  # one sample's result has the arrays' dimensions behind what the slices before gave
            self._moved, self._place = (batch.k, rank), batch.k + before

    def result(self, found: Tensor) -> Tensor:
        """What the whole's index gave, in order."""
        (start, count), place, ndim = self._moved, self._place, found._array.ndim
        if not count:
            return found
        rest = [i for i in range(ndim) if not start <= i < start + count]
        order = (*rest[:place], *range(start, start + count), *rest[place:])
        return shape_ops.permute_dims.call(found, order)  # type: ignore[no-any-return]

    def source(self, value: Tensor) -> Tensor:
        """A value in order, as the whole's index expects it: the way back of `result`."""
        (start, count), place, ndim = self._moved, self._place, value._array.ndim
        if not count:
            return value
        rest = [i for i in range(ndim) if not place <= i < place + count]
        order = (*rest[:start], *range(place, place + count), *rest[start:])
        return shape_ops.permute_dims.call(value, order)  # type: ignore[no-any-return]


def _spelled_out(index: Any, ndim: int) -> list[Any]:
    """The parts of an index, lists as arrays, masks as arrays of places, slices in place of an ellipsis."""
    parts: list[Any] = []
    for part in index if isinstance(index, tuple) else (index,):
        made = np.asarray(part) if isinstance(part, list | bool | np.bool_) else part
        if _is_array(made) and made.dtype.kind == "b":
            if batched_in((made,)) or not made.ndim:
                raise NotImplementedError
            parts.extend(array_namespace(made).nonzero(made))
        else:
            parts.append(made)
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    where = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    return [*parts[:where], *(slice(None),) * (ndim - taken), *parts[where + 1 :]]


def _around(parts: list[Any]) -> tuple[int, int]:
    """How many parts stand before the first array, and after the last."""
    places = [i for i, part in enumerate(parts) if _is_array(part)]
    return places[0], len(parts) - 1 - places[-1]


def _lengthened(array: Any, k: int, rank: int) -> Any:
    """An array with k dimensions in front, and `rank` behind them."""
    return array.reshape(array.shape[:k] + (1,) * (rank - (array.ndim - k)) + array.shape[k:])


@rule("getitem")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x = batch.lead(inputs[0])
    front = x._array.shape[: batch.k]
    try:
        made = _Index(batch, params[0], x._array.shape[batch.k :], front)
    except NotImplementedError:
        return None
    return made.result(op.call(x, made.index))


@rule("index_add_zeros")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    shape, index = tuple(params[0]), params[1]
    try:
        made = _Index(batch, index, shape, batch.shape)
    except NotImplementedError:
        return None
    return op.call(made.source(batch.full(inputs[0])), (*batch.shape, *shape), made.index, *params[2:])


@rule("index_put")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x, value = batch.full(inputs[0]), inputs[1]
    try:
        made = _Index(batch, params[0], x._array.shape[batch.k :], batch.shape)
    except NotImplementedError:
        return None
    rank = x._array[made.index].ndim - batch.k
    if shown(value) > rank:
        return None
    return op.call(x, made.source(batch.lead(value, rank)), made.index)


@rule("where_else")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    condition = params[0]
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    rank = max([*map(shown, tensors), condition.ndim if _is_array(condition) else 0])
    led = condition
    if _is_array(condition):
        led = _lengthened(batch.array(condition), batch.k, rank)
    return op.call(*(batch.lead(value, rank) for value in inputs), led)


@rule("apply_mask")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    rank = max(shown(inputs[0]), params[0].ndim)
    return op.call(batch.lead(inputs[0], rank), _lengthened(batch.array(params[0]), batch.k, rank))


def _whole(batch: Batch, array: Any) -> Any:
    led = batch.array(array)
    return array_namespace(led).broadcast_to(led, (*batch.shape, *led.shape[batch.k :]))


@rule("take_along_axis")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    index, axis = params
    return op.call(batch.full(inputs[0]), _whole(batch, index), check_dim(axis, index.ndim) + batch.k)


@rule("scatter_add_zeros")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    shape, axis, index = params
    whole = (*batch.shape, *shape)
    return op.call(batch.full(inputs[0]), whole, check_dim(axis, len(shape)) + batch.k, _whole(batch, index))


@rule("scatter_add_to")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    axis, index = params
    x, g = map(batch.full, inputs)
    return op.call(x, g, check_dim(axis, index.ndim) + batch.k, _whole(batch, index))


@rule("index_add_to")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x, g = map(batch.full, inputs)
    try:
        made = _Index(batch, params[0], x._array.shape[batch.k :], batch.shape)
    except NotImplementedError:
        return None
    return op.call(x, made.source(g), made.index)


@rule("scatter", "scatter_extreme", "scatter_product")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    index, axis, *rest = params
    x = batch.full(inputs[0])
    value = inputs[1]
    if op.name != "scatter":
        value = batch.full(value)
        rest[-1] = _whole(batch, rest[-1])
    elif isinstance(value, Tensor):
        value = batch.lead(value, index.ndim)
    return op.call(x, value, _whole(batch, index), check_dim(axis, index.ndim) + batch.k, *rest)


@rule("cross_entropy")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    target, weight, ignore_index, smoothing, count = params
    if levels_of(weight):
        return None
    options = weight, ignore_index, smoothing
    losses = batch.unfolded(op.call(batch.folded(inputs[0]), _whole(batch, target).reshape(-1), *options))
    return losses if count is None else OPS["divide"].call(OPS["sum"].call(losses, -1), count)


@rule("embedding")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    weight, (index, padding, shares) = inputs[0], params
    if not levels_of(weight):
        return op.call(weight, batch.array(index), padding, None if shares is None else _whole(batch, shares))
    if padding is not None:
        return None
    num = weight._array.shape[0]
    return op.call(
        batch.folded(weight), _offset(batch, index, num), None, None if shares is None else _whole(batch, shares)
    )


@rule("embedding_grad")
@of_params
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    index, num, padding = params
    if padding is not None:
        return None
    count = math.prod(batch.shape)
    return batch.unfolded(op.call(batch.full(inputs[0]), _offset(batch, index, num), count * num, None))


def _offset(batch: Batch, index: Any, num: int) -> Any:
    """Rows of one sample's table as rows of all tables, one after the other."""
    whole = _whole(batch, index)
    steps = array_namespace(whole).arange(math.prod(batch.shape)).reshape(*batch.shape, *(1,) * index.ndim)
    return whole + steps * num
