"""The nccl backend's host side over a stand-in for NCCL between threads: results, refusals, ends."""

import itertools
import threading

import cupy_standin
import fake_nccl
import group_cases
import numpy as np
import pytest
import standin_device
from standin_device import cuda

import resilin
from resilin import distributed as dist
from resilin.core import device as devices
from resilin.errors import CollectiveTimeout, DistBackendError, GroupAborted, PeerLost, UsageError
from resilin.testing.check_group import GroupConformance
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import run_ranks


@pytest.fixture
def module(monkeypatch):
    """The stand-in for CuPy with one for NCCL, as the device "cuda"."""
    monkeypatch.setattr(fake_nccl, "MADE", [])
    monkeypatch.setattr(fake_nccl, "UNBLOCK", threading.Event())
    made = cupy_standin.make_module(devices=2)
    gpus = itertools.count()
    made.cuda.runtime.deviceGetPCIBusId = lambda index: f"0000:{next(gpus):02x}:00.0"  # ranks are threads
    made.cuda.Stream, made.cuda.Event = fake_nccl.Stream, fake_nccl.Event
    library = fake_nccl.make_nccl()
    monkeypatch.setattr(standin_device.install(monkeypatch, made), "nccl", lambda: library)
    yield made
    fake_nccl.UNBLOCK.set()


@pytest.fixture
def run(module):
    def of(size, case, **kwargs):
        return run_ranks(size, case, backend="nccl", **kwargs)

    return of


@pytest.mark.slow
def test_reductions_give_the_documented_result_for_every_op_and_dtype(run):
    run(3, group_cases.reductions).results()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_only_moves_data_works_in_rows_and_in_lists_and_in_place(run, size):
    run(size, group_cases.moves).results()


def test_the_shard_tree_gives_the_bits_of_one_process(run):
    run(3, group_cases.shard_trees).results()


def test_tensors_of_both_kinds_go_their_ways_in_one_group_and_one_communicator_is_made_when_needed(run, module):
    def rank_main(rank):
        assert str(dist.get_backend()) == "nccl"
        host = np.ones(4)
        dist.all_reduce(host)
        before = len(fake_nccl.MADE)
        dist.barrier()
        x = resilin.ones(3, 2).to("cuda")
        works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        assert x.tolist() == [[8.0, 8.0]] * 3
        dist.all_reduce(x.T)  # not contiguous
        assert x.tolist() == [[16.0, 16.0]] * 3
        things = [None, None]
        dist.all_gather_object(things, rank)
        if rank == 0:
            dist.send(x, dst=1)
        else:
            y = resilin.zeros(3, 2).to("cuda")
            dist.recv(y, src=0)
            assert y.tolist() == x.tolist()
        dist.barrier()
        return before, dist.default_group().stats()["transport"], host.tolist(), things

    assert run(2, rank_main).results() == [(0, "shm, cuda:nccl", [2.0] * 4, [0, 1])] * 2
    assert [(comm.destroyed, comm.aborted) for comm in fake_nccl.MADE] == [(True, False)] * 2
    assert fake_nccl.Stream.null in [stream for stream in fake_nccl.Stream.by_address.values() if not stream.pending]


def test_work_comes_after_what_the_device_was_given_before(run):
    def rank_main(rank):
        dist.all_reduce(cuda(np.ones(3)))

    before = set(fake_nccl.Stream.by_address)
    run(2, rank_main).results()
    made = [stream for address, stream in fake_nccl.Stream.by_address.items() if address not in before]
    assert len(made) == 2
    assert all(stream.waited_for for stream in made)


def test_a_mismatch_raises_on_all_ranks_and_nothing_reaches_nccl(run):
    run(2, group_cases.mismatches).results()


def _never(monkeypatch, after):
    """From the group of calls number `after` on, NCCL does not finish any more."""
    real, count = fake_nccl._run_together, []

    def together(groups):
        count.append(1)
        return len(count) <= after and real(groups)

    monkeypatch.setattr(fake_nccl, "_run_together", together)


def test_nccl_that_does_not_finish_is_a_timeout_and_its_kernels_are_ended(run, monkeypatch):
    _never(monkeypatch, 1)

    def rank_main(rank):
        dist.all_reduce(cuda(np.ones(2)))
        dist.all_reduce(cuda(np.ones(2)))

    outcome = run(2, rank_main, timeout_s=0.4)
    kinds = [type(outcome.errors[rank]) for rank in range(2)]  # the second may hear of it from the first
    assert CollectiveTimeout in kinds
    assert set(kinds) <= {CollectiveTimeout, GroupAborted}
    assert all("NCCL did not finish all_reduce" in str(error) for error in outcome.errors.values())
    assert all(comm.aborted for comm in fake_nccl.MADE)


