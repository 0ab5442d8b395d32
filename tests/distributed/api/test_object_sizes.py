"""Sizes of objects are sent ahead: a rank that announces what no memory holds is named, and nobody crashes or waits."""

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.distributed.agreement import exchange
from resilin.distributed.api import objects
from resilin.errors import CollectiveTimeout, DistError
from resilin.testing.ranks import run_ranks

CALLS = {
    "all_gather_object": lambda rank: dist.all_gather_object([None] * 2, rank),
    "gather_object": lambda rank: dist.gather_object(rank, None if rank else [None] * 2),
    "broadcast_object_list": lambda rank: dist.broadcast_object_list([rank], src=1),
    "scatter_object_list": lambda rank: dist.scatter_object_list([None], [1, 2] if rank else None, src=1),
    "recv_object_list": lambda rank: dist.send_object_list([1], 0) if rank else dist.recv_object_list([None], 1),
}


class Lying(np.ndarray):
    """Bytes of which there are more or fewer than they say."""

    announced = 0

    @property
    def size(self):
        return self.announced

    def copy(self):
        return np.array(self)


@pytest.mark.parametrize("size", [-3, -(1 << 63), (1 << 47) - 1, 1 << 47, (1 << 63) - 1])
@pytest.mark.parametrize("function", CALLS)
def test_an_impossible_size_is_an_error_that_names_its_rank(monkeypatch, function, size):
    """Rank 1 lies, as only a program of somebody else's can."""
    honest = exchange.dump

    def dump(*what):
        data = honest(*what)
        if dist.get_rank() == 1:
            data = data.view(Lying)
            data.announced = size
        return data

    for module in (exchange, objects):
        monkeypatch.setattr(module, "dump", dump)

    def call(rank):
        CALLS[function](rank)
        dist.barrier()  # the liar hears of it here at the latest

    def ask(rank):
        with pytest.raises(DistError) as caught:
            call(rank)
        assert not isinstance(caught.value, CollectiveTimeout)  # it is told at once
        return str(caught.value)

    said = run_ranks(2, ask, transport="unix", abort=False).results()
    assert function in said[0]
    assert f"rank 1 announces an object of {size} bytes" in said[0]
    if "gather_object" in function:  # whoever finds it first: what it says is what the other hears
        assert f"rank 1 announces an object of {size} bytes" in said[1]


def test_sizes_that_fit_give_room_and_no_more():
    assert exchange.room_for(3, [(0, 5), (1, 0)]).shape == (3, 5)
    assert exchange.room_for(0, [(0, 0)]).dtype == np.uint8
