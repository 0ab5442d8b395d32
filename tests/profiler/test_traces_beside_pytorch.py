"""A trace of a small model says what PyTorch's trace of the same model says: tests/fixtures/make_torch_trace.py."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import resilin as torch
from resilin.core.kernels import loader
from resilin.profiler import profile, record_function

KEPT = Path(__file__).parents[1] / "fixtures" / "torch_trace.json.gz"
INPUTS = ("Concrete Inputs", "Input type", "Input Strides", "Input Dims")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The events of ours, and of PyTorch's."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 8)
    with profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
        with record_function("mine"):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("trace") / "ours.json"
    prof.export_chrome_trace(path)
    kept = json.loads(gzip.decompress(KEPT.read_bytes()))
    return json.loads(path.read_text())["traceEvents"], kept["traceEvents"]


def args(events, name):
    """The arguments of all events of a name that are in PyTorch's place of it."""
    return [event["args"] for event in events if event["name"] == name and event["ph"] in "Xi"]


@pytest.mark.skipif(loader.native is None, reason="without native code shapes are not recorded")
@pytest.mark.parametrize("name", ["aten::linear", "aten::relu"])
def test_inputs_of_operations_are_pytorchs(traces, name):
    ours, theirs = ([{key: each[key] for key in INPUTS} for each in args(events, name)] for events in traces)
    assert len(ours) > 0
    assert ours == theirs


@pytest.mark.skipif(loader.native is None, reason="without native code shapes and memory are not recorded")
@pytest.mark.parametrize("name", ["aten::linear", "aten::relu", "mine", "Optimizer.step#SGD.step", "[memory]"])
def test_names_of_arguments_are_pytorchs(traces, name):
    ours, theirs = ({frozenset(each) for each in args(events, name)} for events in traces)
    assert ours == theirs != set()


@pytest.mark.parametrize("name", ["MeanBackward0", "PowBackward0", "AddmmBackward0", "ReluBackward0"])
def test_nodes_of_backward_have_no_other_arguments_than_pytorchs(traces, name):
    ours, theirs = ({key for each in args(events, name) for key in each} for events in traces)
    assert {"Sequence number", "Fwd thread id"} <= ours <= theirs
