"""How an op treats batched tensors: by the rule of its kind, else sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from resilin.core.batching.active import Unbatchable, batched_in
from resilin.core.batching.levels import (
    BatchedArray,
    BatchedTensor,
    Level,
    full,
    hide,
    lead,
    lead_array,
    levels_of,
    union,
)
from resilin.core.device import CPU, device
from resilin.core.kernels.common import array_namespace
from resilin.core.ops.registry import Op
from resilin.core.ops.shape import reshape, split_parts, squeeze, stack
from resilin.core.tensor import Tensor, wrap

RULES: dict[str, Callable[..., Any]] = {}


class Batch:
    """What a rule knows of the call: the levels, and its tensors with them in front.

    A rule `rule(batch, op, inputs, params)` gives the inner result, with a dimension for each level in front (of its
    length, or 1); a tuple of them for several outputs; None when it cannot, and the samples go one by one.
    """

    __slots__ = ("k", "levels", "shape")

    def __init__(self, levels: tuple[Level, ...]) -> None:
        self.levels = levels
        self.shape = tuple(level.size for level in levels)
        self.k = len(levels)

    def lead(self, value: Any, rank: int | None = None) -> Any:
        """The inner tensor with k dimensions in front, each of the batch's length or 1; numbers and None stay."""
        return lead(value, self.levels, rank) if isinstance(value, Tensor) else value

    def full(self, value: Any) -> Any:
        """The inner tensor with all of the batch in front; None stays."""
        return full(value, self.levels) if isinstance(value, Tensor) else value

    def folded(self, value: Any) -> Any:
        """The samples joined with the first dimension: (B * N, ...)."""
        whole = self.full(value)
        shape = whole._array.shape
        return reshape.call(whole, (math.prod(shape[: self.k + 1]), *shape[self.k + 1 :]))

    def unfolded(self, value: Tensor) -> Tensor:
        """(B * N, ...) as (B, N, ...)."""
        shape = value._array.shape
        rows = shape[0] // math.prod(self.shape) if math.prod(self.shape) else 0
        return reshape.call(value, (*self.shape, rows, *shape[1:]))  # type: ignore[no-any-return]

    def array(self, value: Any) -> Any:
        """The array of a parameter, batched or not, with k dimensions in front."""
        return lead_array(value, self.levels)


def rule(*names: str) -> Callable[[Any], Any]:
    """Declare the rule of the ops of these names."""

    def declare(fn: Any) -> Any:
        for name in names:
            RULES[name] = fn
        return fn

    return declare


def shown(value: Any) -> int:
    """How many dimensions a tensor or array shows."""
    array = value._array if isinstance(value, Tensor) else value
    return int(array.ndim)


def call(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `op` on arguments of which some are batched."""
    values = op.bind(args, kwargs)
    inputs, params = (tuple(values[0]), values[1:]) if op.n < 0 else (values[: op.n], values[op.n :])
    dev = next((value._dev for value in inputs if isinstance(value, Tensor)), CPU)
    inputs = tuple(_as_tensor(value, dev) for value in inputs)
    batch = Batch(union((*inputs, params)))
    made = None
    found = RULES.get(op.name) or (_elementwise if op.elementwise else None)
    if found is not None and (not batched_in(params) or found in OF_PARAMS):
        made = found(batch, op, inputs, params)
    if made is None:
        made = _one_by_one(batch, op, inputs, params)
    if isinstance(made, tuple):
        return tuple(hide(part, batch.levels) for part in made)
    return hide(made, batch.levels)


OF_PARAMS: set[Any] = set()  # rules that also take batched parameters


def of_params(fn: Any) -> Any:
    """Mark a rule as one that also takes batched parameters."""
    OF_PARAMS.add(fn)
    return fn


def _as_tensor(value: Any, dev: device) -> Any:
    return BatchedTensor(wrap(value.inner, dev), value.levels) if isinstance(value, BatchedArray) else value


def _elementwise(batch: Batch, op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
    rank = max(shown(value) for value in inputs if isinstance(value, Tensor))
    return op.call(*(batch.lead(value, rank) for value in inputs), *params)


def _one_by_one(batch: Batch, op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
    """Every sample for itself, and the results stacked."""
    count = math.prod(batch.shape)
    if not count:
        raise Unbatchable
    rows = [samples(value, batch.levels) if levels_of(value) else [value] * count for value in inputs]
    each = []
    for i in range(count):
        values = [row[i] for row in rows]
        rest = tuple(_of_sample(batch, value, i) for value in params)
        each.append(op.call(values, *rest) if op.n < 0 else op.call(*values, *rest))
    if isinstance(each[0], tuple):
        return tuple(_stacked(batch, column) for column in zip(*each, strict=True))
    return _stacked(batch, each)


def samples(value: Tensor, levels: tuple[Level, ...]) -> list[Tensor]:
    """The single samples, in row-major order of the levels."""
    whole = full(value, levels)
    count, rest = math.prod(level.size for level in levels), tuple(whole._array.shape[len(levels) :])
    flat = reshape.call(whole, (count, *rest))
    return [squeeze.call(part, 0) for part in split_parts.call(flat, 0, (1,) * count)]


def _of_sample(batch: Batch, value: Any, i: int) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_of_sample(batch, part, i) for part in value)
    if not levels_of(value):
        return value
    if isinstance(value, Tensor):
        return samples(value, batch.levels)[i]
    array = batch.array(value)
    whole = array_namespace(array).broadcast_to(array, (*batch.shape, *array.shape[batch.k :]))
    return whole.reshape(-1, *array.shape[batch.k :])[i]


def _stacked(batch: Batch, column: Any) -> Tensor:
    shapes = {tuple(part._array.shape) for part in column}
    if len(shapes) > 1:
        raise RuntimeError(
            f"vmap: the samples give tensors of different shapes ({', '.join(map(str, sorted(shapes)))}), which cannot "
            "be one tensor"
        )
    joined = stack.call(list(column), 0)
    return reshape.call(joined, (*batch.shape, *joined._array.shape[1:]))  # type: ignore[no-any-return]
