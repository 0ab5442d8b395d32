"""How many bytes of a message go and are waited for at once between hosts: nothing is waited for that does not come."""

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.distributed.connections.control_channel import _PIECE_BYTES, _piece
from resilin.distributed.wire import sockets
from resilin.testing.ranks import run_ranks

KIB = 1 << 10
EDGES = [edge * KIB + more for edge in (64, 256, 512, 1024, 1536, 4096) for more in (-97, -1, 0, 1)]


def pieces(parts):
    """The sizes of the system calls that send `parts` where each takes all that it is given."""
    left = memoryview(b"".join(parts))
    while left:
        sent = sum(map(len, _piece([left])))
        yield sent
        left = left[sent:]


@pytest.mark.parametrize("size", EDGES)
def test_pieces_are_even_and_leave_no_small_rest_behind(size):
    sizes = list(pieces([bytes(16), bytes(80), bytes(size)]))
    assert sum(sizes) == 96 + size
    assert set(sizes[:-1]) <= {_PIECE_BYTES}
    assert sizes[-1] < 2 * _PIECE_BYTES
    assert len(sizes) == 1 or sizes[-1] >= _PIECE_BYTES


@pytest.mark.parametrize("left", [0, 1, *EDGES, 1 << 40])
def test_a_receiver_is_never_woken_for_more_than_comes(left):
    assert 1 <= sockets.fair(left) <= max(1, left)


def test_messages_of_every_size_about_the_edges_arrive_whole_one_behind_the_other():
    def work(rank):
        for number, size in enumerate(EDGES):
            mine = np.random.default_rng(number).integers(0, 256, size, np.uint8)
            got = np.empty(size, np.uint8)
            if rank == 0:
                dist.send(mine, 1)
                dist.recv(got, 1)
            else:
                dist.recv(got, 0)
                dist.send(mine, 0)
            assert (got == mine).all()

    run_ranks(2, work, transport="tcp").results()
