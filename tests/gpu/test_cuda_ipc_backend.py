"""The cuda_ipc backend's host side, over a stand-in for CUDA's IPC between threads."""

import threading

import cupy_standin
import fake_ipc
import group_cases
import numpy as np
import pytest
import standin_device
from standin_device import cuda

from resilin import distributed as dist
from resilin.core import device as devices
from resilin.distributed.backends.gpu import cuda_ipc
from resilin.distributed.backends.gpu.cuda_ipc import Arena, Maps, unreachable
from resilin.errors import CollectiveTimeout, DistBackendError, GroupAborted, PeerLost
from resilin.testing.check_group import GroupConformance
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import run_ranks

FLOAT = np.dtype(np.float32)


@pytest.fixture
def ipc(monkeypatch):
    """The stand-ins, as the device "cuda"."""
    module = cupy_standin.make_module(devices=2)
    fake = fake_ipc.install(module, monkeypatch)
    standin_device.install(monkeypatch, module)
    return fake


@pytest.fixture
def run(ipc):
    def of(size, case, **kwargs):
        return run_ranks(size, case, backend="cpu:cpu,cuda:cuda_ipc", **kwargs)

    return of


@pytest.mark.slow
def test_reductions_give_the_documented_result_for_every_op_and_dtype(run):
    run(3, group_cases.reductions).results()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_everything_that_moves_works_at_any_size_and_in_place(run, size):
    run(size, group_cases.moves).results()


@pytest.mark.parametrize("size", [1, 2])
def test_the_shard_tree_gives_the_bits_of_one_process(run, size):
    run(size, group_cases.shard_trees).results()


@pytest.mark.slow
def test_ranks_that_average_gradients_train_as_one_process_does(run, tmp_path):
    run(2, group_cases.trains, folder=str(tmp_path)).results()


def test_memory_is_mapped_once_until_an_arena_grows_and_is_given_back_at_the_end(run, ipc):
    def rank_main(rank):
        for _ in range(3):
            dist.all_reduce(cuda(np.ones(1000, FLOAT)))
        dist.barrier()
        before = ipc.opened, ipc.closed
        dist.barrier()
        dist.all_reduce(cuda(np.ones(1_000_000, FLOAT)))
        dist.barrier()
        after = ipc.opened, ipc.closed
        dist.barrier()
        return before, after, dist.default_group().stats()["transport"]

    assert run(2, rank_main).results() == [((2, 0), (4, 2), "shm, cuda:cuda_ipc")] * 2
    assert ipc.owned == ipc.mapped == {}
    assert len(ipc.waited) >= 2 * 4  # the GPU waits for the peer's event in every call


def test_a_mismatch_raises_on_all_ranks_and_leaves_the_group_usable(run):
    run(2, group_cases.mismatches).results()


def test_a_handle_that_cannot_be_opened_is_an_error_on_the_rank_and_told_to_the_others(run, ipc, monkeypatch):
    module = devices.backend_of("cuda").cupy
    names = threading.local()

    def refusing(handle, flags=1):
        if names.rank == 1:
            raise fake_ipc.CudaError("cudaErrorInvalidResourceHandle: invalid resource handle")
        return ipc.open_handle(handle)

    monkeypatch.setattr(module.cuda.runtime, "ipcOpenMemHandle", refusing)

    def rank_main(rank):
        names.rank = rank
        for _ in range(2):
            dist.all_reduce(cuda(np.ones(3)))

    outcome = run(2, rank_main)
    assert type(outcome.errors[1]) is DistBackendError
    assert "cuda_ipc, mapping rank 0's memory: cudaErrorInvalidResourceHandle" in str(outcome.errors[1])
    assert isinstance(outcome.errors[0], GroupAborted)
    assert "cudaErrorInvalidResourceHandle" in str(outcome.errors[0])


def test_a_full_gpu_is_an_error_of_ours(run, ipc, monkeypatch):
    def full(size):
        raise fake_ipc.CudaError("cudaErrorMemoryAllocation: out of memory")

    monkeypatch.setattr(devices.backend_of("cuda").cupy.cuda.runtime, "malloc", full)
    outcome = run(1, lambda rank: dist.all_reduce(cuda(np.ones(3))))
    with pytest.raises(DistBackendError, match="cuda_ipc, growing the arena: cudaErrorMemoryAllocation"):
        outcome.results()


