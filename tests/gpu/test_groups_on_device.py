"""Groups of processes that share one GPU: `cuda_ipc` between them, `nccl` in one alone. `pytest -m gpu` runs them."""

import os
import signal
from pathlib import Path

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
import group_cases, numpy
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
