"""Values and gradients of elementwise functions at limits, NaN, infinities, zeros and negative powers."""

import math

import numpy as np
import pytest

import resilin
from resilin.nn import functional as F

inf, nan = math.inf, math.nan


def test_the_divergence_of_negative_probabilities_is_nan():
    losses = F.kl_div(resilin.tensor([0.5, 0.5, 0.5]), resilin.tensor([-1.0, 0.0, 1.0]), reduction="none")
    assert losses[0].isnan()
    assert losses[1:].tolist() == [0, -0.5]


def test_the_sign_of_nan_is_zero_and_that_of_a_bool_itself():
    assert resilin.tensor([nan, -2.0, 3.0]).sign().tolist() == [0, -1, 1]
    assert resilin.tensor([True, False]).sign().tolist() == [True, False]


def test_gradients_of_nan_stop_at_a_limit_and_at_the_smaller():
    for function in (lambda t: t.clamp(-0.5, 0.5), lambda t: resilin.maximum(t, resilin.zeros(2)), lambda t: t.relu()):
        x = resilin.tensor([-2.0, 0.25], requires_grad=True)
        function(x).backward(resilin.tensor([nan, 1.0]))
        assert x.grad.tolist() == [0, 1]


def test_negative_powers_of_whole_tensors_are_rounded_to_zero():
    a, b = resilin.tensor([1, -1, -1, 2, 0, 3]), resilin.tensor([-1, -1, -2, -1, -3, 2])
    assert (a**b).tolist() == [1, -1, 1, 0, 0, 9]
    assert (1**b).tolist() == [1] * 6
    with pytest.raises(RuntimeError, match="negative integer powers"):
        a**-1


def test_the_gradient_of_softsign_is_nan_where_its_value_is():
    x = resilin.tensor([inf, -inf, nan, 0.0, -3.0, 1e30], requires_grad=True)
    y = F.softsign(x)
    y.sum().backward()
    np.testing.assert_array_equal(y.detach().numpy(), np.float32([nan, nan, nan, 0, -0.75, 1]))
    np.testing.assert_array_equal(x.grad.numpy(), np.float32([nan, nan, nan, 1, 0.0625, 0]))


@pytest.mark.parametrize("number", [0.5, 1.5, nan])
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
    for limits in ((nan, None), (None, nan), (nan, 2.0), (0.0, nan)):
        assert resilin.clamp(x, *limits).isnan().all().item()
    x = resilin.tensor([1.0], dtype=dtype, requires_grad=True)
    assert resilin.clamp(x, resilin.tensor([nan])).isnan().item()
    assert resilin.clamp(x, max=resilin.tensor([nan])).isnan().item()


def test_logit_has_no_finite_gradient_where_it_has_no_value():
    x = resilin.tensor([-0.5, 0.25, 2.0], requires_grad=True)
    resilin.logit(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [nan, 16 / 3, nan], rtol=1e-6)
    x.grad = None
    resilin.logit(x, eps=0.1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0, 16 / 3, 0], rtol=1e-6)


def test_the_angle_of_real_numbers_has_a_gradient_of_zero():
    x = resilin.tensor([-2.0, -0.0, 0.0, 3.0, nan, -inf], requires_grad=True)
    y = resilin.angle(x)
    np.testing.assert_array_equal(y.detach().numpy(), np.float32([np.pi, 0, 0, 0, nan, np.pi]))
    assert resilin.autograd.grad(y.sum(), x)[0].tolist() == [0] * 6


def test_a_complex_number_is_true_when_either_part_differs_from_zero():
    assert resilin.tensor([1j, 0, 1]).bool().tolist() == [True, False, True]
    assert resilin.tensor([1j]).to(resilin.bool).item()


def test_the_angle_of_real_numbers_is_zero_or_pi():
    found = resilin.angle(resilin.tensor([-2, 3]))
    assert found.dtype is resilin.float32
    assert found.tolist() == pytest.approx([math.pi, 0])
    found = resilin.angle(resilin.tensor([-0.0, -inf, nan]))
    assert found.tolist() == pytest.approx([0, math.pi, nan], nan_ok=True)


def test_equal_complex_numbers_are_added_under_the_logarithm():
    assert resilin.logaddexp(resilin.tensor([0j]), resilin.tensor([0j])).item() == pytest.approx(math.log(2))
    lost = resilin.tensor([complex(-inf, 0)])
    assert resilin.logaddexp(lost, lost).item().real == -inf


def test_infinite_ends_are_met_by_interpolation():
    assert resilin.lerp(resilin.tensor(inf), resilin.tensor(1.0), 0.5).item() == inf
    assert resilin.tensor([-inf, 1.0, 2.0]).quantile(0.25).item() == -inf
    assert resilin.tensor([-inf, 1.0, nan, 2.0]).nanquantile(0.25).item() == -inf


def test_lerp_has_the_gradients_of_its_formula_on_both_sides_of_the_middle():
    start, end = resilin.tensor([1.0, 2.0], requires_grad=True), resilin.tensor([5.0, 9.0], requires_grad=True)
    weight = resilin.tensor([0.25, 0.75], requires_grad=True)
    value = resilin.lerp(start, end, weight)
    assert value.tolist() == [2, 7.25]
    value.sum().backward()
    assert start.grad.tolist() == [0.75, 0.25]
    assert end.grad.tolist() == [0.25, 0.75]
    assert weight.grad.tolist() == [4, 7]


def test_ldexp_overflows_only_where_its_result_does():
    x = resilin.tensor([2.0**-100, 0.0, 1.0, 2.0**-149])
    found = resilin.ldexp(x, resilin.tensor([200, 5000, 5000, 276]))
    assert found.tolist() == [2.0**100, 0, inf, 2.0**127]


def test_vander_has_the_gradients_of_powers_at_zero_too():
    x = resilin.tensor([0.0, 2.0], requires_grad=True)
    powers = resilin.vander(x, N=4, increasing=True)
    assert powers.tolist() == [[1, 0, 0, 0], [1, 2, 4, 8]]
    powers.sum().backward()
    assert x.grad.tolist() == [1, 1 + 4 + 12]
    assert resilin.vander(resilin.tensor([3], dtype=resilin.int8), N=7)[0, 0].item() == 729
    assert resilin.vander(resilin.tensor([3.0]), N=1).tolist() == [[1]]


def test_nan_is_below_the_step_and_never_the_same_number_twice():
    assert resilin.heaviside(resilin.tensor([nan, 0, 1]), resilin.tensor(0.5)).tolist() == [0, 0.5, 1]
    assert resilin.tensor([nan, nan, 1.0]).mode().values.item() == 1
    assert resilin.tensor([nan, 1.0, 1.0]).mode().values.item() == 1


@pytest.mark.parametrize("dtype", [resilin.float16, resilin.bfloat16])
def test_half_precision_is_rounded_to_more_places_than_it_has(dtype):
    found = resilin.tensor([1.5, 1000.0], dtype=dtype).round(decimals=20)
    assert found.dtype is dtype
    assert found.tolist() == [1.5, 1000]
