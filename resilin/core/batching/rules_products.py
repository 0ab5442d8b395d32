"""Rules of products and of the ops of networks: hidden dimensions join the samples' where weights are shared."""

from __future__ import annotations

import math
import string
from typing import Any

from resilin.core.batching.active import Unbatchable
from resilin.core.batching.dispatch import Batch, rule, shown
from resilin.core.batching.levels import BatchedArray, inner, levels_of
from resilin.core.kernels.common import array_namespace
from resilin.core.ops import elementwise, matmul
from resilin.core.ops import shape as ops
from resilin.core.ops.reduce import sum as total
from resilin.core.ops.registry import Op
from resilin.core.tensor import Tensor


@rule("matmul")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    a, b = inputs
    rank = max(shown(a), shown(b), 2)
    left = batch.lead(a if shown(a) > 1 else ops.expand_dims.call(a, 0), rank)
    right = batch.lead(b if shown(b) > 1 else ops.expand_dims.call(b, 1), rank)
    found = op.call(left, right)
    if shown(a) == 1:
        found = ops.squeeze.call(found, found._array.ndim - 2)
    return ops.squeeze.call(found, found._array.ndim - 1) if shown(b) == 1 else found


@rule("linear")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x, w, b = inputs
    if not levels_of(w) and not levels_of(b):
        return op.call(batch.lead(x), w, b)
    rank = max(shown(x), 2)
    y = matmul.matmul.call(batch.lead(x, rank), ops.swapaxes.call(batch.lead(w, rank), batch.k + rank - 2, -1))
    if b is not None:
        y = elementwise.add.call(y, batch.lead(b, rank))
    return ops.squeeze.call(y, batch.k) if shown(x) == 1 else y


@rule("sum_rows")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    return total.call(batch.lead(inputs[0]), batch.k)


@rule("solve", "solve_triangular", "lstsq", "euclidean_distances", "row_distances")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    a, b = inputs
    rank = max(shown(a), shown(b))
    front = tuple(max(n, m) for n, m in zip(*(batch.lead(x)._array.shape[: batch.k] for x in inputs), strict=True))
    wholes = []
    for x in (a, b):
        led = batch.lead(x, rank)
        wholes.append(ops.broadcast_to.call(led, (*front, *led._array.shape[batch.k :])))
    return op.call(*wholes, *params)


@rule("einsum_terms")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    terms, out = params
    free = [letter for letter in string.ascii_letters if letter not in "".join(terms) + out]
    if len(free) < batch.k:
        return None
    letters = dict(zip(batch.levels, free, strict=False))
    mine = ["".join(letters[level] for level in batch.levels if level in levels_of(x)) for x in inputs]
    whole = [inner(x) for x in inputs]
    return op.call(
        whole,
        tuple(front + term for front, term in zip(mine, terms, strict=True)),
        "".join(letters.values()) + out,
    )


@rule("layer_norm")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x, weight, bias = inputs
    if not levels_of(weight) and not levels_of(bias):
        return op.call(batch.lead(x), weight, bias, *params)
    y, rank = op.call(batch.lead(x), None, None, *params), shown(x)
    if weight is not None:
        y = elementwise.multiply.call(y, batch.lead(weight, rank))
    return y if bias is None else elementwise.add.call(y, batch.lead(bias, rank))


@rule("batch_norm")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    (eps, stats), (x, *scales) = params, inputs
    count = math.prod(batch.shape) * x._array.shape[1]
    flat = [value if value is None else ops.reshape.call(batch.full(value), (count,)) for value in scales]
    found: list[Any] = []
    y = _split_channels(batch, op.call(_joined_channels(batch, x), *flat, eps, found))
    if stats is not None:
        stats[:] = [BatchedArray(part.reshape(*batch.shape, -1), batch.levels) for part in found]
    return y


@rule("attention")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    mask, dropped = params[0], params[3]
    if dropped is not None or (mask is not None and mask.ndim > 2):
        return None
    return op.call(*(batch.full(x) for x in inputs), *params)


@rule("conv2d")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x, w, bias = inputs
    if not levels_of(w) and not levels_of(bias):
        return batch.unfolded(op.call(batch.folded(x), w, bias, *params))
    stride, padding, dilation, groups = params
    joined, count = _joined_channels(batch, x), math.prod(batch.shape)
    b = None if bias is None else ops.reshape.call(batch.full(bias), (count * bias._array.shape[0],))
    y = op.call(joined, batch.folded(w), b, stride, padding, dilation, groups * count)
    return _split_channels(batch, y)


@rule("conv2d_input")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    g, w = inputs
    shape, *geometry = params
    count = math.prod(batch.shape)
    if not levels_of(w):
        return batch.unfolded(op.call(batch.folded(g), w, (count * shape[0], *shape[1:]), *geometry))
    geometry[3] *= count
    whole = (shape[0], count * shape[1], *shape[2:])
    return _split_channels(batch, op.call(_joined_channels(batch, g), batch.folded(w), whole, *geometry))


@rule("conv2d_weight")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    shape, *geometry = params
    count = math.prod(batch.shape)
    geometry[3] *= count
    parts = [_joined_channels(batch, x) for x in inputs]
    return batch.unfolded(op.call(*parts, (count * shape[0], *shape[1:]), *geometry))


def _joined_channels(batch: Batch, x: Tensor) -> Tensor:
    """Samples as groups of channels: (B, N, C, ...) as (N, B * C, ...)."""
    whole, k = batch.full(x), batch.k
    shape = whole._array.shape
    moved = ops.permute_dims.call(whole, (k, *range(k), *range(k + 1, len(shape))))
    return ops.reshape.call(moved, (shape[k], math.prod(shape[:k]) * shape[k + 1], *shape[k + 2 :]))  # type: ignore[no-any-return]


def _split_channels(batch: Batch, y: Tensor) -> Tensor:
    """(N, B * C, ...) as (B, N, C, ...)."""
    if not math.prod(batch.shape):
        raise Unbatchable
    k, shape = batch.k, y._array.shape
    channels = shape[1] // math.prod(batch.shape)
    split = ops.reshape.call(y, (shape[0], *batch.shape, channels, *shape[2:]))
    return ops.permute_dims.call(split, (*range(1, k + 1), 0, *range(k + 1, split._array.ndim)))  # type: ignore[no-any-return]


@rule("max_pool2d_scatter")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    (index, shape), count = params, math.prod(batch.shape)
    everywhere = array_namespace(index).broadcast_to(index, (count, *index.shape)).reshape(-1, *index.shape[1:])
    return batch.unfolded(op.call(batch.folded(inputs[0]), everywhere, (count * shape[0], *shape[1:])))


@rule("max_pool2d", "avg_pool2d", "avg_pool2d_spread", "unfold_windows", "fold_windows")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    return batch.unfolded(op.call(batch.folded(inputs[0]), *params))
