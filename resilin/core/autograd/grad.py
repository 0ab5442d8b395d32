"""`grad` and `backward` of several tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from resilin.core.autograd import batched_vjp, engine
from resilin.core.autograd.nodes import GradientEdge, stand_in
from resilin.core.autograd.tape import edge_of
from resilin.core.autograd.vmap import vmap
from resilin.core.ops.creation import zeros_like
from resilin.core.tensor import Tensor


def _tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, Tensor | GradientEdge) or value is None else tuple(value)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """The gradients of the sum of `outputs` (weighted by `grad_outputs`) with respect to `inputs`; no `.grad` changes.

    Both may be GradientEdges. With `create_graph` the gradients are differentiable. RuntimeError for an input that was
    not used, unless `allow_unused` (None for it) or `materialize_grads` (zeros for it). With `is_grads_batched`, the
    first dimension of every one of `grad_outputs` is a batch of cotangents, as it is of the results: one backward for
    all of them. `only_inputs` is PyTorch's, which has ignored it for long: FutureWarning if it is False.
    """
    if not only_inputs:
        warnings.warn(
            "grad(): only_inputs is ignored: gradients of other tensors are never accumulated; use backward() for them",
            FutureWarning,
            stacklevel=2,
        )
    outs, ins = _tuple(outputs), tuple(map(stand_in, _tuple(inputs)))
    seeds: tuple[Any, ...] = _tuple(grad_outputs) if grad_outputs is not None else (None,) * len(outs)
    if not ins:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    outs = _roots(outs, seeds)
    for tensor in ins:
        if edge_of(tensor) is None:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    if is_grads_batched:
        return _of_batch(outs, ins, seeds, retain_graph, create_graph, allow_unused, materialize_grads)
    keep = create_graph if retain_graph is None else retain_graph
    found = batched_vjp.pull(outs, ins, seeds, retain_graph=keep, create_graph=create_graph)
    if materialize_grads:
        return tuple(zeros_like(t) if g is None else g for g, t in zip(found, ins, strict=True))
    for place, g in enumerate(found):
        if g is None and not allow_unused:
            raise RuntimeError(
                f"The differentiated Tensor at index {place} appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
    return tuple(found)


def _roots(outs: tuple[Any, ...], seeds: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tensors to begin with. RuntimeError for an edge without a gradient to begin with."""
    if len(outs) != len(seeds):
        raise RuntimeError(f"got {len(outs)} tensors and {len(seeds)} gradients")
    for out, seed in zip(outs, seeds, strict=True):
        if isinstance(out, GradientEdge) and seed is None:
            raise RuntimeError("a GradientEdge has no shape: give the gradient to begin with for each")
    return tuple(stand_in(out, seed) for out, seed in zip(outs, seeds, strict=True))


def _of_batch(
    outs: Any, ins: Any, seeds: Any, retain_graph: bool | None, create_graph: bool, unused: bool | None, zeros: bool
) -> tuple[Any, ...]:
    """`grad` for each row of `seeds`, by vmap."""
    for seed, out in zip(seeds, outs, strict=True):
        if seed is not None and tuple(seed.shape[1:]) != tuple(out.shape):
            raise RuntimeError(
                "If `is_grads_batched=True`, we interpret the first dimension of each grad_output as the batch "
                f"dimension: expected shape (B, *{tuple(out.shape)}), got {tuple(seed.shape)}"
            )
    used: list[bool] = []

    def one(*seeds: Any) -> tuple[Tensor, ...]:
        found = grad(outs, ins, seeds, retain_graph is not False, create_graph, True, unused, False, zeros)
        used[:] = [g is not None for g in found]
        return tuple(g for g in found if g is not None)

    found = iter(vmap(one, tuple(None if seed is None else 0 for seed in seeds), randomness="same")(*seeds))
    return tuple(next(found) if there else None for there in used)


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Accumulate the gradients of the sum of `tensors` (weighted by `grad_tensors`) into the leaves.

    `grad_variables` is the old name of `grad_tensors`: FutureWarning for it, RuntimeError for both.
    """
    if grad_variables is not None:
        if grad_tensors is not None:
            raise RuntimeError("backward(): expected grad_tensors or grad_variables, its old name; got both")
        warnings.warn("backward(): grad_variables is deprecated; give grad_tensors", FutureWarning, stacklevel=2)
        grad_tensors = grad_variables
    outs = _tuple(tensors)
    seeds = _tuple(grad_tensors) if grad_tensors is not None else (None,) * len(outs)
    outs = _roots(outs, seeds)
    if inputs is not None:
        inputs = tuple(map(stand_in, _tuple(inputs)))
    engine.backward(outs, seeds, retain_graph, create_graph, inputs)
