"""Sums and products of integers and booleans keep or widen their dtype as in PyTorch."""

import numpy as np
import pytest

import resilin

SMALL = [resilin.uint8, resilin.int8, resilin.int16, resilin.int32]


def _same(result, values, dtype):
    assert result.dtype is dtype
    np.testing.assert_array_equal(result.numpy(), values)


def test_einsum_sums_one_operand_in_int64():
    x = resilin.full((2, 2), 200, dtype=resilin.uint8)
    _same(resilin.einsum("ij->i", x), [400, 400], resilin.int64)
    _same(resilin.einsum("ij->ji", x), [[200, 200], [200, 200]], resilin.uint8)
    _same(resilin.einsum("i,i->", x[0], x[0]), 200 * 200 * 2 % 256, resilin.uint8)


def test_einsum_takes_booleans_where_nothing_is_summed_but_one_operand():
    x = resilin.tensor([[True, False], [True, True]])
    _same(resilin.einsum("ij->i", x), [1, 2], resilin.int64)
    _same(resilin.einsum("ij->", x), 3, resilin.int64)
    _same(resilin.einsum("ij->ji", x), [[True, True], [False, True]], resilin.bool)
    _same(resilin.einsum("i,i->i", x[0], x[1]), [True, False], resilin.bool)
    _same(resilin.einsum("i,j->ij", x[0], x[1]), [[True, True], [False, False]], resilin.bool)
    with pytest.raises(NotImplementedError, match="sums of products are not implemented for bool"):
        resilin.einsum("ij,jk->ik", x, x)


@pytest.mark.parametrize("dtype", SMALL)
def test_sums_with_products_keep_the_dtype_of_small_integers(dtype):
    one = resilin.ones(2, 2, dtype=dtype)
    _same(resilin.addbmm(one, one[None], one[None]), [[3, 3], [3, 3]], dtype)
    _same(resilin.addmv(one[0], one, one[0], beta=0.2, alpha=1.9), [2, 2], dtype)
    _same(resilin.baddbmm(one[None], one[None], one[None], beta=2.5, alpha=2.5), [[[6, 6], [6, 6]]], dtype)
    _same(resilin.addcmul(one, one, one, value=1.5), [[2, 2], [2, 2]], dtype)


def test_addr_of_booleans_is_boolean():
    one = resilin.tensor([True, False])
    _same(
        resilin.addr(resilin.zeros(2, 2, dtype=resilin.bool), one, one, beta=3, alpha=2), [[1, 0], [0, 0]], resilin.bool
    )


@pytest.mark.parametrize("dtype", SMALL)
def test_scattered_means_keep_the_dtype_of_small_integers(dtype):
    x, index, source = resilin.ones(3, dtype=dtype), resilin.tensor([0, 0]), resilin.tensor([2, 5], dtype=dtype)
    _same(x.scatter_reduce(0, index, source, "mean"), [2, 1, 1], dtype)
    _same(x.index_reduce(0, index, source, "mean"), [2, 1, 1], dtype)


def test_scattered_sums_of_booleans_are_boolean():
    x = resilin.zeros(1, 2, dtype=resilin.bool)
    result = x.scatter_reduce(0, resilin.tensor([[0, 0]]), resilin.tensor([[True, False]]), "sum")
    _same(result, [[True, False]], resilin.bool)


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [(0, True, resilin.int64), (True, False, resilin.bool), (1, 2.5, resilin.float32), (2j, 3, resilin.complex64)],
)
def test_where_of_two_numbers_has_the_dtype_of_the_higher_kind(a, b, dtype):
    condition = resilin.tensor([True, False])
    _same(resilin.where(condition, a, b), [a, b], dtype)
    _same(resilin.where(condition, b, a), [b, a], dtype)


def test_where_takes_negative_numbers_beside_unsigned_integers_as_fill_does():
    x = resilin.tensor([1, 2], dtype=resilin.uint8)
    _same(resilin.where(resilin.tensor([True, False]), x, -1), [1, 255], resilin.uint8)
    with pytest.raises(RuntimeError, match=r"where\(\): the value 300 cannot be converted to resilin.uint8"):
        resilin.where(resilin.tensor([True, False]), x, 300)
