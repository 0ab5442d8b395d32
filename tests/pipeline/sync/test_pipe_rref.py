"""The result of a pipe is an RRef, with RPC and without."""

import pickle
import subprocess
import sys

import pytest

import resilin as torch
from resilin import nn
from resilin.distributed.pipeline.sync import Pipe
from resilin.distributed.rpc import RRef
from resilin.errors import RpcError


@pytest.fixture
def rref():
    return Pipe(nn.Sequential(nn.Linear(2, 2)), chunks=2)(torch.ones(4, 2))


def test_without_rpc_it_gives_the_value_and_its_graph(rref):
    assert isinstance(rref, RRef)
    y = rref.local_value()
    assert y is rref.to_here() is rref.to_here(timeout=1)
    y.sum().backward()
    assert rref.is_owner()
    assert rref.confirmed_by_owner()
    assert rref._get_type() is torch.Tensor is rref._get_type(blocking=False).wait()
    assert rref._get_future().done()
    assert str(rref) == "OwnerRRef(of this process, Tensor)"


@pytest.mark.parametrize(
    "use",
    [
        lambda rref: rref.owner(),
        lambda rref: rref.owner_name(),
        lambda rref: rref.rpc_sync(),
        lambda rref: rref.rpc_async(timeout=3),
        lambda rref: rref.remote(),
        pickle.dumps,
    ],
)
def test_without_rpc_what_needs_a_worker_says_so(rref, use):
    with pytest.raises(RpcError, match=r"RPC has not been initialized.*Use local_value\(\), or call .*init_rpc"):
        use(rref)


WITH_RPC = """
import sys
import resilin as torch
import resilin.distributed.rpc as rpc
from resilin import nn
from resilin.distributed.pipeline.sync import Pipe

rpc.init_rpc("worker", rank=0, world_size=1,
             rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method="file://" + sys.argv[1]))
layers = nn.Sequential(nn.Linear(2, 2).to("sim:0"), nn.Linear(2, 2).to("sim:1"))
rref = Pipe(layers, chunks=2)(torch.ones(4, 2).to("sim:0"))
assert rref.is_owner() and rref.owner_name() == "worker"
assert rref.to_here() is rref.local_value()
assert rref.rpc_sync().size() == (4, 2)
rref.local_value().sum().backward()
assert layers[0].weight.grad is not None
del rref
rpc.shutdown()
"""


@pytest.mark.slow
def test_with_rpc_it_is_a_reference_of_this_worker(tmp_path):
    command = [sys.executable, "-c", WITH_RPC, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
