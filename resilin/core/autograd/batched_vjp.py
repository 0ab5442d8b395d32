"""Gradients of tensors that may be batched: puts what vmap hides where the engine, which sees whole tensors, wants it.

Levels that the outputs are batched at are part of the engine's tensors: no op mixes samples, so the gradient of all is
the gradient of each. Levels that only the cotangents are batched at (a vmapped vjp) stay hidden: the engine then hands
on batched tensors, through the rules of second derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.autograd import engine
from resilin.core.autograd.grad_mode import enable_grad
from resilin.core.batching.levels import Level, full, hide, inner, levels_of, union
from resilin.core.ops.creation import ones_like
from resilin.core.ops.shape import permute_dims
from resilin.core.tensor import Tensor

Levels = tuple[Level, ...]


def pull(
    outs: Sequence[Tensor],
    ins: Sequence[Tensor],
    seeds: Sequence[Any],
    *,
    retain_graph: bool,
    create_graph: bool,
    summed: bool = False,
) -> list[Any]:
    """The gradients of `outs`, weighted by `seeds` (None for 1), with respect to `ins`; None where nothing flows.

    RuntimeError for an input that samples share, unless their sum is wanted: `summed`.
    """
    if not union((*outs, *ins, *seeds)):
        return engine.run_backward(outs, seeds, retain_graph=retain_graph, create_graph=create_graph, targets=ins)
    inside = union(outs)
    outs = [_at(out, inside) for out in outs]
    extra = tuple(level for level in union(seeds) if level not in inside)
    found = engine.run_backward(
        [inner(out) for out in outs],
        [_seed(out, seed, extra) for out, seed in zip(outs, seeds, strict=True)],
        retain_graph=retain_graph,
        create_graph=create_graph,
        targets=[inner(source) for source in ins],
        recorded=bool(extra),
    )
    for source, g in zip(ins, found, strict=True):
        if g is not None and not summed:
            _check(source, inside)
    return [None if g is None else out_of_sight(g, source, extra) for g, source in zip(found, ins, strict=True)]


def _at(out: Tensor, levels: Levels) -> Tensor:
    """`out` batched at all of `levels`."""
    if levels_of(out) == levels:
        return out
    with enable_grad():
        return hide(full(out, levels), levels)


def _check(source: Tensor, inside: Levels) -> None:
    if any(level not in levels_of(source) for level in inside):
        raise RuntimeError(
            "grad inside vmap: one of the differentiated tensors is shared by the samples, so that its gradient would "
            "be their sum. Use func.grad or func.vjp, which give each sample its own gradient"
        )


def _seed(out: Tensor, seed: Any, extra: Levels) -> Any:
    if seed is None:
        if out._array.size != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        return ones_like(inner(out))
    if seed._array.shape != out._array.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output has shape {tuple(seed.shape)}, output has {tuple(out.shape)}"
        )
    return in_sight(out, seed, extra)


def in_sight(out: Tensor, seed: Tensor, extra: Levels) -> Tensor:
    """A cotangent (or tangent) of the whole of `out`: its levels in view, those of `extra` hidden."""
    own = levels_of(out)
    hidden = tuple(level for level in extra if level in levels_of(seed))
    return hide(_reordered(seed, (*hidden, *own)), hidden)


def _reordered(value: Tensor, levels: Levels) -> Tensor:
    """The whole of `value` with a dimension for each of `levels` in front, in this order."""
    ordered = tuple(sorted(levels, key=lambda level: level.number))
    return _moved(full(value, ordered), ordered, levels)


def _moved(whole: Tensor, before: Levels, after: Levels) -> Tensor:
    if before == after:
        return whole
    order = (*(before.index(level) for level in after), *range(len(after), whole._array.ndim))
    return permute_dims.call(whole, order)  # type: ignore[no-any-return]


def out_of_sight(g: Tensor, source: Tensor, extra: Levels) -> Tensor:
    """A gradient of the whole of `source`, batched as `source` is, and at the levels of `extra`."""
    levels = (*extra, *levels_of(source))
    ordered = tuple(sorted(levels, key=lambda level: level.number))
    return hide(_moved(full(g, extra), levels, ordered), ordered)
