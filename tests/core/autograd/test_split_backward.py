"""Backward in two halves: the same bits as a whole one, nothing twice, memory freed by the half that needs it last."""

import gc
import weakref

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.core import rng
from resilin.core.autograd.function import Function, FunctionNode
from resilin.core.autograd.split_backward import accumulate, split_backward, summed
from resilin.core.autograd.tape import Node
from resilin.core.tensor import Parameter
from resilin.nn import functional as F
from resilin.utils.checkpoint import checkpoint


class Scale(Function):
    """x * w, with a backward that counts its calls."""

    calls = 0

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        Scale.calls += 1
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = Parameter(resilin.randn(6))
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return Scale.apply(self.inner(x), self.w * 2)


class Tied(nn.Module):
    """One weight used three times, twice by way of other operations."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(resilin.randn(6, 6))

    def forward(self, x):
        return F.linear(F.linear(x, self.w).relu() @ self.w.t(), self.w * self.w.exp()) + x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, dropout=0.1)

    def forward(self, x):
        return self.attention(x[None], x[None], x[None], need_weights=False)[0][0]


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(6, 5, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.layer(x[None])[0][0]


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 1, bias=False)
        )

    def forward(self, x):
        return self.layers(x[None, None])[0].flatten(1)


class Looked(nn.Module):
    """An embedding, which no input reaches, added to what one does."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 6)

    def forward(self, x):
        places = resilin.arange(x.shape[0])
        return x * self.table(places) + self.table(places + 2).sum(0)


class Checkpointed(nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4), nn.GELU(), nn.LayerNorm(6))
        self.last = nn.Linear(6, 6)
        self.how, self.ran = how, []  # a list: a checkpoint puts a module's attributes back

    def part(self, x):
        self.ran.append(1)
        return self.inner(x)

    def forward(self, x):
        return self.last(checkpoint(self.part, x, **self.how))


LAYERS = {
    "linear": lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)),
    "convolutions and batch norm": Convolved,
    "embedding": Looked,
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6)),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6)),
    "group norm": lambda: nn.Sequential(nn.Linear(6, 6), nn.GroupNorm(2, 6), nn.PReLU()),
    "attention": Attention,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6)),
    "tied": Tied,
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 2)),
    "bilinear": lambda: nn.Sequential(_TwoOf(nn.Bilinear(6, 6, 4))),
    "a Function": Custom,
    "checkpointed": Checkpointed,
    "a transformer": lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.1),
}


class _TwoOf(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, x.sin())


def outputs(make):
    """The module, an input that wants a gradient, and its output, always with the same numbers."""
    resilin.manual_seed(3)
    module, x = make(), resilin.randn(6, 6).requires_grad_()
    with rng.keyed(1):
        return module, x, module(x)


def bits(tensor):
    return None if tensor is None else (tensor.numpy().tobytes(), tensor.dtype, tuple(tensor.shape))


def gradients(module):
    return {name: bits(param.grad) for name, param in module.named_parameters()}


