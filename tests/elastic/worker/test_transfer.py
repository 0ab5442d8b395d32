"""State moves from its sources to everybody else, each byte once and checked."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilin.distributed.wire.packing import ByteStream
from resilin.elastic.worker import transfer
from resilin.elastic.worker.transfer import Move
from resilin.errors import StateError, UsageError


@given(st.integers(0, 5000), st.integers(1, 4), st.integers(0, 4), st.integers(1, 900))
def test_every_receiver_gets_every_byte_once_and_sources_share_evenly(
    total: int, sources: int, receivers: int, chunk: int
) -> None:
    moves = transfer.plan(total, range(sources), range(10, 10 + receivers), chunk)
    for receiver in range(10, 10 + receivers):
        spans = sorted((move.start, move.stop) for move in moves if move.receiver == receiver)
        assert [0, *(stop for _, stop in spans)] == [*(start for start, _ in spans), total]
    for source in range(sources):
        sent = sum(move.stop - move.start for move in moves if move.source == source)
        assert abs(sent - total * receivers / sources) <= receivers
    assert all(move.stop - move.start <= chunk for move in moves)


def test_neighbouring_receivers_start_with_different_sources() -> None:
    first = {}
    for move in transfer.plan(100, [0, 1], [2, 3]):
        first.setdefault(move.receiver, move.source)
    assert first == {2: 0, 3: 1}


def test_a_rank_cannot_send_to_itself() -> None:
    with pytest.raises(UsageError, match=r"got \[0, 1\] and \[1\]"):
        transfer.plan(10, [0, 1], [1])


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal((3, 5)).astype(np.float32),
        np.zeros(0, np.float64),
        rng.standard_normal((4, 6)).T,
        np.array(7, np.int64),
    ]


@given(st.lists(st.integers(0, 260), max_size=6))
def test_a_stream_cut_anywhere_arrives_equal_also_from_strided_scalar_and_empty_arrays(cuts: list[int]) -> None:
    source = arrays()
    target = [np.zeros(array.shape, array.dtype) for array in source]
    reader, writer = ByteStream(source), ByteStream(target)
    assert reader.nbytes == 60 + 0 + 192 + 8
    bounds = [0, *sorted(cuts), reader.nbytes]
    for start, stop in itertools.pairwise(bounds):
        move = Move(0, 1, start, stop)
        transfer.unseal(writer, move, transfer.seal(reader, move))
    for a, b in zip(source, target, strict=True):
        assert np.array_equal(a, b)


def test_a_flipped_bit_is_refused_before_anything_is_written() -> None:
    source, target = np.arange(16.0), np.zeros(16)
    move = Move(3, 1, 8, 64)
    message = transfer.seal(ByteStream([source]), move)
    message[5] ^= 1
    with pytest.raises(StateError, match=r"state from rank 3, bytes \[8, 64\) of 128"):
        transfer.unseal(ByteStream([target]), move, message)
    assert not target.any()
