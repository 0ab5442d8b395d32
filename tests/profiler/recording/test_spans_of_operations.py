"""What operations, backward, optimizers and loaders leave in a trace."""

import itertools
import re

import numpy as np
import pytest

import resilin as torch
from resilin._base import trace
from resilin._base.trace import SpanKind
from resilin._base.trace_ring import TensorInput
from resilin.core.autograd import node_names
from resilin.core.kernels.loader import native
from resilin.core.ops.registry import OPS
from resilin.data import DataLoader

needs_native = pytest.mark.skipif(native is None, reason="there are no native kernels here")


def test_an_operation_and_its_backward_share_a_number(recorded):
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.randn(4, 2, requires_grad=True)
    with recorded() as found:
        loss = torch.relu(x @ w).sum()
        loss.backward()
    forward = {span.name: span.link for span in found.spans if span.kind == SpanKind.OP}
    backward = {span.name: span.link for span in found.spans if span.kind == SpanKind.BACKWARD}
    assert list(forward) == ["aten::matmul", "aten::relu", "aten::sum"]
    assert backward.pop("torch::autograd::AccumulateGrad") == -1
    assert list(backward) == ["SumBackward0", "ReluBackward0", "MmBackward0"]
    if native is not None:
        assert list(forward.values()) == list(reversed(backward.values()))


def test_leaves_take_their_gradients_in_spans_behind_their_nodes(recorded):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    for _ in range(2):  # the second time there is a gradient to add to
        with recorded() as found:
            model(torch.randn(5, 3)).sum().backward()
        leaf, node = "torch::autograd::AccumulateGrad", "AddmmBackward0"
        spans = [span for span in found.spans if span.kind == SpanKind.BACKWARD]
        assert [span.name for span in spans] == ["SumBackward0", node, leaf, leaf, node, leaf, leaf]
        assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(spans))


def test_gradients_that_are_asked_for_go_to_no_leaf(recorded):
    x = torch.ones(2, requires_grad=True)
    with recorded() as found:
        torch.autograd.grad((x * x).sum(), x)
    assert found.names(SpanKind.BACKWARD) == ["SumBackward0", "MulBackward0"]


@needs_native
def test_nodes_of_one_operation_have_the_names_of_their_kinds(recorded):
    """Names are kept by what makes them differ."""
    x, w, v, many = (torch.ones(shape, requires_grad=True) for shape in ((2, 2), (2, 2), 2, (3, 2, 2)))
    for _ in range(2):
        with recorded() as found:
            for y in (
                torch.nn.functional.linear(x, w, v), torch.nn.functional.linear(x, w), x.sum(0), x.sum(), x**w,
                x**2, 2**x, x @ w, w @ v, many @ w, x[0], x[:1], x[[0]],
            ):  # fmt: skip
                y.backward(torch.ones_like(y))
        firsts, behind = [], True
        for name in found.names(SpanKind.BACKWARD):
            if behind and name != "torch::autograd::AccumulateGrad":
                firsts.append(name)
            behind = name == "torch::autograd::AccumulateGrad"
        assert firsts == [
            "AddmmBackward0", "MmBackward0", "SumBackward1", "SumBackward0", "PowBackward1", "PowBackward0",
            "PowBackward1", "MmBackward0", "MvBackward0", "BmmBackward0", "SelectBackward0", "SliceBackward0",
            "IndexBackward0",
        ]  # fmt: skip


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_a_function_of_the_program_is_a_span_around_what_it_calls_and_shares_its_backwards_number(recorded):
    x = torch.ones(3, requires_grad=True)
    with recorded() as found:
        Doubled.apply(x).sum().backward()
    forward, inner = (next(span for span in found.spans if span.name == name) for name in ("Doubled", "aten::mul"))
    backward = next(span for span in found.spans if span.name == "DoubledBackward")
    assert forward.link == backward.link >= 0
    assert forward.start_ns <= inner.start_ns <= inner.end_ns <= forward.end_ns


@needs_native
def test_inputs_are_kept_with_shapes_strides_and_types(recorded):
    x, half = torch.randn(3, 4), torch.ones(2, dtype=torch.bfloat16)
    with recorded(record_shapes=True) as found:
        torch.add(x.t(), 2)
        torch.cat([x, x], 1)
        half.add_(True)
        torch.sum(x, 0)
    add = found.named("aten::add")[0]
    assert add.args == {"inputs": [TensorInput((4, 3), (1, 4), "f4"), 2]}
    (cat,) = found.named("aten::cat")
    assert cat.args["inputs"][0] == [TensorInput((3, 4), (4, 1), "f4")] * 2
    assert found.named("aten::add_")[0].args["inputs"] == [TensorInput((2,), (1,), "V2"), True]


