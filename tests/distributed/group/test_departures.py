"""A rank that has said goodbye: what the others still do without it, and what not."""

import threading

import numpy as np
import pytest

import resilin
from resilin import distributed as dist
from resilin.distributed.group.default_group import default_group
from resilin.errors import PeerLost
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import TRANSPORTS, run_ranks

LARGE = 100_000  # float32: far above what travels with its message, so that memory is shared for it


def await_goodbye_of(rank):
    with default_group()._group_failure._news:
        assert default_group()._group_failure._news.wait_for(
            lambda: rank in default_group()._group_failure.left, PATIENCE_S
        )


def exchange(rank, make, times=2):
    """Ranks 0 and 1 send one another large tensors, the sender first or the receiver."""
    for turn in range(times):
        mine, other = make(LARGE) * (rank + turn), make(LARGE)
        sending = dist.isend(mine, 1 - rank) if rank == 0 else None
        dist.recv(other, 1 - rank)
        assert (np.asarray(other) == 1 - rank + turn).all()
        if sending is None:
            dist.send(mine, 1 - rank)
        else:
            assert sending.wait()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("make", [resilin.ones, np.ones])
def test_ranks_that_stay_exchange_messages_in_fresh_memory_when_another_has_left(transport, make):
    exchanged = threading.Barrier(2)

    def work(rank):
        if rank == 2:
            default_group().close()
            return
        await_goodbye_of(2)
        exchange(rank, make)
        exchanged.wait(PATIENCE_S)
        with pytest.raises(PeerLost) as caught:
            dist.all_reduce(make(LARGE))
        assert caught.value.ranks == {2}

    run_ranks(3, work, transport=transport, timeout_s=PATIENCE_S).results()


@pytest.mark.parametrize("make", [resilin.ones, np.ones])
def test_ranks_that_stay_exchange_messages_when_the_goodbye_comes_as_they_share_memory(make):
    def work(rank):
        dist.barrier()
        if rank == 2:
            default_group().close()
        else:
            exchange(rank, make)

    for _ in range(5):
        run_ranks(3, work, timeout_s=PATIENCE_S).results()


def test_memory_that_a_rank_was_not_told_of_for_its_leaving_reaches_it_in_a_later_generation(company):
    there = company("shm", 3)
    exchanged = threading.Barrier(2)

    def part(number):
        group = there.join(number, [0, 1, 2])
        there.met.wait(PATIENCE_S)
        if number < 2:
            with dist.use_group(group):
                if number == 0:
                    await_goodbye_of(2)
                    dist.send(resilin.ones(LARGE), 1)  # shares an arena with rank 1 alone
                else:
                    got = resilin.zeros(LARGE)
                    dist.recv(got, 0)
                    assert got[0].item() == 1
            exchanged.wait(PATIENCE_S)
        after = group.reconfigure(2, there.names([0, 1, 2]))
        there.groups.append(after)
        with dist.use_group(after):
            tensor = resilin.ones(LARGE)
            dist.all_reduce(tensor)
            return tensor[0].item()

    assert there.play(part, part, part) == [3.0] * 3
