"""Tensors of one number without dimensions, where functions expect dimensions."""

import pytest

import resilin


@pytest.mark.parametrize(
    "name", ["sum", "mean", "amax", "amin", "logsumexp", "nansum", "nanmean", "all", "any", "count_nonzero"]
)
def test_a_single_number_is_reduced_over_its_only_dimension(name):
    x = resilin.tensor(2.5)
    assert getattr(x, name)([0]).shape == getattr(x, name)((-1,)).shape == ()
    assert getattr(x, name)((0,)).item() == getattr(x, name)(0).item()
    with pytest.raises(IndexError, match="out of range"):
        getattr(x, name)((1,))


def test_the_spread_and_the_norm_of_a_single_number_over_its_only_dimension():
    x = resilin.tensor(2.5)
    assert x.std([0], correction=0).item() == x.var((0,), correction=0).item() == 0
    assert resilin.linalg.norm(x, dim=0).item() == resilin.linalg.vector_norm(x, dim=(0,)).item() == 2.5


def test_the_extreme_of_a_single_number_is_a_copy():
    x = resilin.tensor(2.0)
    x.max(0).values.zero_()
    x.min(0).values.zero_()
    assert x.item() == 2


def test_a_number_is_its_own_transpose():
    x = resilin.tensor(1 + 2j)
    assert x.mT.item() == x.T.item() == 1 + 2j
    assert x.mH.item() == x.H.item() == x.adjoint().item() == resilin.adjoint(x).item() == 1 - 2j
    with pytest.raises(RuntimeError, match="matrices"):
        _ = resilin.ones(3).mT


def test_vander_of_a_number_is_that_of_a_vector_of_one():
    assert resilin.linalg.vander(resilin.tensor(5), N=2).tolist() == [[1, 5]]


def test_a_number_without_dimensions_has_no_second_one_to_transpose():
    assert resilin.tensor(1.0).transpose(0, -1).item() == 1
    with pytest.raises(IndexError, match="out of range"):
        resilin.tensor(1.0).transpose_(0, 1)


def test_windows_of_a_number_are_taken_from_it_as_a_vector():
    assert resilin.tensor(2.5).unfold(0, 1, 1).tolist() == [2.5]
    assert resilin.tensor(2.5).unfold(0, 0, 1).shape == (0,)