CREATED = {
    "aten::zeros": lambda: torch.zeros(2, 3),
    "aten::ones": lambda: torch.ones(2, dtype=torch.float64),
    "aten::empty": lambda: torch.empty((2,)),
    "aten::full": lambda: torch.full((2,), 3.0),
    "aten::eye": lambda: torch.eye(2),
    "aten::arange": lambda: torch.arange(3),
    "aten::linspace": lambda: torch.linspace(0, 1, 3),
    "aten::rand": lambda: torch.rand(2),
    "aten::randn": lambda: torch.randn(2, requires_grad=True),
    "aten::randint": lambda: torch.randint(3, (2,)),
    "aten::randperm": lambda: torch.randperm(3),
    "aten::zeros_like": lambda: torch.zeros_like(ONE),
    "aten::ones_like": lambda: torch.ones_like(ONE),
    "aten::empty_like": lambda: torch.empty_like(ONE),
    "aten::full_like": lambda: torch.full_like(ONE, 2),
    "aten::randn_like": lambda: torch.randn_like(ONE),
    "aten::bernoulli": lambda: torch.bernoulli(ONE),
    "aten::uniform_": lambda: ONE.clone().uniform_(),
    "aten::normal_": lambda: ONE.clone().normal_(),
}
ONE = torch.ones(2)


@pytest.mark.parametrize("name", CREATED)
def test_tensors_that_are_made_are_spans_by_pytorchs_names(recorded, name):
    torch.manual_seed(1)
    quiet = CREATED[name]()
    torch.manual_seed(1)
    with recorded() as found:
        made = CREATED[name]()
    assert name in found.names(SpanKind.OP)
    assert (made.shape, made.dtype) == (quiet.shape, quiet.dtype)
    if "empty" not in name:
        assert (made == quiet).all()


def test_no_shapes_are_kept_unless_they_are_asked_for(recorded):
    with recorded() as found:
        torch.ones(3) + 1
    assert {span.args for span in found.spans} == {None}


@pytest.mark.parametrize("call", [lambda: torch.ones(2) + torch.ones(3), lambda: torch.split(torch.ones(4), "a")])
def test_an_error_comes_out_as_it_is_and_its_span_ends(recorded, call):
    with pytest.raises(Exception) as quiet:
        call()
    with recorded() as found, pytest.raises(type(quiet.value)) as heard:
        call()
    assert str(heard.value) == str(quiet.value)
    assert all(span.end_ns is not None for span in found.spans)


def test_results_are_the_same_bits_while_somebody_records(recorded):
    def step():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.randn(5, 8)), torch.tensor([0, 1, 2, 3, 0])).backward()
            optimizer.step()
        return [p.detach().numpy().copy() for p in model.parameters()]

    plain = step()
    with recorded(**({"record_shapes": True, "with_stack": True, "profile_memory": True} if native else {})):
        traced = step()
    assert all(np.array_equal(a, b) for a, b in zip(plain, traced, strict=True))


def test_optimizers_and_loaders_are_named_as_in_pytorch(recorded):
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with recorded() as found:
        for batch in DataLoader([torch.ones(2), torch.ones(2)], batch_size=1):
            optimizer.zero_grad()
            (weight * batch).sum().backward()
            optimizer.step()
    assert len(found.named("Optimizer.step#SGD.step")) == len(found.named("Optimizer.zero_grad#SGD.zero_grad")) == 2
    loads = found.named("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert len(loads) == 3
    assert {span.kind for span in loads} == {SpanKind.DATA}


@needs_native
def test_memory_is_recorded_when_it_is_taken_and_given_back(recorded):
    with recorded(profile_memory=True) as found:
        x = torch.zeros(1000)
        address = x.data_ptr()
        del x
    moments = [(span.value, span.instant) for span in found.spans if span.link == address]
    assert moments[:2] == [(4000, True), (-4000, True)]


@needs_native
def test_functions_of_python_surround_the_operations_that_they_call(recorded):
    def model(x):
        return torch.exp(x)

    with recorded(with_stack=True) as found:
        model(torch.ones(2))
    (function,) = [span for span in found.spans if span.name.endswith("): " + model.__qualname__)]
    assert function.kind == SpanKind.PYTHON
    assert f"{__file__}({model.__code__.co_firstlineno})" in function.name
    (exp,) = found.named("aten::exp")
    assert function.start_ns <= exp.start_ns <= exp.end_ns <= function.end_ns
    assert not [span.name for span in found.spans if "/resilin/core/" in span.name or "/_base/trace" in span.name]
    assert all(span.end_ns is not None for span in found.spans)


class Heard:
    """A recorder that is no ring."""

    def __init__(self):
        self.names = []
        self.open = []

    def begin(self, name, kind, link=-1, args=None):
        self.names.append(name)
        self.open.append(len(self.names))
        return len(self.names)

    def end(self, token, args=None):
        self.open.remove(token)

    def complete(self, name, kind, start_ns, end_ns, link=-1, args=None):
        self.names.append(name)

    def instant(self, name, kind, link=-1, value=0, args=None):
        self.names.append(name)


def test_any_recorder_hears_of_operations():
    heard, two, three = Heard(), torch.ones(2), torch.ones(3)
    trace.record_with(heard)
    try:
        with pytest.raises(RuntimeError):
            two + three
        torch.exp(two)
    finally:
        trace.record_with(None)
    torch.exp(two)
    assert heard.names == ["aten::add", "aten::exp"]
    assert heard.open == []


def test_every_operation_has_a_name_of_lower_case_words():
    names = {name: node_names.traced(name) for name in OPS}
    assert all(re.fullmatch(r"aten::[a-z0-9_]+", name) for name in names.values()), names
    assert names["multiply"] == "aten::mul"
    assert names["astype"] == "aten::_to_copy"
    assert names["expand_dims"] == "aten::unsqueeze"
    assert names["attention"] == "aten::scaled_dot_product_attention"
