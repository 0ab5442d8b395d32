"""Who is to blame, and what is left alone, where two things happen at once."""

import threading

import numpy as np
import pytest

from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin.distributed.wire.frames import Descriptor, Kind
from resilin.distributed.wire.p2p_matching import Mailbox, Receive
from resilin.distributed.wire.reduce_op import DTYPE_CODES
from resilin.errors import CollectiveTimeout, GroupAborted, PeerLost
from resilin.testing.faults import FaultPlan
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_peer_hears_why_although_a_message_to_it_is_on_its_way(transport):
    over = threading.Event()

    def work(rank):
        group = dist.default_group()
        dist.barrier()
        if rank == 1:
            with pytest.raises(GroupAborted, match="rank 0 aborted the group: GroupAborted: enough"):
                dist.recv(np.ones(1), src=0)
            over.set()
            return
        sending = group._links[1].sending
        with sending:  # as a thread in the middle of a frame
            group.abort(GroupAborted("enough"))
            SYSTEM.sleep(0.05)
        assert over.wait(PATIENCE_S)

    run_ranks(2, work, transport=transport, abort=False).results()


@pytest.mark.parametrize("how", ["abort", "death"])
def test_a_part_in_the_making_ends_with_the_group_that_it_is_a_part_of(how):
    """Rank 1 never makes it."""
    begun, ended = threading.Event(), threading.Event()

    def work(rank):
        group = dist.default_group()
        dist.barrier()
        if rank == 1:
            assert begun.wait(PATIENCE_S)
            SYSTEM.sleep(0.1)  # it waits by now
            if how == "death":
                group.vanish()
            assert ended.wait(PATIENCE_S)
            return
        timer = threading.Timer(0.1, lambda: how == "abort" and group.abort(GroupAborted("enough")))
        timer.start()
        begun.set()
        start = SYSTEM.monotonic()
        with pytest.raises(GroupAborted if how == "abort" else PeerLost) as caught:
            dist.new_group([0, 1])
        ended.set()
        assert SYSTEM.monotonic() - start < PATIENCE_S  # of twice that
        assert "enough" in str(caught.value) or caught.value.ranks == {1}
        timer.join()

    run_ranks(2, work, transport="tcp", abort=False, timeout_s=2 * PATIENCE_S).results()


def test_a_part_goes_on_without_a_rank_that_is_not_in_it():
    def work(rank):
        dist.barrier()
        if rank == 2:
            dist.default_group().vanish()
            return
        with pytest.raises(PeerLost):
            dist.barrier()
        part = dist.new_group([0, 1])
        array = np.full(3, rank + 1.0)
        dist.all_reduce(array, group=part)
        assert array.tolist() == [3.0] * 3

    run_ranks(3, work, abort=False).results()


def test_a_rank_between_is_not_blamed_for_the_frozen_one_behind_it():
    """A line: rank 3 waits for 2, 2 for 1, 1 for 0."""
    plan = FaultPlan().freeze(rank=0, at="all_gather")
    told = []

    def work(rank):
        try:
            rows = np.ones((4, 5))
            dist.all_gather_into_tensor(rows, rows[rank])
        except CollectiveTimeout as error:
            if rank:
                told.append(set(error.ranks))
                if len(told) == 3:
                    plan.thaw()

    outcome = run_ranks(4, work, transport="tcp", abort=False, timeout_s=2.0, faults=plan)
    assert told == [{0}] * 3, outcome.errors


def test_a_rank_that_comes_as_others_give_it_up_hears_who_did():
    ended = threading.Event()

    def work(rank):
        group = dist.default_group()
        dist.barrier()
        if rank == 0:
            with pytest.raises(CollectiveTimeout, match="rank 1 did not arrive after"):
                dist.barrier(timeout=0.05)
            ended.set()
            return
        on_abort, heard = group.on_abort, threading.Event()
        group.on_abort = lambda *said: heard.wait(PATIENCE_S) and on_abort(*said)  # shared memory says it first
        assert ended.wait(PATIENCE_S)
        with pytest.raises(CollectiveTimeout, match=r"rank 1 did not answer \(on rank 0\)"):
            dist.barrier()
        heard.set()

    run_ranks(2, work, transport="shm", abort=False).results()


def test_a_reason_that_comes_long_after_the_end_is_seen_in_shared_memory_is_told():
    """As on a busy machine, whose threads wait for their turn."""
    waits = threading.Event()

    def work(rank):
        group = dist.default_group()
        dist.barrier()
        if rank == 0:
            assert waits.wait(PATIENCE_S)
            group.abort(GroupAborted("enough"))
            return
        on_abort = group.on_abort
        group.on_abort = lambda *said: (SYSTEM.sleep(0.6), on_abort(*said))
        waits.set()
        with pytest.raises(GroupAborted, match="rank 0 aborted the group: GroupAborted: enough"):
            dist.barrier()

    run_ranks(2, work, transport="shm", abort=False).results()


def test_a_receive_that_timed_out_in_the_middle_of_its_message_leaves_it_to_the_next():
    box = Mailbox()
    message = np.arange(8.0)
    wanted = Descriptor(0, Kind.P2P, DTYPE_CODES[message.dtype], shape=message.shape)
    first, second, finished = np.zeros(8), np.zeros(8), []
    early = Receive(1, 0, wanted, memoryview(first).cast("B"), lambda error, source: finished.append("early"))
    box.post(early)
    coming = box.start(1, 0, len(wanted.pack()) + message.nbytes)
    bytes_left = bytearray(wanted.pack() + message.tobytes())

    def arrive(count):
        def receive(into):
            part = bytes_left[: min(count, len(into))]
            into[: len(part)] = part
            del bytes_left[: len(part)]
            return len(part)

        return coming.advance(coming.take(receive))

    arrive(len(wanted.pack()))
    arrive(24)
    assert box.cancel(early)
    before = first.copy()
    assert not arrive(8)
    box.post(
        Receive(1, 0, wanted, memoryview(second).cast("B"), lambda error, source: finished.append((error, source)))
    )
    assert finished == []
    assert arrive(1000)
    assert finished == [(None, 1)]
    assert second.tolist() == message.tolist()
    assert first.tolist() == before.tolist()


def test_a_receive_whose_group_ended_is_not_written_by_the_rest_of_its_message():
    box = Mailbox()
    wanted = Descriptor(0, Kind.P2P, DTYPE_CODES[np.dtype(float)], shape=(8,))
    buffer, errors = np.zeros(8), []
    box.post(Receive(1, 0, wanted, memoryview(buffer).cast("B"), lambda error, source: errors.append(error)))
    coming = box.start(1, 0, len(wanted.pack()) + buffer.nbytes)

    def full(into):
        into[:] = b"\xff" * len(into)
        return len(into)

    head = wanted.pack()

    def header(into):
        into[:] = head
        return len(into)

    coming.advance(coming.take(header))
    box.fail(GroupAborted("over"))
    coming.advance(coming.take(full))
    assert [str(error) for error in errors] == ["over"]
    assert not buffer.any()