def test_a_dead_rank_is_named_and_abort_returns_a_rank_whose_gpu_never_finishes(run, monkeypatch):
    faults = FaultPlan().kill(rank=2, at="all_reduce", call=1)

    def steps(rank):
        for _ in range(3):
            dist.all_reduce(cuda(np.ones(3)))

    outcome = run(3, steps, faults=faults)
    assert {rank: type(error) for rank, error in outcome.errors.items()} == {0: PeerLost, 1: PeerLost}
    assert all(error.ranks == {2} for error in outcome.errors.values())

    monkeypatch.setattr(devices.backend_of("cuda").cupy.cuda.Event, "done", property(lambda event: False))
    waiting = threading.Barrier(2)

    def aborted(rank):
        work = dist.all_reduce(cuda(np.ones(3)), async_op=True)
        waiting.wait(20)
        if rank == 0:
            dist.default_group().abort()
        work.wait(20.0)

    outcome = run(2, aborted, timeout_s=60.0)
    assert {type(error) for error in outcome.errors.values()} == {GroupAborted}
    outcome = run(2, steps, timeout_s=0.3)
    kinds = [type(outcome.errors[rank]) for rank in range(2)]  # the second may hear of it from the first
    assert CollectiveTimeout in kinds
    assert set(kinds) <= {CollectiveTimeout, GroupAborted}
    assert all("the GPU did not finish copying into the arena" in str(error) for error in outcome.errors.values())


def test_ranks_without_access_to_one_another_all_go_through_the_host_and_say_why(run, ipc, monkeypatch, caplog):
    runtime = devices.backend_of("cuda").cupy.cuda.runtime
    real = cuda_ipc._access
    monkeypatch.setattr(cuda_ipc, "_access", lambda runtime, own: lambda bus: real(runtime, 1)(bus))
    ipc.no_access.add((1, 0))
    assert runtime.deviceGetByPCIBusId("0000:01:00.0") == 1

    def rank_main(rank):
        x = cuda(np.full(3, rank, FLOAT))
        dist.all_reduce(x)
        return x.get().tolist(), dist.default_group().stats()["transport"]

    with caplog.at_level("WARNING", "resilin.distributed.cuda_ipc"):
        assert run(2, rank_main).results() == [([1.0] * 3, "shm, cuda:shm, staged")] * 2
    assert "tensors go through the host" in caplog.text
    assert ipc.opened == 0


def test_what_keeps_ranks_apart_is_said_in_words():
    cards = [{"host": "a", "bus": "0"}, {"host": "a", "bus": "1"}, {"host": "b", "bus": "0"}]
    assert unreachable(0, cards, lambda bus: None) == ["rank 2 is on another host than rank 0"]
    assert unreachable(2, [*cards[:2], {"host": "a", "bus": "2"}], lambda bus: "so" if bus == "1" else None) == [
        "rank 2 cannot read the GPU 1 of rank 1, so"
    ]


def test_arenas_count_generations_and_maps_follow_them(ipc):
    runtime = devices.backend_of("cuda").cupy.cuda.runtime
    arena, maps = Arena(runtime), Maps(runtime)
    assert (arena.handle(), arena.generation) == (b"", 0)
    arena.reserve(10)
    arena.reserve(1000)
    assert arena.generation == 1
    first = maps.arena(3, 1, arena.handle())
    assert maps.arena(3, 1, b"not looked at") == first
    arena.reserve(arena.size + 1)
    assert arena.generation == 2
    assert maps.arena(3, 2, arena.handle()) != first
    assert (ipc.opened, ipc.closed) == (2, 1)
    with pytest.raises(fake_ipc.CudaError):
        maps.arena(4, 1, b"x" * fake_ipc.HANDLE_BYTES)
    maps.close()
    maps.close()
    arena.free()
    assert ipc.owned == ipc.mapped == {}


class TestHostTensorsOfItsGroup(GroupConformance):
    """Of such a group: objects, messages, subgroups, mistakes and whatever else is called with tensors of the host.

    Those of the device are not of this suite, whose cases make numpy arrays: the tests above are theirs.
    """

    sizes = (2,)

    @pytest.fixture
    def run(self, ipc):
        return lambda size, case: run_ranks(size, case, size, backend="cpu:cpu,cuda:cuda_ipc", abort=False).results()
