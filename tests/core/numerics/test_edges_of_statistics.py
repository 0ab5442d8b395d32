"""Statistics, integrals and slopes of few, equal, missing and wrongly paired numbers."""

from typing import Any

import numpy as np
import pytest

import resilin

NAN = float("nan")


@pytest.mark.parametrize(
    ("line", "value", "place"),
    [
        ([1.0, NAN, NAN, 2.0], 1.0, 0),
        ([NAN, 3.0, NAN, 3.0], 3.0, 3),
        ([NAN, NAN, NAN], NAN, 0),
        ([5.0, 5.0, 1.0], 5.0, 1),
    ],
)
def test_nan_counts_in_mode_as_a_number_of_its_own(line, value, place):
    values, indices = resilin.mode(resilin.tensor(line))
    np.testing.assert_array_equal(values.numpy(), np.float32(value))
    assert indices.item() == place


def test_trapezoid_of_no_samples_is_zero():
    assert resilin.trapz(resilin.zeros(0), resilin.zeros(0, 3)).tolist() == 0
    assert resilin.trapezoid(resilin.zeros(0, 3), resilin.zeros(4), dim=0).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("y", "x"), [((0, 3), (0,)), ((3,), (2,)), ((3,), (1,)), ((2, 3), (2, 4))])
def test_trapezoid_needs_a_point_for_each_sample(y, x):
    with pytest.raises(RuntimeError, match="one x value for each sample point"):
        resilin.trapezoid(resilin.zeros(y), resilin.zeros(x))


def test_trapezoid_broadcasts_points_over_other_dimensions():
    y = resilin.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(resilin.trapezoid(y, resilin.tensor([[0.0, 1.0, 3.0]])).numpy(), [3.5, 12.5])


def test_a_correction_of_none_is_one():
    x = resilin.tensor([1.0, 2.0, 4.0])
    assert resilin.std(x, dim=None, correction=None).item() == resilin.std(x).item()
    assert resilin.var_mean(x, dim=None, correction=None)[0].item() == resilin.var(x).item()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"fweights": [1.0, 2.0]}, "expected fweights to be integers"),
        ({"fweights": [1, -2]}, "fweights cannot be negative"),
        ({"aweights": [1.0, -2.0]}, "aweights cannot be negative"),
        ({"aweights": [1, 2]}, "expected aweights to be floating point numbers"),
    ],
)
def test_cov_refuses_weights_that_are_none(weights, message):
    with pytest.raises(RuntimeError, match=message):
        resilin.cov(resilin.ones(3, 2), **{name: resilin.tensor(value) for name, value in weights.items()})


def test_gradient_of_bfloat16_stays_bfloat16_and_none_is_a_spacing_of_one():
    x = resilin.tensor([1.0, 2.0, 4.0])
    (slope,) = resilin.gradient(x.bfloat16(), spacing=2.0)
    assert slope.dtype is resilin.bfloat16
    assert slope.tolist() == [0.5, 0.75, 1.0]
    assert resilin.gradient(x, spacing=None)[0].tolist() == [1.0, 1.5, 2.0]


@pytest.mark.parametrize("edge_order", [1, 2])
@pytest.mark.parametrize("uniform", [True, False])
def test_gradient_is_that_of_numpy_and_has_derivatives_in_values_and_coordinates(edge_order, uniform):
    rng = np.random.default_rng(1)
    x = resilin.tensor(rng.normal(size=(2, 5)), requires_grad=True)
    at = resilin.tensor(np.sort(rng.uniform(size=5)) + np.arange(5), requires_grad=True)
    (slope,) = resilin.gradient(x, spacing=0.3 if uniform else [at], dim=1, edge_order=edge_order)
    expected = np.gradient(x.detach().numpy(), 0.3 if uniform else at.detach().numpy(), axis=1, edge_order=edge_order)
    np.testing.assert_allclose(slope.detach().numpy(), expected, rtol=1e-12)

    def along(x, at):
        return resilin.gradient(x, spacing=[at], dim=1, edge_order=edge_order)[0]

    assert resilin.autograd.gradcheck(along, (x, at))


