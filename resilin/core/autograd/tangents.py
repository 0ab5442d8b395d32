"""Tangents node by node, for graphs with a Function that has a `jvp` of its own: that is called, every other node's
tangent is the vjp of its vjp. Ascending order, so that a node's inputs have theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.autograd.batched_vjp import in_sight, out_of_sight, pull
from resilin.core.autograd.engine import undo
from resilin.core.autograd.function import FunctionNode, has_own_jvp
from resilin.core.autograd.grad_mode import enable_grad
from resilin.core.autograd.tape import Node, Pick, edge_of
from resilin.core.batching.levels import inner, union
from resilin.core.ops.creation import zeros_like
from resilin.core.ops.registry import TENSOR_XP
from resilin.core.tensor import Tensor, wrap


def reachable(outs: Sequence[Tensor]) -> list[Node]:
    """All nodes that lead to `outs`, earliest first."""
    found: set[Node] = set()
    edges = [edge_of(inner(out)) for out in outs]
    while edges:
        edge = edges.pop()
        if isinstance(edge, Node) and edge not in found:
            found.add(edge)
            edges.extend(edge.edges)
    return sorted(found, key=lambda node: node.seq)


def needed(outs: Sequence[Tensor]) -> bool:
    """Whether a Function with a `jvp` of its own leads to `outs`."""
    return any(isinstance(node, FunctionNode) and has_own_jvp(node.cls) for node in reachable(outs))


def push(outs: Sequence[Tensor], places: Sequence[Tensor], directions: Sequence[Tensor]) -> list[Tensor | None]:
    """The derivatives of `outs` in the direction `directions` of `places`; None of what does not depend on them."""
    extra = tuple(level for level in union(directions) if level not in union((*outs, *places)))
    found: dict[Any, Any] = {
        edge_of(inner(place)): in_sight(place, direction, extra)
        for place, direction in zip(places, directions, strict=True)
    }
    nodes = reachable(outs)
    shapes = {edge_of(inner(out)): (inner(out)._array.shape, inner(out)._array.dtype) for out in outs}
    for node in nodes:
        shapes |= {edge: meta for edge, meta in zip(node.edges, node.metas, strict=True) if meta is not None}
    for node in nodes:
        if node not in found:
            found[node] = _of(node, [found.get(edge) for edge in node.edges], shapes, nodes)
    tangents = [found.get(edge_of(inner(out))) for out in outs]
    return [None if t is None else out_of_sight(t, out, extra) for t, out in zip(tangents, outs, strict=True)]


def _of(node: Node, given: list[Any], shapes: dict[Any, Any], nodes: list[Node]) -> Any:
    """The tangent of a node's output (a list of several) for those of its inputs."""
    if all(tangent is None for tangent in given):
        return None
    if isinstance(node, Pick):
        return given[0][node.index]
    if isinstance(node, FunctionNode) and has_own_jvp(node.cls):
        return node.push(given)
    picks = {p.index: p for p in nodes if isinstance(p, Pick) and p.edges[0] is node}
    kinds = [shapes.get(picks.get(i)) for i in range(node.outputs)] if node.outputs > 1 else [shapes[node]]
    with enable_grad():
        dummies = [None if kind is None else _zeros(kind, node.dev).requires_grad_() for kind in kinds]
        cotangent: Any = dummies if node.outputs > 1 else dummies[0]
        parts = list(node.run_recorded(TENSOR_XP, cotangent))
        pairs = [
            (undo(part, meta, node.dev.xp), tangent)
            for part, meta, tangent in zip(parts, node.metas, given, strict=True)
            if part is not None and meta is not None and tangent is not None and part.requires_grad
        ]
        wanted = [dummy for dummy in dummies if dummy is not None]
        pulled: list[Any] = [None] * len(wanted)
        if pairs:
            outs, seeds = [part for part, _ in pairs], [tangent for _, tangent in pairs]
            pulled = pull(outs, wanted, seeds, retain_graph=True, create_graph=True)
    results = iter(zeros_like(d) if g is None else g for d, g in zip(wanted, pulled, strict=True))
    made = [None if dummy is None else next(results) for dummy in dummies]
    return made if node.outputs > 1 else made[0]


def _zeros(kind: Any, dev: Any) -> Tensor:
    return wrap(dev.xp.zeros(*kind), dev)
