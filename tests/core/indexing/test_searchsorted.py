"""searchsorted: lines without elements, and sorters that leave the line."""

import pytest

import resilin


def test_searchsorted_of_empty_lines_is_empty():
    for shape in ((0, 0), (0, 0, 0), (2, 0), (0, 3)):
        found = resilin.searchsorted(resilin.zeros(shape), resilin.zeros(shape))
        assert found.shape == shape
        assert found.dtype is resilin.int64


def test_searchsorted_refuses_a_sorter_that_leaves_the_line():
    with pytest.raises(RuntimeError, match="sorter index out of range: it has 1 to 9"):
        resilin.searchsorted(resilin.tensor([5, 1, 3]), 3, sorter=resilin.tensor([1, 2, 9]))
