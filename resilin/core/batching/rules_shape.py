"""Rules of ops that reduce, scan, rearrange, join and split: dimensions are counted behind the hidden ones."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.batching.dispatch import Batch, rule, shown
from resilin.core.ops import shape as ops
from resilin.core.ops.registry import Op
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor


def _behind(k: int, axis: Any, ndim: int) -> Any:
    """`axis` (an int or several) behind `k` hidden dimensions."""
    if isinstance(axis, int):
        return check_dim(axis, ndim) + k
    return tuple(check_dim(each, ndim) + k for each in axis)


def _replace(params: tuple[Any, ...], **by_place: Any) -> tuple[Any, ...]:
    changed = list(params)
    for place, value in by_place.items():
        changed[int(place[1:])] = value
    return tuple(changed)


@rule(
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "var",
    "std",
    "logsumexp",
    "norm2",
    "norm_of",
    "any",
    "all",
    "count_nonzero",
    "argmax",
    "argmin",
)
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x, ndim = batch.lead(inputs[0]), shown(inputs[0])
    if params[0] is not None and ndim:
        return op.call(x, _behind(batch.k, params[0], ndim), *params[1:])
    front = x._array.shape[: batch.k]
    flat = ops.reshape.call(x, (*front, math.prod(x._array.shape[batch.k :])))
    place = op.arguments.index("keepdims") - 1
    found = op.call(flat, *_replace((batch.k, *params[1:]), **{f"p{place}": False}))
    return ops.reshape.call(found, (*front, *(1,) * ndim)) if params[place] else found


@rule("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp", "flip")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x, ndim = batch.lead(inputs[0]), shown(inputs[0])
    if ndim:
        return op.call(x, _behind(batch.k, params[0], ndim), *params[1:])
    return ops.squeeze.call(op.call(ops.expand_dims.call(x, batch.k), batch.k), batch.k)


@rule("roll")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x, ndim = batch.lead(inputs[0]), shown(inputs[0])
    shift, axis = params
    if axis is not None:
        return op.call(x, shift, _behind(batch.k, axis, ndim))
    shape = x._array.shape
    flat = ops.reshape.call(x, (*shape[: batch.k], math.prod(shape[batch.k :])))
    return ops.reshape.call(op.call(flat, shift, batch.k), shape)


@rule("reshape", "broadcast_to")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    shape = tuple(params[0])
    x = batch.lead(inputs[0])
    if op.name == "broadcast_to":
        x = batch.lead(inputs[0], len(shape))
    return op.call(x, (*x._array.shape[: batch.k], *shape))


@rule("permute_dims")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    order = _behind(batch.k, tuple(params[0]), shown(inputs[0]))
    return op.call(batch.lead(inputs[0]), (*range(batch.k), *order))


@rule("swapaxes", "moveaxis")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    ndim = shown(inputs[0])
    return op.call(batch.lead(inputs[0]), *(_behind(batch.k, axis, ndim) for axis in params))


@rule("rearrange")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x = batch.lead(inputs[0])
    split, order, shape = params
    hidden = x._array.shape[: batch.k]
    order = (*range(batch.k), *(batch.k + axis for axis in order))
    return op.call(x, (*hidden, *split), order, (*hidden, *shape))


@rule("laid_out")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    orders = [(*range(batch.k), *(batch.k + axis for axis in order)) for order in params]
    return op.call(batch.lead(inputs[0]), *orders)


@rule("expand_dims")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    more = 1 if isinstance(params[0], int) else len(params[0])
    return op.call(batch.lead(inputs[0]), _behind(batch.k, params[0], shown(inputs[0]) + more))


@rule("squeeze")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    x = batch.lead(inputs[0])
    axis = params[0]
    if axis is None:
        axis = tuple(i for i, n in enumerate(x._array.shape[batch.k :]) if n == 1)
    return op.call(x, _behind(batch.k, axis, shown(inputs[0])))


@rule("diagonal")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    ndim = shown(inputs[0])
    first, second = (_behind(batch.k, axis, ndim) for axis in params[1:])
    return op.call(batch.lead(inputs[0]), params[0], first, second)


@rule("tile")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    reps = tuple(params[0])
    rank = max(len(reps), shown(inputs[0]))
    return op.call(batch.lead(inputs[0], rank), (*(1,) * (batch.k + rank - len(reps)), *reps))


@rule("pad_constant")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    return op.call(batch.lead(inputs[0]), (*((0, 0),) * batch.k, *params[0]), *params[1:])


@rule(
    "tril",
    "triu",
    "copy",
    "ascontiguous",
    "astype",
    "real",
    "imag",
    "conj",
    "clip_to",
    "relu",
    "gelu",
    "transfer",
    "det",
    "slogdet",
    "inv",
    "cholesky",
    "pinv",
    "svdvals",
    "eigvalsh",
    "eigh",
    "svd",
    "qr",
    "matrix_exp",
    "cofactors",
    "lu_packed",
)
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    return op.call(batch.lead(inputs[0]), *params)


@rule("concat")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    axis = _behind(batch.k, params[0], shown(inputs[0]))
    return op.call([batch.full(x) for x in inputs], axis, *params[1:])


@rule("stack")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    return op.call([batch.full(x) for x in inputs], _behind(batch.k, params[0], shown(inputs[0]) + 1))


@rule("resample")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    *ways, axis = params
    return op.call(batch.lead(inputs[0]), *ways, _behind(batch.k, axis, shown(inputs[0])))


@rule("split_parts")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    return op.call(batch.lead(inputs[0]), _behind(batch.k, params[0], shown(inputs[0])), *params[1:])


@rule("make_complex")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    rank = max(map(shown, inputs))
    return op.call(*(batch.lead(x, rank) for x in inputs))


@rule("fft_c2c", "fft_r2c", "fft_c2r", "fft_real")
def _(batch: Batch, op: Op, inputs: Any, params: Any) -> Any:
    axes = _behind(batch.k, params[0], shown(inputs[0]))
    return op.call(batch.lead(inputs[0]), axes, *params[1:])


def rows_of(x: Tensor, k: int, shown_rows: int) -> tuple[Tensor, tuple[int, ...]]:
    """(hidden..., rows..., rest...) with hidden and row dimensions joined, and the shape of what was joined."""
    shape = x._array.shape
    joined = shape[: k + shown_rows]
    return ops.reshape.call(x, (math.prod(joined), *shape[k + shown_rows :])), joined
