"""`grad` and `backward` of several tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.autograd import engine
from resilin.core.autograd.tape import edge_of
from resilin.core.ops.creation import zeros_like
from resilin.core.ops.shape import stack
from resilin.core.tensor import Tensor


def _tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, Tensor) or value is None else tuple(value)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """The gradients of the sum of `outputs` (weighted by `grad_outputs`) with respect to `inputs`; no `.grad` changes.

    With `create_graph` they are differentiable. RuntimeError for an input that was not used, unless `allow_unused`
    (None for it) or `materialize_grads` (zeros for it).
    """
    outs, ins = _tuple(outputs), _tuple(inputs)
    seeds: tuple[Any, ...] = _tuple(grad_outputs) if grad_outputs is not None else (None,) * len(outs)
    for tensor in ins:
        if edge_of(tensor) is None:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    if is_grads_batched:
        rows = [
            grad(outs, ins, [s[i] for s in seeds], True, create_graph, allow_unused, False, materialize_grads)
            for i in range(len(seeds[0]))
        ]
        return tuple(_stack(column) for column in zip(*rows, strict=True))
    keep = create_graph if retain_graph is None else retain_graph
    found = engine.run_backward(outs, seeds, retain_graph=keep, create_graph=create_graph, targets=ins)
    if materialize_grads:
        return tuple(zeros_like(t) if g is None else g for g, t in zip(found, ins, strict=True))
    if not allow_unused and any(g is None for g in found):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior."
        )
    return tuple(found)


def _stack(column: Any) -> Any:
    return None if column[0] is None else stack.call(column, 0)


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Accumulate the gradients of the sum of `tensors` (weighted by `grad_tensors`) into the leaves."""
    outs = _tuple(tensors)
    seeds = _tuple(grad_tensors) if grad_tensors is not None else (None,) * len(outs)
    engine.backward(outs, seeds, retain_graph, create_graph, inputs)
