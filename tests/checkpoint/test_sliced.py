"""Parts of logical tensors: what is held, what is refused, and what is handed out."""

import pytest

import resilin
from resilin.checkpoint import Sliced
from resilin.checkpoint.sliced import Slices, part
from resilin.errors import UsageError, UsageTypeError


def test_a_part_shares_the_memory_of_the_slice_it_is_taken_from():
    held = resilin.arange(4, 10, dtype=resilin.float32)
    sliced = Sliced((3, 4), resilin.float32, 4, held)
    sliced.part(6, 8).zero_()
    assert held.tolist() == [4, 5, 0, 0, 8, 9]
    assert (sliced.start, sliced.stop, sliced.numel(), sliced.shape) == (4, 10, 12, (3, 4))


def test_a_slice_may_be_empty_anywhere():
    for start in (0, 5, 6):
        sliced = Sliced([2, 3], resilin.int64, start, resilin.zeros(0, dtype=resilin.int64))
        assert sliced.part(start, start).numel() == 0


def test_a_scalar_has_one_element():
    assert Sliced((), resilin.float32, 0, resilin.ones(1)).part(0, 1).tolist() == [1.0]


@pytest.mark.parametrize(("start", "stop"), [(3, 5), (9, 11), (7, 6), (-1, 5)])
def test_elements_that_are_not_here_are_refused(start, stop):
    sliced = Sliced((3, 4), resilin.float32, 4, resilin.zeros(6))
    with pytest.raises(UsageError, match=rf"\[{start}, {stop}\).*\[4, 10\) are here"):
        sliced.part(start, stop)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 2), resilin.float32, 0, resilin.zeros(2, 2)), "flat contiguous"),
        (((4,), resilin.float32, 0, resilin.zeros(8)[::2]), "flat contiguous"),
        (((4,), resilin.float64, 0, resilin.zeros(4)), "both must be equal"),
        (((4,), resilin.float32, 2, resilin.zeros(3)), r"\[2, 5\) are not within the 4"),
        (((4,), resilin.float32, -1, resilin.zeros(1)), "not within"),
        (((-4,), resilin.float32, 0, resilin.zeros(0)), "negative"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Sliced(*arguments)


def test_other_types_are_refused():
    with pytest.raises(UsageTypeError, match="got str and list"):
        Sliced((1,), "float32", 0, [1.0])


def test_plain_tensors_and_slices_are_asked_alike():
    whole = resilin.arange(6).reshape(2, 3)
    assert part(whole, 2, 5).tolist() == [2, 3, 4]
    assert part(whole.t(), 2, 5).tolist() == [1, 4, 2]
    assert part(Sliced((2, 3), resilin.int64, 2, resilin.arange(2, 5)), 3, 5).tolist() == [3, 4]


def test_sliced_are_slices():
    assert isinstance(Sliced((1,), resilin.float32, 0, resilin.zeros(1)), Slices)
    assert not isinstance(resilin.zeros(1), Slices)