def test_abort_returns_a_wait_for_nccl_on_all_ranks(run, monkeypatch):
    _never(monkeypatch, 0)
    waiting = threading.Barrier(2)

    def rank_main(rank):
        work = dist.all_reduce(cuda(np.ones(2)), async_op=True)
        waiting.wait(20)
        if rank == 0:
            dist.default_group().abort()
        work.wait(20.0)

    outcome = run(2, rank_main, timeout_s=60.0)
    assert {type(error) for error in outcome.errors.values()} == {GroupAborted}
    assert all(comm.aborted for comm in fake_nccl.MADE)


def test_an_error_inside_nccl_is_raised_and_told_to_the_others(run, monkeypatch):
    _never(monkeypatch, 1)
    real = fake_nccl.NcclCommunicator.check_async_error

    def check(comm):
        if comm._rank == 1 and len(fake_nccl.MADE) == 2 and comm._all.queues.get(1):
            comm.error = "NCCL_ERROR_REMOTE_ERROR: network"
        real(comm)

    monkeypatch.setattr(fake_nccl.NcclCommunicator, "check_async_error", check)

    def rank_main(rank):
        for _ in range(2):
            dist.all_reduce(cuda(np.ones(2)))

    outcome = run(2, rank_main, timeout_s=30.0)
    assert type(outcome.errors[1]) is DistBackendError
    assert "nccl, all_reduce: NCCL_ERROR_REMOTE_ERROR" in str(outcome.errors[1])
    assert isinstance(outcome.errors[0], GroupAborted)
    assert "NCCL_ERROR_REMOTE_ERROR" in str(outcome.errors[0])


def test_a_rank_that_dies_while_nccl_runs_is_named_by_the_others(run, monkeypatch):
    _never(monkeypatch, 1)
    faults = FaultPlan().kill(rank=2, at="all_reduce", call=1)

    def rank_main(rank):
        for _ in range(2):
            dist.all_reduce(cuda(np.ones(2)))

    outcome = run(3, rank_main, faults=faults, timeout_s=30.0)
    assert faults.all_fired()
    assert {rank: type(error) for rank, error in outcome.errors.items()} == {0: PeerLost, 1: PeerLost}
    assert all(error.ranks == {2} for error in outcome.errors.values())


def test_a_rank_that_fails_to_connect_does_not_leave_the_others_inside_nccl(run, monkeypatch):
    real = fake_nccl.NcclCommunicator.__init__

    def failing(comm, size, identity, rank):
        if rank == 1:
            raise fake_nccl.NcclError("NCCL_ERROR_UNHANDLED_CUDA_ERROR: out of memory")
        real(comm, size, identity, rank)

    monkeypatch.setattr(fake_nccl.NcclCommunicator, "__init__", failing)
    outcome = run(2, lambda rank: dist.all_reduce(cuda(np.ones(2))), timeout_s=60.0)
    assert type(outcome.errors[1]) is DistBackendError
    assert isinstance(outcome.errors[0], GroupAborted)
    assert all("out of memory" in str(error) for error in outcome.errors.values())


def test_ranks_that_share_a_gpu_are_told_so_on_all_of_them(run, module):
    module.cuda.runtime.deviceGetPCIBusId = lambda index: "0000:00:00.0"
    outcome = run(3, lambda rank: dist.all_reduce(cuda(np.ones(2))))
    assert len(outcome.errors) == 3
    assert all(isinstance(error, DistBackendError) for error in outcome.errors.values())
    assert all("rank 0 and rank 1 and rank 2 compute on one" in str(error) for error in outcome.errors.values())
    assert fake_nccl.MADE == []


def test_without_an_nccl_library_the_error_says_what_to_install(run, module):
    devices.backend_of("cuda").nccl().available = False
    outcome = run(1, lambda rank: dist.all_reduce(cuda(np.ones(2))))
    with pytest.raises(DistBackendError, match=r"no NCCL library: pip install nvidia-nccl-cu12 .*, or use 'cuda:gloo'"):
        outcome.results()


def test_tensors_of_a_gpu_can_be_staged_over_a_backend_of_the_host(module):
    def rank_main(rank):
        x = resilin.arange(4.0).to("cuda") + rank
        dist.all_reduce(x)
        assert str(x.device) == "cuda:0"
        return x.tolist(), dist.default_group().stats()["transport"]

    outcome = run_ranks(2, rank_main, backend="gloo").results()
    assert outcome == [([1.0, 3.0, 5.0, 7.0], "shm, cuda:shm, staged")] * 2


def test_arrays_that_are_no_devices_are_refused():
    class Alien:
        dtype, shape = np.dtype(np.float32), (3,)

    def rank_main(rank):
        with pytest.raises(UsageError, match="expected a tensor or an array of a device, got Alien"):
            dist.all_reduce(Alien())

    run_ranks(1, rank_main).results()


class TestHostTensorsOfItsGroup(GroupConformance):
    """Of such a group: objects, messages, subgroups, mistakes and whatever else is called with tensors of the host.

    Those of the device are not of this suite, whose cases make numpy arrays: the tests above are theirs.
    """

    sizes = (2,)

    @pytest.fixture
    def run(self, module):
        return lambda size, case: run_ranks(size, case, size, backend="cpu:cpu,cuda:nccl", abort=False).results()
