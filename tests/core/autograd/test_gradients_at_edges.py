"""Values and gradients where functions end, are infinite or have a corner, and where squares leave the dtype's range.

Numbers without a word are PyTorch's.
"""

import math

import numpy as np
import pytest

import resilin
from resilin.nn import functional as F

INF, NAN = math.inf, math.nan


def _pushed(fn, *values, dtype=resilin.float64):
    """The gradients of the sum of fn(*values)."""
    tensors = [resilin.tensor(value, dtype=dtype, requires_grad=True) for value in values]
    fn(*tensors).sum().backward()
    return [tensor.grad.tolist() for tensor in tensors]


@pytest.mark.parametrize("dtype", [resilin.float16, resilin.bfloat16, resilin.float32, resilin.float64])
def test_logit_is_infinitely_steep_at_its_ends_and_flat_where_eps_limits_it(dtype):
    x = [0.0, -0.0, 1.0, 0.5, 1.5, -0.5, NAN]
    (slopes,) = _pushed(resilin.logit, x, dtype=dtype)
    np.testing.assert_equal(slopes, [INF, INF, INF, 4.0, NAN, NAN, NAN])
    (slopes,) = _pushed(lambda t: resilin.logit(t, eps=0.0), x, dtype=dtype)
    np.testing.assert_equal(slopes, [INF, INF, INF, 4.0, 0.0, 0.0, NAN])
    (slopes,) = _pushed(lambda t: resilin.special.logit(t, eps=0.25), x, dtype=dtype)
    np.testing.assert_equal(slopes, [0.0, 0.0, 0.0, 4.0, 0.0, 0.0, NAN])


def test_logit_takes_one_limit_after_the_other():
    low, high = resilin.logit(resilin.tensor([0.1, 0.9]), eps=0.6).tolist()
    assert (low, -high) == pytest.approx((0.40546516, 0.40546516), rel=1e-6)


@pytest.mark.parametrize(
    ("dtype", "values", "spread", "variance"),
    [
        (resilin.float32, [1e20, -1e20, 5e19], 1.0408330e20, INF),
        (resilin.float32, [1e-30, -1e-30, 5e-31], 1.0408330e-30, 0.0),
        (resilin.bfloat16, [1e20, -1e20, 5e19], 1.0376e20, INF),
        (resilin.float16, [6e4, -6e4, 3e4], 62464.0, INF),
        (resilin.float64, [1e200, -1e200, 5e199], 1.0408329997330663e200, INF),  # PyTorch: inf for the first, too
        (resilin.float64, [1e-200, -1e-200, 5e-201], 1.0408329997330663e-200, 0.0),  # PyTorch: 0
        (resilin.complex64, [3e20, -3e20j, 0], 2.4494897e20, INF),
    ],
)
def test_the_spread_of_large_and_small_numbers_is_in_range_where_their_squares_are_not(dtype, values, spread, variance):
    x = resilin.tensor(values, dtype=dtype)
    for measured in (x.std(), x.std(0), resilin.stack([x, x]).std(1)[1], resilin.std_mean(x)[0]):
        assert measured.item() == pytest.approx(spread, rel=1e-6 if dtype != resilin.bfloat16 else 1e-2)
        assert measured.dtype == (resilin.float32 if dtype == resilin.complex64 else dtype)
    assert x.var().item() == resilin.var_mean(x)[0].item() == variance


@pytest.mark.parametrize("scale", [1e20, 1e-30, 1.0])
def test_the_spread_has_the_same_slope_at_every_scale(scale):
    x = resilin.tensor([scale, -scale, scale / 2], requires_grad=True)
    x.std().backward()
    assert x.grad.tolist() == pytest.approx([0.40032, -0.5604485, 0.1601281], rel=1e-5)


def test_a_variance_that_divides_by_nothing_is_infinitely_steep():
    for values, slopes in (
        ([1.0, 2.0, 4.0], [INF] * 3),
        ([2.0, 2.0, 2.0], [NAN] * 3),
        ([1.0, 2.0, 3.0], [INF, NAN, INF]),
    ):
        np.testing.assert_equal(_pushed(lambda x: resilin.var(x, correction=3), values), [slopes])


def test_the_gradient_of_xlogy_at_nothing_is_the_logarithm():
    x, y = [0.0, 0.0, 0.0, 0.0, 2.0], [0.5, 3.0, 0.0, -1.0, 4.0]
    of_x, of_y = _pushed(resilin.xlogy, x, y)
    assert of_x == pytest.approx([math.log(0.5), math.log(3), 0, 0, math.log(4)])
    assert of_y == [0, 0, 0, 0, 0.5]  # PyTorch: NaN where both are 0; 0 * log(y) is 0 whatever y is
    of_x, of_y = _pushed(resilin.special.xlog1py, x, [0.5, 3.0, -1.0, -2.0, 1.0])
    assert of_x == pytest.approx([math.log(1.5), math.log(4), 0, 0, math.log(2)])
    assert of_y == [0, 0, 0, 0, 1]
    assert resilin.xlogy(resilin.tensor([0.0, 0.0]), resilin.tensor([INF, 0.0])).tolist() == [0, 0]


