"""Groups of processes that share one GPU: `cuda_ipc` between them, `nccl` in one alone. `pytest -m gpu` runs them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import ddp_cases
import group_cases
import pytest

import resilin
from resilin.distributed.wire import loader
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import start_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multiproc,
    pytest.mark.skipif(not resilin.cuda.is_available(), reason="no CUDA device"),
]

HOST = "shm" if loader.shared_memory else "stream"  # how tensors of the host go between ranks

HEAD = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import ddp_cases, group_cases, numpy
from resilin import dist
from standin_device import cuda
rank, size, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["FOLDER"]
dist.init_process_group(
    os.environ["BACKEND"], init_method=os.environ["TEST_INIT_METHOD"], rank=rank, world_size=size, timeout=60.0
)
"""

ALL = """
for name, case in group_cases.SAME_ON_ALL.items():
    case(rank)
    print("passed", name, flush=True)
if size > 1:
    group_cases.mismatches(rank)
group_cases.trains(rank, folder)
print(dist.default_group().stats()["transport"])
dist.destroy_process_group()
"""

PARALLEL = """
for name, case in ddp_cases.CASES.items():
    case(rank)
    print("passed", name, flush=True)
dist.destroy_process_group()
"""

KILLED = """
from resilin.errors import PeerLost
for _ in range(3):
    dist.all_reduce(cuda(numpy.ones(1 << 20, numpy.float32)))
print("ready", flush=True)
try:
    while True:
        x = cuda(numpy.ones(1 << 20, numpy.float32))
        dist.all_reduce(x)
        assert x.get()[0] == size
except PeerLost as error:
    print("lost", sorted(error.ranks))
dist.shrink_group([1])
x = cuda(numpy.ones(1 << 20, numpy.float32))
dist.all_reduce(x)
print(float(x.get()[-1]))
dist.destroy_process_group()
"""


ELASTIC = """
import os, signal, sys
from pathlib import Path
import numpy, resilin
from resilin import elastic, nn, optim
from resilin.ddp import DistributedDataParallel

folder, backend = Path(sys.argv[1]), sys.argv[2]

@elastic.run(backend=backend)
def train(state):
    model = DistributedDataParallel(state.model, [0], shards=4)
    x = resilin.from_numpy(numpy.random.default_rng(5).standard_normal((64, 6)).astype(numpy.float32))
    world = elastic.world()

    def die(gradient):
        if world.rank == 1 and state.step == 5 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    hook = state.model[0].weight.register_hook(die)
    while state.step < 12:
        for plan in state.sampler.steps():
            state.optimizer.zero_grad()
            for shard in plan.shards:
                with model.shard(shard):
                    if len(shard):
                        model(x[shard.indices]).square().mean().backward()
            state.optimizer.step()
            state.commit(plan)
            if state.step == 12:
                break
    hook.remove()

resilin.manual_seed(1)
net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3)).to("cuda")
optimizer = optim.AdamW(net.parameters(), lr=0.01)
state = elastic.State(model=net, optimizer=optimizer, sampler=elastic.ElasticSampler(64, 16, 4, seed=2))
train(state)
if elastic.world().rank == 0:
    (folder / "digest").write_text(state.fingerprint())
"""


def started(count, source, folder, backend):
    return start_ranks(count, HEAD + source, str(folder), BACKEND=backend, FOLDER=f"{folder}/saved")


def outputs(ranks):
    """What each printed; all of them are ended, and none failed."""
    found = []
    for rank in ranks:
        with rank:
            found.append(rank.finish(PATIENCE_S * 2))
    for code, _, errors in found:
        assert code == 0, errors
    return [out for _, out, _ in found]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_processes_read_one_anothers_memory_of_the_gpu(tmp_path, size):
    for out in outputs(started(size, ALL, tmp_path, "cpu:cpu,cuda:cuda_ipc")):
        assert out.count("passed") == len(group_cases.SAME_ON_ALL)
        assert out.splitlines()[-1] == f"{HOST if size > 1 else 'stream'}, cuda:cuda_ipc"


@pytest.mark.parametrize("backend", ["cpu:cpu,cuda:cuda_ipc", "cpu:gloo,cuda:gloo"])
def test_processes_train_one_module_in_parallel(tmp_path, backend):
    for out in outputs(started(2, PARALLEL, tmp_path, backend)):
        assert out.count("passed") == len(ddp_cases.CASES)


@pytest.mark.parametrize("backend", ["cpu:cpu,cuda:cuda_ipc", "cpu:gloo,cuda:gloo"])
def test_a_worker_killed_in_a_step_is_replaced_and_the_bits_are_those_of_one_worker(tmp_path, backend):
    """Fixed shards inside elastic.run; the killed one dies in backward."""
    program = tmp_path / "program.py"
    program.write_text(ELASTIC)
    digests = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        command = [
            Path(sys.executable).with_name("elastic-run"),
            "--standalone",
            f"--nproc-per-node={workers}",
            "--max-restarts=2",
            program,
            folder,
            backend,
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * 4, check=False)
        assert ended.returncode == 0, ended.stderr
        assert (folder / "killed").exists() == (workers > 1)
        digests.append((folder / "digest").read_text())
    assert digests[0] == digests[1]


def test_a_rank_alone_goes_through_nccl(tmp_path):
    (out,) = outputs(started(1, ALL, tmp_path, "nccl"))
    assert out.count("passed") == len(group_cases.SAME_ON_ALL)
    assert out.splitlines()[-1] == "stream, cuda:nccl"


def test_ranks_that_share_the_gpu_cannot_use_nccl_and_are_told_so(tmp_path):
    source = """
try:
    dist.all_reduce(cuda(numpy.ones(3)))
except dist.DistBackendError as error:
    print(error)
"""
    for out in outputs(started(2, source, tmp_path, "nccl")):
        assert "rank 0 and rank 1 compute on one" in out


def test_the_survivors_of_a_kill_name_the_dead_and_go_on_without_it(tmp_path):
    ranks = started(3, KILLED, tmp_path, "cpu:cpu,cuda:cuda_ipc")
    for rank in ranks:
        assert rank.read_line() == "ready"
    os.kill(ranks[1].pid, signal.SIGKILL)
    with ranks[1]:
        assert ranks[1].finish()[0] == -signal.SIGKILL
    assert [out.splitlines() for out in outputs([ranks[0], ranks[2]])] == [["lost [1]", "2.0"]] * 2