def test_gradient_of_a_long_line_needs_no_more_memory_than_a_few_lines():
    x = resilin.arange(300_000.0, dtype=resilin.float64)
    assert resilin.gradient(x * x)[0][1:-1].equal(2 * x[1:-1])
    with pytest.raises(RuntimeError, match="expected a vector of 3 coordinates"):
        resilin.gradient(resilin.zeros(3), spacing=[resilin.zeros(4)])


def test_mode_of_many_lines_is_that_of_each():
    x = np.random.default_rng(0).integers(0, 4, (6, 50, 7))
    values, indices = resilin.mode(resilin.tensor(x), 1)
    for i in range(6):
        for j in range(7):
            counts = np.bincount(x[i, :, j])
            assert values[i, j].item() == counts.argmax()
            assert indices[i, j].item() == np.flatnonzero(x[i, :, j] == counts.argmax())[-1]


def test_gradient_refuses_a_dimension_named_twice():
    with pytest.raises(RuntimeError, match="appears multiple times"):
        resilin.gradient(resilin.zeros(3, 3), dim=(1, -1))


def test_histogram_of_nothing_has_bins_from_zero_to_one():
    assert resilin.histogram(resilin.zeros(0), 2).bin_edges.tolist() == [0, 0.5, 1]
    with pytest.raises(RuntimeError, match=r"expected a weight for each element of \(2,\), got \(1,\)"):
        resilin.histogram(resilin.zeros(2), 2, weight=resilin.ones(1))


def test_mvlgamma_is_infinite_at_the_poles_of_its_terms():
    np.testing.assert_allclose(resilin.mvlgamma(resilin.tensor([0.5, 3.0]), 3).numpy(), [np.inf, 2.694925], rtol=1e-5)


def test_polygamma_far_below_zero_takes_no_longer_than_elsewhere():
    x = resilin.tensor([-1e5 + 0.5, -1e12 + 0.5, -3.25, -0.5], dtype=resilin.float64)
    first, second = resilin.polygamma(1, x), resilin.polygamma(2, x)
    np.testing.assert_allclose(first.numpy(), [9.86959440109, 9.86960440109, 19.474085068082157, 8.93480220054468])
    np.testing.assert_allclose(second.numpy(), [-1e-10, 0, 123.955211039422, -0.82879664423432], rtol=1e-9, atol=1e-14)


def test_polygamma_is_exact_beside_its_poles():
    x = resilin.tensor([-1e-17, -3 - 4e-16, -3 + 5e-16, 1e-17], dtype=resilin.float64)
    near = x.numpy() - np.rint(x.numpy())
    np.testing.assert_allclose(resilin.polygamma(1, x).numpy(), near**-2.0, rtol=1e-12)
    np.testing.assert_allclose(resilin.polygamma(2, x).numpy(), -2 * near**-3.0, rtol=1e-12)


@pytest.mark.parametrize("size", [30.0, 1e3, 1e10, 1e19, 1e20, 1e21, 1e155, 1e300])
def test_normal_probabilities_far_out_are_zero_and_one(size):
    x = resilin.tensor([-size, size], dtype=resilin.float64)
    np.testing.assert_allclose(resilin.special.ndtr(x).numpy(), [0, 1], atol=1e-190)
    assert resilin.special.erfcx(x)[0].item() == float("inf")
    assert resilin.special.log_ndtr(x)[1].item() == pytest.approx(0, abs=1e-190)


def test_equal_logarithms_share_the_gradient_of_their_sum_however_large_they_are():
    a, b = (resilin.tensor([1e20, -1e20, 3.0], dtype=resilin.float64, requires_grad=True) for _ in range(2))
    for grad in resilin.autograd.grad(resilin.logaddexp(a, b).sum(), (a, b)):
        assert grad.tolist() == [0.5, 0.5, 0.5]