def test_the_angle_of_the_origin_has_no_slope():
    of_a, of_b = _pushed(resilin.atan2, [0.0, -0.0, 0.0, 3.0], [0.0, 0.0, -0.0, 4.0])
    assert of_a == pytest.approx([0, 0, 0, 0.16])
    assert of_b == pytest.approx([0, 0, 0, -0.12])


def test_both_operands_of_an_extreme_have_the_gradient_of_nan():
    for fn in (resilin.maximum, resilin.minimum):
        of_a, of_b = _pushed(fn, [NAN, 1.0, NAN, 2.0], [1.0, NAN, NAN, 2.0])
        assert of_a == of_b == [1, 1, 1, 0.5]


@pytest.mark.parametrize("fn", [resilin.median, resilin.nanmedian])
def test_equal_elements_share_the_gradient_of_a_median_of_all(fn):
    for values, expected in (
        ([1.0, 2.0, 2.0], [0, 0.5, 0.5]),
        ([3.0, 3.0, 1.0, 3.0], [1 / 3, 1 / 3, 0, 1 / 3]),
        ([INF, 1.0, INF], [0.5, 0, 0.5]),
        ([NAN, NAN, NAN], [1 / 3, 1 / 3, 1 / 3]),
    ):
        assert _pushed(fn, values) == [pytest.approx(expected)]
    (slopes,) = _pushed(lambda x: fn(x, 0).values, [1.0, 2.0, 2.0])  # along a dimension: the one that is named
    assert sorted(slopes) == [0, 0, 1]


def test_the_median_of_infinite_numbers_is_infinite_with_a_gradient_too():
    for values in ([INF, 1.0, INF], [-INF, -INF, -INF]):
        x = resilin.tensor(values, requires_grad=True)
        assert resilin.nanmedian(x).item() == resilin.median(x).item() == values[0]


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e8, 1e19, 1e30])
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64])
def test_cross_entropy_keeps_its_digits_where_logits_are_large(scale, dtype):
    logits = resilin.tensor([[scale, scale, scale], [0.0, scale, scale]], dtype=dtype, requires_grad=True)
    loss = F.cross_entropy(logits, resilin.tensor([1, 2]), reduction="none")
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([math.log(3), math.log(2)], rel=1e-6)
    assert logits.grad.flatten().tolist() == pytest.approx([1 / 3, -2 / 3, 1 / 3, 0, 0.5, -0.5], rel=1e-6)


def test_smoothed_and_weighted_cross_entropy_keeps_its_digits_too():
    logits = resilin.tensor([[10001.0, 10000.0, 9999.0]], requires_grad=True)
    weight = resilin.tensor([1.0, 2.0, 0.5])
    loss = F.cross_entropy(logits, resilin.tensor([1]), weight=weight, label_smoothing=0.3)
    loss.backward()
    small = logits.detach() - 10000
    small.requires_grad_()
    same = F.cross_entropy(small, resilin.tensor([1]), weight=weight, label_smoothing=0.3)
    same.backward()
    assert loss.item() == pytest.approx(same.item(), rel=1e-6)
    assert logits.grad.tolist() == [pytest.approx(small.grad.tolist()[0], rel=1e-6)]


def test_the_cosine_of_long_vectors_is_a_number():
    a = resilin.tensor([[3e38, 3e38], [1e10, 1e-10], [0.0, 0.0]], requires_grad=True)
    b = resilin.tensor([[1.0, 2.0]] * 3)
    y = F.cosine_similarity(a, b)
    y.sum().backward()
    assert y.tolist() == pytest.approx([0, 0.4472136, 0])  # a length of inf, as in PyTorch
    assert a.grad[::2].flatten().tolist() == pytest.approx([0, 0, 44721360, 89442720])


def test_nan_passes_the_rectifier_and_no_limit():
    x = resilin.tensor([NAN, -1.0, 2.0], requires_grad=True)
    for create_graph in (False, True):
        (slope,) = resilin.autograd.grad(F.relu(x).sum(), x, create_graph=create_graph)
        assert slope.tolist() == [1, 0, 1]
    assert _pushed(lambda x, low: x.clamp(min=low), [NAN, 1.0, 3.0], [0.0, 2.0, NAN]) == [[0, 0, 0], [0, 1, 0]]


def test_angles_of_short_arrows_have_the_gradients_of_long_ones():
    x = resilin.tensor([1e-25]).requires_grad_()
    resilin.atan2(x, resilin.tensor([2e-24])).backward()
    assert x.grad.tolist() == pytest.approx([2e-24 / (1e-50 + 4e-48)], rel=1e-5)


def test_complex_logarithms_keep_what_is_small_beside_1():
    near = resilin.log1p(resilin.tensor([1e-20 + 1e-20j], dtype=resilin.complex128)).item()
    assert near == pytest.approx(1e-20 + 1e-20j, rel=1e-12)
    assert resilin.log1p(resilin.tensor([3 + 4j])).item() == pytest.approx(1.7328679 + 0.7853982j, rel=1e-6)
