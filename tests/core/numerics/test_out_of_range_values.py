"""Numbers that a dtype or memory cannot hold: refused, infinite or computed wide enough, never wrapped around."""

import math

import pytest

import resilin

inf, nan = math.inf, math.nan


def test_bytes_hold_minus_one_as_their_largest_number_and_nothing_beyond():
    assert resilin.tensor([-1, 5], dtype=resilin.uint8).tolist() == [255, 5]
    x = resilin.full((2,), -1, dtype=resilin.uint8)
    x[0] = -2
    assert x.tolist() == [254, 255]
    for write in (lambda v: resilin.tensor(v, dtype=resilin.uint8), x.fill_, lambda v: x.__setitem__(0, v)):
        with pytest.raises(RuntimeError, match="without overflow"):
            write(300)


def test_a_number_that_is_too_large_for_the_dtype_is_not_written():
    x = resilin.zeros(2)
    for write in (x.fill_, lambda v: x.__setitem__(0, v), lambda v: resilin.full((2,), v)):
        with pytest.raises(RuntimeError, match="without overflow"):
            write(1e40)
    assert x.fill_(inf).tolist() == [inf] * 2


def test_data_that_is_too_large_becomes_infinite_without_a_warning():
    assert resilin.tensor([1e40, 1]).tolist() == [inf, 1]
    assert resilin.logspace(0, 400, 3).tolist() == [1, inf, inf]
    x = resilin.zeros(2).copy_(resilin.tensor([1e40, 1], dtype=resilin.float64))
    x[1] = resilin.tensor(1e40, dtype=resilin.float64)
    assert x.tolist() == [inf, inf]
    assert resilin.tensor(2**70, dtype=resilin.bfloat16).item() == 2.0**70


def test_unravel_index_of_small_integers_counts_in_int64():
    rows, columns = resilin.unravel_index(resilin.tensor([200], dtype=resilin.uint8), (20, 30))
    assert (rows.tolist(), columns.tolist()) == ([6], [20])


def test_narrow_integers_do_not_wrap_around_inside_functions():
    bytes_ = resilin.tensor([200], dtype=resilin.uint8)
    assert resilin.addcmul(resilin.zeros(1), bytes_, bytes_).item() == 40000
    assert resilin.tensor([3], dtype=resilin.uint8).logit().isnan().item()
    assert resilin.tensor([-128], dtype=resilin.int8).logit().isnan().item()
    assert resilin.trapezoid(resilin.tensor([0, 3, 255], dtype=resilin.uint8)).item() == 130.5
    assert resilin.trapezoid(resilin.tensor([100, 100], dtype=resilin.int8)).item() == 100


TWO = resilin.tensor([0, 1])

WRONG_NUMBERS = {
    "scatter": lambda: resilin.arange(5).scatter(0, TWO, nan),
    "scatter by addition": lambda: resilin.arange(5).scatter(0, TWO, nan, reduce="add"),
    "index_fill": lambda: resilin.zeros(5).index_fill(0, TWO, 1j),
    "masked_fill": lambda: resilin.zeros(2).masked_fill(resilin.tensor([True, False]), 1j),
    "masked_fill of integers": lambda: resilin.arange(2).masked_fill(resilin.tensor([True, False]), -inf),
    "full": lambda: resilin.full((2,), 1j, dtype=resilin.int32),
    "full_like": lambda: resilin.full_like(resilin.arange(2), inf),
}


@pytest.mark.parametrize("make", WRONG_NUMBERS.values(), ids=WRONG_NUMBERS)
def test_numbers_that_a_dtype_cannot_hold_are_refused(make):
    with pytest.raises(RuntimeError, match="cannot be converted to resilin"):
        make()


@pytest.mark.parametrize("data", [None, "a", "3.5", b"3", [None, 1.0], [1, "2"], [[1j]]])
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.int64])
def test_tensors_of_a_dtype_are_made_of_numbers_that_it_has(data, dtype):
    with pytest.raises(TypeError, match="cannot make a tensor of dtype"):
        resilin.tensor(data, dtype=dtype)


@pytest.mark.parametrize("end", [2**62, 2**63, -(2**70)])
def test_ranges_beyond_memory_or_int64_are_refused(end):
    with pytest.raises(RuntimeError, match="more than memory or int64 can hold"):
        resilin.arange(0, end, 1 if end > 0 else -1)


ENDLESS = {
    "vander": lambda: resilin.vander(resilin.ones(3), N=10**13),
    "vander beyond counting": lambda: resilin.vander(resilin.ones(3), N=10**19),
    "combinations": lambda: resilin.combinations(resilin.arange(100), 20),
    "combinations that memory cannot hold": lambda: resilin.combinations(resilin.arange(10**5), 3),
    "combinations with replacement": lambda: resilin.combinations(resilin.arange(100), 20, with_replacement=True),
}


@pytest.mark.parametrize("make", ENDLESS.values(), ids=ENDLESS)
def test_results_that_memory_cannot_hold_are_refused_at_once(make):
    with pytest.raises(RuntimeError, match=r"more elements than any memory|not enough memory"):
        make()
