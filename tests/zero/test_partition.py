"""Partition: ranges and pieces, compared with their definition on any sizes."""

import extent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilin.errors import UsageError
from resilin.resharding.state_slices import Piece
from resilin.zero import partition
from resilin.zero.partition import BLOCK

totals = st.integers(0, 5000)
worlds = st.integers(1, 17)
blocks = st.sampled_from([1, 2, BLOCK, 64])
sizes = st.lists(st.integers(0, 90), max_size=12)


@given(totals, worlds, blocks)
def test_ranges_cover_every_element_once_and_in_order(total, world_size, block):
    cut = partition.ranges(total, world_size, block)
    assert len(cut) == world_size
    assert [element for within in cut for element in within] == list(range(total))


@given(totals, worlds, blocks)
def test_no_rank_holds_a_block_more_than_its_part(total, world_size, block):
    cut = partition.ranges(total, world_size, block)
    assert max(len(within) for within in cut) < total / world_size + block
    assert all(len(within) % block == 0 for within in cut if within.stop < total)


@pytest.mark.slow
@given(totals, worlds, blocks)
def test_ranges_start_at_multiples_of_the_share(total, world_size, block):
    each = partition.share(total, world_size, block)
    assert each % block == 0
    assert each * world_size >= total
    for rank, within in enumerate(partition.ranges(total, world_size, block)):
        assert within.start == min(rank * each, total)


@given(sizes, st.integers(0, 600), st.integers(0, 600))
def test_pieces_are_the_elements_of_the_range(numels, start, length):
    row = [(number, element) for number, numel in enumerate(numels) for element in range(numel)]
    found = partition.pieces(numels, range(start, start + length))
    elements = [(piece.param, element) for piece in found for element in range(piece.start, piece.stop)]
    assert elements == row[start : start + length]
    assert all(piece.numel > 0 for piece in found)


@settings(max_examples=extent.examples(60))
@given(sizes, worlds, st.booleans())
def test_every_element_and_every_parameter_has_one_owner(numels, world_size, whole):
    shares = partition.by_tensors(numels, world_size) if whole else partition.by_ranges(numels, world_size)
    assert len(shares) == world_size
    owned = [(piece.param, element) for own in shares for piece in own for element in range(piece.start, piece.stop)]
    assert sorted(owned) == [(number, element) for number, numel in enumerate(numels) for element in range(numel)]
    assert {piece.param for own in shares for piece in own} == set(range(len(numels)))
    empty = [piece for own in shares for piece in own if not piece.numel]
    assert sorted(piece.param for piece in empty) == [number for number, numel in enumerate(numels) if not numel]


@given(st.lists(st.integers(0, 90), min_size=1, max_size=12), worlds)
def test_whole_tensors_are_spread_by_size(numels, world_size):
    shares = partition.by_tensors(numels, world_size)
    most = max(sum(piece.numel for piece in own) for own in shares)
    assert most <= sum(numels) / world_size + max(numels)


def test_a_parameter_that_spans_ranges_is_cut_at_multiples_of_the_block():
    assert partition.by_ranges([10, 100, 0, 7], 3) == (
        (Piece(0, 0, 10), Piece(1, 0, 38), Piece(2, 0, 0)),
        (Piece(1, 38, 86),),
        (Piece(1, 86, 100), Piece(3, 0, 7)),
    )


def test_fewer_elements_than_ranks_leave_ranks_without_any():
    assert partition.ranges(20, 4) == (range(16), range(16, 20), range(20, 20), range(20, 20))
    assert partition.ranges(0, 2) == (range(0), range(0))


def test_equal_tensors_go_to_the_ranks_in_turn():
    shares = partition.by_tensors([5, 5, 5, 9], 2)
    assert shares == ((Piece(2, 0, 5), Piece(3, 0, 9)), (Piece(0, 0, 5), Piece(1, 0, 5)))


@pytest.mark.parametrize(("total", "world_size", "block"), [(-1, 2, 16), (5, 0, 16), (5, 2, 0)])
def test_sizes_that_make_no_sense_are_refused(total, world_size, block):
    with pytest.raises(UsageError, match="expected total >= 0"):
        partition.ranges(total, world_size, block)
