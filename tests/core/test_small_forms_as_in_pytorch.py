"""Forms that are rarely written, and what is said about them: numbers as matrices, limits that tie, wrong shapes."""

import numpy as np
import pytest

import resilin
from resilin.nn import functional as F

INF, NAN = float("inf"), float("nan")


def test_a_number_is_its_own_transpose():
    x = resilin.tensor(1 + 2j)
    assert x.mT.item() == x.T.item() == 1 + 2j
    assert x.mH.item() == x.H.item() == x.adjoint().item() == resilin.adjoint(x).item() == 1 - 2j
    with pytest.raises(RuntimeError, match="matrices"):
        _ = resilin.ones(3).mT


def test_the_gradient_of_softsign_is_nan_where_its_value_is():
    x = resilin.tensor([INF, -INF, NAN, 0.0, -3.0, 1e30], requires_grad=True)
    y = F.softsign(x)
    y.sum().backward()
    np.testing.assert_array_equal(y.detach().numpy(), np.float32([NAN, NAN, NAN, 0, -0.75, 1]))
    np.testing.assert_array_equal(x.grad.numpy(), np.float32([NAN, NAN, NAN, 1, 0.0625, 0]))


@pytest.mark.parametrize("number", [0.5, 1.5, NAN])
def test_limits_that_tie_leave_the_gradient_to_the_input(number):
    x = resilin.tensor([1.0, 2.0, number], requires_grad=True)
    limit = resilin.tensor([1.0, 1.0, 1.0], requires_grad=True)
    for clamp, beyond in ((resilin.clamp_min, np.less), (resilin.clamp_max, np.greater)):
        own, of_limit = resilin.autograd.grad(clamp(x, limit).sum(), (x, limit))
        outside = beyond(x.detach().numpy(), 1.0)
        np.testing.assert_array_equal(own.numpy(), np.where(outside | x.detach().isnan().numpy(), 0, 1))
        np.testing.assert_array_equal(of_limit.numpy(), np.where(outside, 1, 0))


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64])
def test_a_limit_of_nan_makes_nan(dtype):
    x = resilin.ones(9, dtype=dtype)
    for limits in ((NAN, None), (None, NAN), (NAN, 2.0), (0.0, NAN)):
        assert resilin.clamp(x, *limits).isnan().all().item()
    x = resilin.tensor([1.0], dtype=dtype, requires_grad=True)
    assert resilin.clamp(x, resilin.tensor([NAN])).isnan().item()
    assert resilin.clamp(x, max=resilin.tensor([NAN])).isnan().item()


def test_logit_has_no_finite_gradient_where_it_has_no_value():
    x = resilin.tensor([-0.5, 0.25, 2.0], requires_grad=True)
    resilin.logit(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [NAN, 16 / 3, NAN], rtol=1e-6)
    x.grad = None
    resilin.logit(x, eps=0.1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0, 16 / 3, 0], rtol=1e-6)


def test_the_angle_of_real_numbers_has_a_gradient_of_zero():
    x = resilin.tensor([-2.0, -0.0, 0.0, 3.0, NAN, -INF], requires_grad=True)
    y = resilin.angle(x)
    np.testing.assert_array_equal(y.detach().numpy(), np.float32([np.pi, 0, 0, 0, NAN, np.pi]))
    assert resilin.autograd.grad(y.sum(), x)[0].tolist() == [0] * 6


@pytest.mark.parametrize("name", ["float", "double", "half", "bfloat16", "int", "long", "bool", "cfloat", "cpu"])
def test_conversions_take_a_memory_format(name):
    x = getattr(resilin.ones(2, 3, 4, 5), name)(memory_format=resilin.channels_last)
    assert x.is_contiguous(memory_format=resilin.channels_last)
    assert getattr(x, name)(memory_format=resilin.preserve_format) is x


def test_max_and_min_take_the_other_tensor_by_name():
    x, y = resilin.tensor([3.0, 2.0]), resilin.tensor([1.0, 9.0])
    assert x.max(other=y).tolist() == [3, 9]
    assert resilin.min(x, other=y).tolist() == [1, 2]
    with pytest.raises(TypeError, match="expected a Tensor as other, got int"):
        x.max(other=3)


def test_no_blocks_make_a_matrix_of_one_row_without_elements():
    assert resilin.block_diag().shape == (1, 0)


def test_unravel_index_of_small_integers_counts_in_int64():
    rows, columns = resilin.unravel_index(resilin.tensor([200], dtype=resilin.uint8), (20, 30))
    assert (rows.tolist(), columns.tolist()) == ([6], [20])


def test_vander_of_a_number_is_that_of_a_vector_of_one():
    assert resilin.linalg.vander(resilin.tensor(5), N=2).tolist() == [[1, 5]]


def test_frequencies_of_no_points_and_of_distance_zero():
    assert resilin.fft.fftfreq(0).shape == (0,)
    np.testing.assert_array_equal(resilin.fft.fftfreq(4, 0).numpy(), [NAN, INF, -INF, -INF])
    np.testing.assert_allclose(resilin.fft.fftfreq(5, 0.3).numpy(), np.fft.fftfreq(5, 0.3), rtol=1e-6)


def test_lu_factor_refuses_a_singular_matrix_and_lu_factor_ex_reports_it():
    zero = resilin.zeros(2, 2)
    with pytest.raises(resilin.linalg.LinAlgError, match="pivot 1"):
        resilin.linalg.lu_factor(zero)
    assert resilin.linalg.lu_factor_ex(zero).info.item() == 1


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda x: x.floor_divide(resilin.zeros(4)),
            RuntimeError,
            r"floor_divide: the shapes \(2, 3\) and \(4,\) cannot be broadcast",
        ),
        (lambda x: x // resilin.zeros(2, 4), RuntimeError, r"the shapes \(2, 3\) and \(2, 4\) cannot be broadcast"),
        (
            lambda x: resilin.cross(x, resilin.zeros(4, 3)),
            RuntimeError,
            r"cross: the shapes \(2, 3\) and \(4, 3\) cannot",
        ),
        (lambda x: resilin.linalg.cross(x, resilin.zeros(4, 3)), RuntimeError, r"\(2, 3\) and \(4, 3\) cannot be"),
        (
            lambda x: resilin.broadcast_shapes((2, 3), (4,)),
            RuntimeError,
            r"shapes \(2, 3\) and \(4,\) cannot be broadcast",
        ),
        (lambda x: -x.bool(), NotImplementedError, "negative.*not implemented for bool"),
        (lambda x: x.cfloat().signbit(), NotImplementedError, "signbit.*not implemented for complex64"),
        (lambda x: x.bool() @ x.bool(), NotImplementedError, "matmul: not implemented for"),
        (lambda x: x.sum().chunk(1), RuntimeError, "at least a 1-dimensional tensor"),
        (lambda x: resilin.floor_divide(7, 2), TypeError, "expected a Tensor, got int and int"),
        (lambda x: resilin.div(7, 2, rounding_mode="floor"), TypeError, "expected a Tensor, got int and int"),
        (lambda x: x.__delitem__(0), TypeError, "does not support deleting items"),
    ],
)
def test_mistakes_are_told_in_words_of_this_library(call, kind, message):
    with pytest.raises(kind, match=message) as caught:
        call(resilin.ones(2, 3))
    assert not any(word in str(caught.value) for word in ("numpy", "ufunc", "operands", "objects"))