def test_zeta_below_zero_sums_its_terms():
    q = np.array([-2.5, -7.25, -0.75])
    for s in (2.0, 3.0, 5.0):
        expected = [np.sum((v + np.arange(200000)) ** -s) + (v + 199999.5) ** (1 - s) / (s - 1) for v in q]
        np.testing.assert_allclose(resilin.special.zeta(s, resilin.tensor(q)).numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("degree", [NAN, float("inf"), -float("inf"), -3.0])
def test_polynomials_of_degrees_that_are_none_are_zero(degree):
    found = resilin.special.chebyshev_polynomial_t(resilin.tensor([0.5, 0.5]), resilin.tensor([2.0, degree]))
    assert found.tolist() == [-0.5, 0.0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128"])
def test_the_spread_of_no_elements_is_nan_in_every_dtype(dtype):
    x = resilin.zeros(0, dtype=getattr(resilin, dtype), requires_grad=True)
    for function in (resilin.var, resilin.std):
        spread = function(x)
        assert spread.isnan().item()
        spread.backward()
    assert resilin.zeros(2, 0, dtype=x.dtype).var(1).isnan().all()


def test_the_spread_of_numbers_far_from_zero_is_theirs():
    x = resilin.arange(100.0) % 2 + 4e6  # its mean, 4000000.5, is no sum of float32 divided by 100
    assert x.reshape(1, 100).var(1).tolist() == pytest.approx([25 / 99])
    spread, mean = resilin.var_mean(x)
    assert (spread.item(), mean.item()) == (pytest.approx(25 / 99), 4000000.5)
    assert resilin.std_mean(x, 0, keepdim=True)[1].tolist() == [4000000.5]
    x.requires_grad_()
    x.var().backward()
    assert x.grad[:2].tolist() == pytest.approx([-1 / 99, 1 / 99])
    assert resilin.var_mean(resilin.tensor([float("inf"), 1.0]))[1].item() == float("inf")


def test_bins_narrower_than_the_dtype_resolves_are_counted():
    x = resilin.tensor([1e8, 1e8 + 8, 1e8 - 8, 1e8 + 16])
    assert resilin.histc(x, 4).tolist() == [1.0, 1.0, 1.0, 1.0]
    assert resilin.histc(resilin.tensor([0.1]), 2, 0, np.float64(np.float32(0.1))).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("dim", "keepdim", "shape"), [(0, False, (0, 3)), (1, True, (0, 2, 1)), (None, True, (0, 1, 1))]
)
def test_no_quantiles_are_asked_for(dim, keepdim, shape):
    x = resilin.arange(6.0).reshape(2, 3)
    assert x.quantile(resilin.zeros(0), dim, keepdim).shape == shape


def test_the_covariance_of_one_variable_is_a_number():
    assert resilin.cov(resilin.tensor([[1.0, 2, 3]])).shape == ()


def test_all_and_any_over_no_dimension_look_at_each_element():
    x = resilin.tensor([[0.0, 2.0]])
    for reduce in (resilin.all, resilin.any):
        assert reduce(x, ()).tolist() == [[False, True]]
        assert reduce(x, [], keepdim=True).tolist() == [[False, True]]


@pytest.mark.parametrize("correction", [-1, 0, 1])
def test_nothing_has_no_spread(correction):
    assert resilin.zeros(0).std(correction=correction).isnan().item()
    assert resilin.zeros(0, 2).var(0, correction=correction).isnan().all().item()


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64, resilin.float16, resilin.bfloat16, resilin.int64])
@pytest.mark.parametrize("n", [1, 2, 33, 1000])
def test_the_median_of_all_is_that_of_the_sorted_elements(n: int, dtype: Any) -> None:
    x = (resilin.randn(n) * 9).to(dtype)
    expected = x.sort().values[(n - 1) // 2]
    for view in (x, x.reshape(-1, 1), resilin.stack([x, x], 1)[:, 0]):
        found = view.median()
        assert found.shape == ()
        assert found.dtype == dtype
        assert found.item() == expected.item()
    if dtype.is_floating_point:
        x[n // 2] = float("nan")
        assert x.median().isnan()
        assert x.median().dtype == dtype


@pytest.mark.parametrize(("correction", "expected"), [(2, [-np.inf, np.inf]), (3, [2.0, -2.0])])
def test_the_gradient_of_a_variance_over_a_dimension_keeps_its_sign_where_nothing_is_left_to_divide_by(
    correction, expected
):
    x = resilin.tensor([1.0, 3.0], requires_grad=True)
    resilin.var(x, 0, correction=correction).backward()
    assert x.grad.tolist() == expected
