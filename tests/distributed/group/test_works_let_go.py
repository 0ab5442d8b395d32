"""What a message or a collective was about goes with its Work, without the garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest

import resilin
from resilin import dist
from resilin.distributed.group.default_group import default_group
from resilin.testing.ranks import run_ranks

SIZES = [10, 100_000]  # in an inbox, and where it lies
TRANSPORTS = ["shm", "tcp"]


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sent(tensor, awaited=True):
    group = default_group()
    return group.isend(tensor.numpy(), tensor, 1 - dist.get_rank(), 3, awaited=awaited)


BOTH = {
    "all_reduce": lambda x: dist.all_reduce(x, async_op=True),
    "broadcast": lambda x: dist.broadcast(x, 0, async_op=True),
    "all_gather": lambda x: dist.all_gather([resilin.empty_like(x) for _ in range(2)], x, async_op=True),
    "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(resilin.empty(2 * len(x)), x, async_op=True),
    "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(resilin.empty(len(x) // 2), x, async_op=True),
    "all_to_all_single": lambda x: dist.all_to_all_single(resilin.empty_like(x), x, async_op=True),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("no_collector")
def test_a_message_that_was_sent_and_one_that_was_received_go(size, transport):
    def work(rank):
        for awaited in (True, False):
            out, back = resilin.ones(size), resilin.empty(size)
            seen = weakref.ref(out), weakref.ref(back)
            into = dist.irecv(back, 1 - rank, tag=3)
            works = [into, sent(out, awaited)]
            for each in works:
                each.wait()
            del out, back, works, each, into
            assert [there() for there in seen] == [None, None]

    run_ranks(2, work, transport=transport, timeout_s=10).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.usefixtures("no_collector")
def test_what_a_collective_was_about_goes(name, transport):
    def work(_):
        tensor = resilin.ones(1000)
        there = weakref.ref(tensor)
        BOTH[name](tensor).wait()
        del tensor
        assert there() is None

    run_ranks(2, work, transport=transport, timeout_s=10).results()
