"""RPC between two processes that share one GPU: what each channel carries. `pytest -m gpu` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

import resilin
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import start_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multiproc,
    pytest.mark.skipif(not resilin.cuda.is_available(), reason="no CUDA device"),
]

WORKER = """
import logging, os
import resilin as torch
import resilin.distributed.rpc as rpc

rank, channels = int(os.environ["RANK"]), os.environ["CHANNELS"].split(",")
taken = set()
handler = logging.Handler()
handler.emit = lambda record: taken.add((record.fields["channel"], record.fields["device"]))
log = logging.getLogger("resilin.rpc.channels")
log.addHandler(handler)
log.setLevel(logging.INFO)

options = rpc.TensorPipeRpcBackendOptions(
    init_method="file://" + os.environ["FOLDER"] + "/store",
    device_maps={f"worker{1 - rank}": {"cuda:0": "cuda:0"}},
    devices=["cuda:0"],
    channels=channels,
)
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
to = f"worker{1 - rank}"
for count in (1, 1000, 3_000_001):
    x = torch.arange(count).float().to("cuda:0")
    for _ in range(5):
        got = rpc.rpc_sync(to, torch.add, args=(x, 1))
        assert str(got.device) == "cuda:0"
        assert torch.equal(got.cpu(), x.cpu() + 1)
    pending = [rpc.rpc_async(to, torch.mul, args=(x, factor)) for factor in range(8)]
    x.fill_(-1)  # what is under way is a snapshot
    for factor, future in enumerate(pending):
        assert torch.equal(future.wait().cpu(), torch.arange(count).float() * factor)
y = torch.arange(24).float().to("cuda:0").reshape(4, 6)
assert torch.equal(rpc.rpc_sync(to, torch.clone, args=(y.t(),)).cpu(), y.t().cpu())
assert (channels[-1], "cuda:0") in taken, taken
rpc.api._all_gather(None)
rpc.shutdown()
print("done")
"""


@pytest.mark.parametrize("channels", ["inline,staged", "inline,staged,striped", "inline,cuda_ipc"])
def test_tensors_of_a_gpu_travel_by_each_channel(tmp_path: Path, channels: str) -> None:
    ordered = ",".join(sorted(channels.split(","), key=lambda name: name == "staged"))
    source = WORKER.replace("channels[-1]", repr(channels.split(",")[-1]))
    found = []
    for rank in start_ranks(2, source, str(tmp_path), CHANNELS=ordered, FOLDER=str(tmp_path)):
        with rank:
            found.append(rank.finish(PATIENCE_S * 2))
    for code, out, errors in found:
        assert code == 0, errors
        assert "done" in out
