"""Lengths that peers announce take memory as their bytes come."""

import resource

import numpy as np
import pytest

from resilin.distributed.backends.backend_context import Peers
from resilin.distributed.wire.frames import DESCRIPTOR_BYTES, Descriptor, Kind
from resilin.distributed.wire.p2p_matching import Mailbox
from resilin.distributed.wire.receive_buffer import receive_buffer
from resilin.distributed.wire.reduce_op import DTYPE_CODES
from resilin.errors import DistNetworkError


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_room_that_is_announced_is_not_touched():
    before = resident_bytes()
    made = receive_buffer(4 << 30, 3)
    assert resident_bytes() - before < 64 << 20
    made[:5] = b"bytes"
    assert bytes(made[:5]) == b"bytes"


@pytest.mark.parametrize("count", [1 << 47, (1 << 63) - 1])
def test_room_that_no_memory_has_is_an_error_that_names_the_rank(count):
    with pytest.raises(DistNetworkError, match=f"rank 3 announced {count} bytes"):
        receive_buffer(count, 3)


def test_a_message_that_is_announced_takes_memory_as_it_comes():
    what = Descriptor(0, Kind.P2P, DTYPE_CODES[np.dtype(np.uint8)], shape=(4 << 30,))
    coming = Mailbox().start(1, 0, DESCRIPTOR_BYTES + (4 << 30))

    def take(data):
        return lambda into: into.__setitem__(slice(len(data)), data) or len(data)

    before = resident_bytes()
    assert not coming.advance(coming.take(take(what.pack())))
    assert not coming.advance(coming.take(take(b"four")))
    assert bytes(coming.data[:4]) == b"four"
    assert resident_bytes() - before < 64 << 20


class OfOneRank(Peers):
    """What rank 1 sends, by hand."""

    def __init__(self, *sent):
        self._sent = list(sent)

    def exchange(self, to, out, source, into, deadline):
        into[:] = self._sent.pop(0)


def test_addresses_have_a_limit_that_is_checked_before_memory_is_taken():
    assert OfOneRank((3).to_bytes(8, "little"), b"abc")._get(1, None) == b"abc"
    for size in (1 << 33, (1 << 64) - 1):
        with pytest.raises(DistNetworkError, match=f"rank 1 announced {size} bytes of addresses"):
            OfOneRank(size.to_bytes(8, "little"))._get(1, None)
