"""Nodes of the graph as their users see them: names, edges, callbacks."""

from __future__ import annotations

from typing import Any

import pytest

import resilin
from resilin import autograd
from resilin.autograd import graph
from resilin.nn import functional as F

X = resilin.arange(12.0).reshape(3, 4).requires_grad_()
W = resilin.ones(4, 4, requires_grad=True)
B = resilin.ones(4, requires_grad=True)

# As PyTorch names them (recorded by hand from 2.13)
NAMES = {
    "AddBackward0": lambda: X + X,
    "MulBackward0": lambda: X * X,
    "DivBackward0": lambda: X / X,
    "SubBackward0": lambda: X - X,
    "PowBackward0": lambda: X**3,
    "PowBackward1": lambda: X**X,
    "NegBackward0": lambda: -X,
    "SumBackward0": lambda: X.sum(),
    "SumBackward1": lambda: X.sum(0),
    "MeanBackward0": lambda: X.mean(),
    "MeanBackward1": lambda: X.mean(0),
    "MmBackward0": lambda: X @ W,
    "BmmBackward0": lambda: resilin.bmm(X[None], W[None]),
    "MvBackward0": lambda: X @ B,
    "DotBackward0": lambda: B @ B,
    "AddmmBackward0": lambda: F.linear(X, W, B),
    "ReluBackward0": lambda: X.relu(),
    "SoftmaxBackward0": lambda: X.softmax(0),
    "LogSoftmaxBackward0": lambda: X.log_softmax(0),
    "NllLossBackward0": lambda: F.cross_entropy(X, resilin.tensor([0, 1, 2]), reduction="none"),
    "NativeLayerNormBackward0": lambda: F.layer_norm(X, (4,)),
    "ConvolutionBackward0": lambda: F.conv2d(X[None, None], W[None, None, :2, :2]),
    "ViewBackward0": lambda: X.reshape(12),
    "PermuteBackward0": lambda: X.permute(1, 0),
    "UnsqueezeBackward0": lambda: X.unsqueeze(0),
    "SelectBackward0": lambda: X[0],
    "SliceBackward0": lambda: X[0:2],
    "IndexBackward0": lambda: X[resilin.tensor([0, 1])],
    "CatBackward0": lambda: resilin.cat([X, X]),
    "StackBackward0": lambda: resilin.stack([X, X]),
    "CloneBackward0": lambda: X.clone(),
    "ToCopyBackward0": lambda: X.double(),
    "ExpBackward0": lambda: X.exp(),
    "VarBackward0": lambda: X.var(),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_node_has_pytorchs_name(name: str) -> None:
    made = NAMES[name]()
    assert made.grad_fn.name() == name
    assert repr(made.grad_fn).startswith(f"<{name} object at 0x")
    assert f"grad_fn=<{name}>" in repr(made)


def test_edges_lead_to_nodes_with_the_number_of_their_output_and_to_leaves() -> None:
    root = (X * 2).grad_fn
    assert [number for _, number in root.next_functions] == [0, 0]
    leaf, nothing = (node for node, _ in root.next_functions)
    assert leaf.name() == "AccumulateGrad"
    assert leaf.variable is X
    assert leaf.next_functions == ()
    assert leaf == X.sum().grad_fn.next_functions[0][0]
    assert nothing is None
    second = X.split(2)[1]
    (node, number), _ = (second * 2).grad_fn.next_functions
    assert (node, number) == (second.grad_fn, 1)


def test_gradients_begin_and_end_at_edges() -> None:
    middle = X * 2
    total = (middle**2).sum()
    edge = graph.get_gradient_edge(middle)
    at_edge, at_tensor = (autograd.grad(total, place, retain_graph=True)[0] for place in (edge, middle))
    assert resilin.equal(at_edge, at_tensor)
    (found,) = autograd.grad(edge, X, resilin.ones(3, 4), retain_graph=True)
    assert resilin.equal(found, resilin.full((3, 4), 2.0))
    (leaf,) = autograd.grad(total, graph.get_gradient_edge(X))
    assert resilin.equal(leaf, 8 * X.detach())
    with pytest.raises(RuntimeError, match="does not require gradients"):
        graph.get_gradient_edge(resilin.ones(2))
    with pytest.raises(RuntimeError, match="has no shape"):
        autograd.grad(edge, X)


def test_a_nodes_callbacks_see_and_replace_what_it_gets_and_gives() -> None:
    x = resilin.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    seen: list[Any] = []
    before = y.grad_fn.register_prehook(lambda outer: (outer[0] * 3,))
    after = y.grad_fn.register_hook(lambda inner, outer: seen.append((inner, outer)))
    (found,) = autograd.grad(y.sum(), x, retain_graph=True)
    assert found.tolist() == [6.0, 12.0]
    assert seen[0][1][0].tolist() == [3.0, 3.0]
    assert [part.tolist() for part in seen[0][0]] == [[3.0, 6.0], [3.0, 6.0]]
    before.remove()
    after.remove()
    y.grad_fn.register_hook(lambda inner, outer: (None, inner[1]))
    assert autograd.grad(y.sum(), x, retain_graph=True)[0].tolist() == [1.0, 2.0]
    y.grad_fn.register_hook(lambda inner, outer: (inner[0],))
    with pytest.raises(RuntimeError, match="incorrect number of values"):
        autograd.grad(y.sum(), x)


def test_callbacks_of_a_leafs_node_run_before_and_after_it_accumulates() -> None:
    x = resilin.tensor([1.0, 2.0], requires_grad=True)
    leaf = (x * 2).grad_fn.next_functions[0][0]
    leaf.register_prehook(lambda outer: (outer[0] * 5,))
    seen: list[Any] = []
    leaf.register_hook(lambda inner, outer: seen.append((inner, outer[0].tolist())))
    (x * 2).sum().backward()
    assert x.grad.tolist() == [10.0, 10.0]
    assert seen == [((), [10.0, 10.0])]


def test_a_node_keeps_notes() -> None:
    y = X * 2
    y.grad_fn.metadata["why"] = "because"
    assert y.grad_fn.metadata == {"why": "because"}
    assert (X * 2).grad_fn.metadata == {}
