"""Classes name PyTorch's places while `as_torch` runs, and are found there again."""

import subprocess
import sys

import pytest

import resilin
from resilin import nn

PROGRAM = """
import copy, inspect, io, pickle, sys, typing
import torch
from torch import nn

assert str(type(torch.ones(1))) == "<class 'torch.Tensor'>"
shown = [nn.Parameter, nn.Linear, torch.optim.SGD, torch.Size, torch.dtype, torch.device, torch.return_types.max]
assert [f"{one.__module__}.{one.__qualname__}" for one in shown] == [
    "torch.nn.parameter.Parameter", "torch.nn.modules.linear.Linear", "torch.optim.sgd.SGD", "torch.Size",
    "torch.dtype", "torch.device", "torch.return_types.max",
]
assert str(torch.utils.data.TensorDataset) == "<class 'torch.utils.data.dataset.TensorDataset'>"
assert str(torch.FloatTensor) == "<class 'torch.FloatTensor'>" and torch.typename(nn.ReLU()).startswith("torch.nn.")
assert type(nn.BatchNorm1d(2)).__module__.startswith("torch.nn.modules.")

net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.LSTM(2, 2))
values = [net, torch.ones(2), nn.Parameter(torch.ones(1)), torch.Size([2]), torch.float32, torch.device("cpu")]
again = pickle.loads(pickle.dumps(values))
assert [type(one) for one in again] == [type(one) for one in values]
assert again[3:] == values[3:]
assert inspect.getsource(nn.Linear).startswith("class Linear")
class Net(nn.Module):
    width: int
assert typing.get_type_hints(Net)["width"] is int

torch.save(net, sys.argv[1])
assert str(torch.load(sys.argv[1], weights_only=False)) == str(net)
with torch.serialization.safe_globals([nn.Linear, nn.Sequential, nn.BatchNorm1d, nn.LSTM]):
    assert str(torch.load(sys.argv[1])) == str(net)
print("done")
"""


@pytest.mark.slow
def test_a_program_sees_pytorchs_places_and_its_modules_are_read_without_it(tmp_path):
    file = tmp_path / "net.pt"
    command = [sys.executable, "-m", "resilin.as_torch", "-c", PROGRAM, str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
    net = resilin.load(file, weights_only=False)
    assert type(net[0]) is nn.Linear
    assert type(net[0]).__module__ == "resilin.nn.modules.linear"


def test_objects_of_programs_under_as_torch_travel_between_ranks():
    codec = "from resilin.distributed.wire import object_codec as codec; import torch; "
    code = codec + (
        "sent = [torch.ones(2), torch.nn.Parameter(torch.zeros(1)), torch.Size([3]), torch.float16];"
        "sent.append(torch.device('cpu'));"
        "got = codec.load(codec.dump(sent), weights_only=True);"
        "print([type(one).__name__ for one in got])"
    )
    done = subprocess.run([sys.executable, "-m", "resilin.as_torch", "-c", code], capture_output=True, text=True)
    assert done.stdout == "['Tensor', 'Parameter', 'Size', 'dtype', 'device']\n", done.stderr