@pytest.mark.parametrize("name", LAYERS)
def test_two_halves_give_the_bits_of_a_whole_backward(name):
    module, x, y = outputs(LAYERS[name])
    g = resilin.randn(y.shape)
    y.backward(g)
    halves, x2, y2 = outputs(LAYERS[name])
    (gx,), weights = split_backward([y2], [g], [x2])
    assert bits(gx) == bits(x.grad)
    assert x2.grad is None
    assert all(param.grad is None for param in halves.parameters())
    weights.run()
    assert gradients(halves) == gradients(module)
    assert any(param.grad is not None for param in halves.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_no_rule_computes_a_gradient_twice(name, monkeypatch):
    computed, run = [], Node.run

    def watched(node, g):
        parts = list(run(node, g))
        computed.extend((node, place) for place, part in enumerate(parts) if part is not None)
        return parts

    monkeypatch.setattr(Node, "run", watched)
    _, x, y = outputs(LAYERS[name])
    _, weights = split_backward([y], [resilin.ones(y.shape)], [x])
    first = len(computed)
    weights.run()
    assert len(set(computed)) == len(computed) >= first > 0


def test_a_function_runs_once_and_its_weights_part_waits():
    Scale.calls = 0
    module, x, y = outputs(Custom)
    (gx,), weights = split_backward([y.sum()], [None], [x])
    assert Scale.calls == 1
    assert gx is not None
    assert module.w.grad is None
    weights.run()
    assert Scale.calls == 1
    assert module.w.grad is not None


@pytest.mark.parametrize("early_stop", [True, False])
def test_a_checkpoint_runs_again_once_for_both_halves(early_stop):
    module, x, y = outputs(lambda: Checkpointed(early_stop=early_stop))
    _, weights = split_backward([y.sum()], [None], [x])
    assert len(module.ran) == 2
    weights.run()
    assert len(module.ran) == 2
    whole, _, y = outputs(Checkpointed)
    y.sum().backward()
    assert gradients(module) == gradients(whole)


def test_a_checkpoint_that_no_input_leads_to_runs_again_in_the_second_half():
    module, _, y = outputs(Checkpointed)
    _, weights = split_backward([y.sum()], [None], [])
    assert len(module.ran) == 1
    weights.run()
    assert len(module.ran) == 2


def test_a_reentrant_checkpoint_gives_the_same_gradients():
    module, x, y = outputs(lambda: Checkpointed(use_reentrant=True))
    (gx,), weights = split_backward([y.sum()], [None], [x])
    weights.run()
    whole, x, y = outputs(Checkpointed)
    y.sum().backward()
    assert gradients(module) == gradients(whole)
    assert bits(gx) == bits(x.grad)
    assert len(module.ran) == 2


def test_each_half_frees_what_it_needed_last():
    x = resilin.randn(4, 4).requires_grad_()
    w = Parameter(resilin.randn(4, 4))
    hidden = F.linear(x, w)
    soft = hidden.tanh()  # its rule keeps the result
    kept = weakref.ref(hidden._node), weakref.ref(soft._node)
    y = soft.sum()
    del hidden, soft
    _, weights = split_backward([y], [None], [x])
    linear, tanh = (ref() for ref in kept)
    assert tanh.freed
    assert tanh.y is None
    assert not linear.freed
    assert linear.saved[0] is x
    del tanh
    weights.run()
    assert linear.freed
    del linear, y, weights
    gc.collect()
    assert all(ref() is None for ref in kept)


def test_the_second_half_alone_keeps_what_it_needs():
    x = resilin.randn(4, 4).requires_grad_()
    w = Parameter(resilin.randn(4, 4))
    y = F.linear(x, w).exp()
    seen = weakref.ref(y._node)
    _, weights = split_backward([y.sum()], [None], [x])
    del y
    gc.collect()
    assert seen() is None  # exp has no weight: nothing waits for it
    weights.run()
    assert w.grad is not None


def test_a_part_whose_gradient_is_not_wanted_by_any_input_does_all_in_the_second_half():
    module, _, y = outputs(LAYERS["linear"])
    found, weights = split_backward([y.sum()], [None], [])
    assert found == []
    assert all(param.grad is None for param in module.parameters())
    weights.run()
    assert all(param.grad is not None for param in module.parameters())


def test_an_input_that_nothing_leads_to_gets_none():
    module, x, y = outputs(LAYERS["linear"])
    other = resilin.ones(2).requires_grad_()
    found, _ = split_backward([y.sum()], [None], [other, x])
    assert found[0] is None
    assert found[1] is not None
    del module


def test_several_outputs_and_gradients_that_are_none():
    module, x, y = outputs(lambda: Recurrent(nn.LSTM))
    a, b = y.chunk(2, 1)
    (gx,), weights = split_backward([a.sum(), b.exp()], [None, resilin.ones(b.shape)], [x])
    weights.run()
    whole, x2, y = outputs(lambda: Recurrent(nn.LSTM))
    a, b = y.chunk(2, 1)
    resilin.autograd.backward([a.sum(), b.exp()], [None, resilin.ones(b.shape)])
    assert gradients(module) == gradients(whole)
    assert bits(gx) == bits(x2.grad)


def test_hooks_of_tensors_nodes_and_leaves_run_once_each():
    calls = []
    x = resilin.randn(3, 3).requires_grad_()
    w = Parameter(resilin.randn(3, 3))
    w.register_hook(lambda g: calls.append("w") or g * 2)
    w.register_post_accumulate_grad_hook(lambda leaf: calls.append("done"))
    hidden = F.linear(x, w)
    hidden.register_hook(lambda g: calls.append("hidden"))
    hidden.grad_fn.register_hook(lambda into, out: calls.append("node"))
    _, weights = split_backward([hidden.sum()], [None], [x])
    assert calls == ["hidden", "node"]
    weights.run()
    assert calls == ["hidden", "node", "w", "done"]
    np.testing.assert_array_equal(w.grad.numpy(), 2 * np.ones((3, 1)) @ x.detach().numpy().sum(0, keepdims=True))


def test_what_is_kept_apart_sums_to_the_bits_of_a_whole_backward():
    module, _x, y = outputs(Tied)
    g = resilin.randn(y.shape)
    y.backward(g)
    halves, x2, y2 = outputs(Tied)
    _, weights = split_backward([y2], [g], [x2], apart=[halves.w])
    parts = weights.run()[halves.w]
    assert halves.w.grad is None
    assert len(parts) == 4
    one = summed(halves.w, None, parts[:1])
    accumulate(halves.w, one, parts[1:])
    assert bits(halves.w.grad) == bits(module.w.grad)


def test_the_second_half_runs_once():
    _, x, y = outputs(LAYERS["linear"])
    _, weights = split_backward([y.sum()], [None], [x])
    weights.run()
    with pytest.raises(RuntimeError, match="has run already"):
        weights.run()


def test_inputs_that_are_results_are_refused():
    _, x, y = outputs(LAYERS["linear"])
    with pytest.raises(RuntimeError, match=r"inputs\[1\]: expected a leaf"):
        split_backward([y.sum()], [None], [x, y])


def test_a_rule_that_raises_in_either_half_says_so():
    class Bad(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise ValueError("no gradient today")

    x, w = resilin.ones(2).requires_grad_(), Parameter(resilin.ones(2))
    with pytest.raises(ValueError, match="no gradient today"):
        split_backward([(Bad.apply(x) * w).sum()], [None], [x])
    _, weights = split_backward([(x * Bad.apply(w)).sum()], [None], [x])
    with pytest.raises(ValueError, match="no gradient today"):
        weights.run()
    assert issubclass(FunctionNode, Node)
