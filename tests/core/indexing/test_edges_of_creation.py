"""Tensors of ranges with infinite ends, of integer dtypes, and of numbers that int64 does not hold."""

import numpy as np
import pytest

import resilin

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("start", "end", "steps", "expected"),
    [
        (0, INF, 3, [NAN, NAN, NAN]),
        (-INF, INF, 3, [NAN, NAN, NAN]),
        (INF, 0, 4, [NAN, NAN, INF, NAN]),
        (0, NAN, 2, [NAN, NAN]),
        (INF, 5, 1, [INF]),
    ],
)
def test_linspace_with_an_infinite_end_counts_from_the_nearer_end(start, end, steps, expected):
    np.testing.assert_array_equal(resilin.linspace(start, end, steps).numpy(), np.float32(expected))


def test_linspace_ends_exactly_and_is_symmetric():
    x = resilin.linspace(-0.3, 0.3, 1001, dtype=resilin.float64).numpy()
    assert x[0] == -0.3
    assert x[-1] == 0.3
    np.testing.assert_array_equal(x, -x[::-1])
    np.testing.assert_allclose(x, np.linspace(-0.3, 0.3, 1001), rtol=0, atol=1e-16)


def test_linspace_and_logspace_of_integers_start_from_rounded_ends():
    assert resilin.linspace(-5.7, 5.3, 4, dtype=resilin.int32).tolist() == [-5, -1, 1, 5]
    assert resilin.linspace(4.3, 0, 5, dtype=resilin.uint8).tolist() == [4, 3, 2, 1, 0]
    assert resilin.logspace(4.3, 0, 4, 2.0, dtype=resilin.uint8).tolist() == [16, 6, 2, 1]


def test_arange_of_integers_steps_by_whole_numbers():
    assert resilin.arange(-0.9, 2.1, 2.0, dtype=resilin.uint8).tolist() == [0, 2]
    assert resilin.arange(0.0, -8.000001, -4.0, dtype=resilin.int64).tolist() == [0, -4]
    assert resilin.arange(0.0, -8.000001, -4.0, dtype=resilin.int32).tolist() == [0, -4, -8]
    with pytest.raises(RuntimeError, match=r"step must be nonzero, 0.5 is rounded to 0 for resilin.int32"):
        resilin.arange(0, 2, 0.5, dtype=resilin.int32)


@pytest.mark.parametrize("data", [2**70, [2**70], 2**63, -(2**63) - 1, [1, 2**64]])
def test_integers_beyond_int64_are_refused_by_value(data):
    with pytest.raises(
        ValueError, match=r"cannot make a tensor of -?\d+: int64 holds -2\*\*63 to 2\*\*63 - 1; give a dtype"
    ):
        resilin.tensor(data)


def test_integers_beyond_int64_fit_a_dtype_that_holds_them():
    assert resilin.tensor(2**63, dtype=resilin.uint64).item() == 2**63
    assert resilin.tensor(np.uint64(2**63)).dtype is resilin.uint64
    assert resilin.tensor(2**70, dtype=resilin.float32).item() == 2.0**70


def test_a_list_of_tensors_has_the_dtype_that_they_promote_to():
    assert resilin.tensor([resilin.tensor(1), resilin.tensor(2.0)]).dtype is resilin.float32
    assert resilin.tensor([resilin.tensor(1), resilin.tensor(2)]).dtype is resilin.int64


def test_normal_of_numbers_is_made_on_the_device_asked_for():
    x = resilin.normal(1.6, 0.3, [2, 3], device="sim:1", requires_grad=True)
    assert x.shape == (2, 3)
    assert x.device == resilin.device("sim:1")
    assert x.requires_grad
    assert x.is_leaf


def test_no_blocks_make_a_matrix_of_one_row_without_elements():
    assert resilin.block_diag().shape == (1, 0)
