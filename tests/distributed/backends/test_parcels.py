"""Messages of 4 to 64 KiB where ranks outnumber the cores: in parcels of their sender, which goes on at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from resilin import distributed as dist
from resilin._base import host
from resilin.distributed.group.default_group import default_group
from resilin.errors import CollectiveMismatch, DistError
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks

KIB = 1 << 10
PARCELS = 8


@pytest.fixture(autouse=True)
def _one_core(monkeypatch):
    monkeypatch.setattr(host, "cpu_count", lambda: 1)


def noise(seed, size):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", [4 * KIB, 4 * KIB + 1, 40_000, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1])
def test_a_message_arrives_whole_whatever_its_size(size):
    def work(rank):
        for turn in range(20):
            got = np.zeros(size + 2, np.uint8)
            dist.send(noise(turn, size), 1) if rank == 0 else dist.recv(got[1:-1], 0)
            dist.recv(got[1:-1], 1) if rank == 0 else dist.send(noise(turn, size), 0)
            assert (got[1:-1] == noise(turn, size)).all()
            assert got[0] == got[-1] == 0

    run_ranks(2, work).results()


@pytest.mark.parametrize("size", [4 * KIB + 1, 64 * KIB])
def test_as_many_as_there_are_parcels_are_complete_at_once_and_again_when_they_were_received(size):
    def work(rank):
        for turn in range(3):
            if rank == 0:
                array = np.empty(size, np.uint8)
                for number in range(PARCELS):
                    array.fill(10 * turn + number)
                    assert dist.isend(array, 1).is_completed()
                lies = np.full(size, 99, np.uint8)
                more = dist.isend(lies, 1)  # copied from where it lies, by whoever of rank 1 looks first
                array.fill(0)
            dist.barrier()
            if rank == 1:
                got = np.empty(size, np.uint8)
                for value in [*(10 * turn + number for number in range(PARCELS)), 99]:
                    dist.recv(got, 0)
                    assert (got == value).all(), value
            else:
                assert more.wait(PATIENCE_S)
            dist.barrier()

    run_ranks(2, work).results()


def test_a_message_of_another_size_or_dtype_is_a_mismatch_for_the_receiver_alone_and_its_parcel_is_empty_again():
    def work(rank):
        for turn in range(2 * PARCELS):
            if rank == 0:
                assert dist.isend(np.full(9000, turn, np.uint8), 1).is_completed()
            else:
                wrong = np.zeros(9001, np.uint8) if turn % 2 else np.zeros(9000, np.int8)
                with pytest.raises(CollectiveMismatch):
                    dist.recv(wrong, 0)
                assert not wrong.any()
            dist.barrier()

    run_ranks(2, work).results()


def test_all_ways_to_receive_take_what_came_in_parcels():
    def work(rank):
        if rank:
            for tag in range(3):
                dist.send(noise(10 * rank + tag, 20_000), 0, tag=tag)
            return
        posted = [(source, np.empty(20_000, np.uint8)) for source in (1, 2)]
        works = [dist.irecv(got, source, tag=2) for source, got in posted]
        for source in (2, 1):
            got = np.empty(20_000, np.uint8)
            dist.recv(got, source, tag=1)
            assert (got == noise(10 * source + 1, 20_000)).all()
        for _ in range(2):
            source = dist.recv(got, None, tag=0)
            assert (got == noise(10 * source, 20_000)).all()
        for (source, got), posted_work in zip(posted, works, strict=True):
            assert posted_work.wait(PATIENCE_S)
            assert (got == noise(10 * source + 2, 20_000)).all()

    run_ranks(3, work).results()


def test_threads_that_send_at_once_take_different_parcels():
    def work(rank):
        group = default_group()

        def talk(thread):
            mine = np.empty(30_000, np.uint8)
            for turn in range(40):
                if (rank + thread) % 2:
                    mine.fill(100 * thread + turn)
                    dist.send(mine, 1 - rank, tag=thread, group=group)
                    mine.fill(255)  # it may change now
                else:
                    dist.recv(mine, 1 - rank, tag=thread, group=group)
                    assert (mine == 100 * thread + turn).all(), (thread, turn)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(talk, range(2)))

    run_ranks(2, work).results()


def test_what_a_rank_sent_before_it_left_is_received_and_then_its_leaving_is_an_error():
    def work(rank):
        if rank == 0:
            works = [dist.isend(np.full(9000, i, np.uint8), 1) for i in range(PARCELS)]
            assert all(sending.is_completed() for sending in works)
            dist.destroy_process_group()
            return
        got = np.empty(9000, np.uint8)
        for i in range(PARCELS):
            dist.recv(got, 0)
            assert (got == i).all()
        with pytest.raises(DistError):
            dist.recv(got, 0)

    run_ranks(2, work, abort=False).results()
