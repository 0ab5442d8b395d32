"""Who writes what: every element once, evenly, and into files of bounded size."""

import extent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resilin
from resilin.checkpoint import plan
from resilin.checkpoint.manifest import Logical
from resilin.errors import UsageError


def logical(number, numel, dtype=resilin.float32):
    return Logical(f"t{number}", dtype, (1, numel))


def elements(ranges, count):
    found = [[] for _ in range(count)]
    for one in ranges:
        assert one.start < one.stop
        found[one.tensor] += range(one.start, one.stop)
    return found


@settings(max_examples=extent.examples(60), deadline=None)
@given(st.lists(st.integers(0, 90_000), max_size=6), st.integers(1, 5), st.data())
def test_every_element_is_written_once(numels, world_size, data):
    tensors = [logical(number, numel) for number, numel in enumerate(numels)]
    held = {}
    for number, numel in enumerate(numels):
        if data.draw(st.booleans()):
            cuts = sorted(data.draw(st.lists(st.integers(0, numel), min_size=world_size - 1, max_size=world_size - 1)))
            ends = [0, *cuts, numel]
            held[number] = [(rank, ends[rank], ends[rank + 1]) for rank in range(world_size)]
    made = plan.shares(tensors, held, world_size)
    for number, found in enumerate(elements([one for ranges in made for one in ranges], len(numels))):
        assert sorted(found) == list(range(numels[number]))
    for number, parts in held.items():
        for rank, start, stop in parts:
            assert all(start <= one.start and one.stop <= stop for one in made[rank] if one.tensor == number)


def test_ranks_write_equally_much():
    tensors = [logical(number, numel) for number, numel in enumerate((5_000_000, 10, 3_000_000, 999, 1_700_000))]
    made = plan.shares(tensors, {}, 3)
    loads = [sum(one.stop - one.start for one in ranges) * 4 for ranges in made]
    assert max(loads) - min(loads) <= 2 * (64 << 10)


@pytest.mark.parametrize("shape", [(), (3,), (4 << 20,), (256, 256)])
def test_what_is_small_is_of_rank_0(shape):
    tensors = [logical(0, 5_000_000), Logical("t1", resilin.float32, shape), logical(2, 5_000_000)]
    made = plan.shares(tensors, {}, 3)
    assert [(rank, one.start, one.stop) for rank, ranges in enumerate(made) for one in ranges if one.tensor == 1] == [
        (0, 0, tensors[1].numel())
    ]


@pytest.mark.parametrize("shape", [(5_000_000,), (5, 1_000_000), (2, 40_000)])
def test_what_is_large_is_divided_whatever_its_shape(shape):
    tensor = Logical("t0", resilin.float32, shape)
    made = plan.shares([tensor], {}, 2)
    parts = [(one.start, one.stop) for ranges in made for one in ranges]
    half = tensor.numel() // 2
    assert len(parts) == 2
    assert parts[0][1] == parts[1][0]
    assert abs(parts[0][1] - half) <= 16 << 10


def test_what_all_hold_evens_out_what_one_holds():
    tensors = [logical(0, 1_000_000), logical(1, 1_000_000)]
    made = plan.shares(tensors, {0: [(1, 0, 1_000_000)]}, 2)
    assert [{one.tensor for one in ranges} for ranges in made] == [{1}, {0}]


def test_of_elements_that_several_hold_one_writes():
    made = plan.shares([logical(0, 10)], {0: [(0, 0, 6), (1, 4, 10), (2, 0, 10)]}, 3)
    assert made == [[], [], [plan.Range(0, 0, 10)]]


def test_elements_that_nobody_holds_are_named():
    with pytest.raises(UsageError, match=r"no rank holds elements \[4, 7\) of 't0'"):
        plan.shares([logical(0, 10)], {0: [(0, 0, 4), (1, 7, 10)]}, 2)


@settings(max_examples=extent.examples(60), deadline=None)
@given(st.lists(st.integers(1, 50), max_size=8), st.integers(4, 64))
def test_files_hold_all_and_none_is_too_large(numels, file_bytes):
    tensors = [logical(number, numel, resilin.int16) for number, numel in enumerate(numels)]
    ranges = [plan.Range(number, 0, numel) for number, numel in enumerate(numels)]
    made = plan.files(ranges, tensors, file_bytes)
    assert all(2 * sum(one.stop - one.start for one in file) <= file_bytes for file in made)
    found = elements([one for file in made for one in file], len(numels))
    assert found == [list(range(numel)) for numel in numels]
