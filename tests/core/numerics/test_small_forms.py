"""Forms of operations that have a way of their own: limits, arguments of numbers, triangles, frequencies, counts."""

import math

import numpy as np
import pytest

import resilin


def test_the_argument_of_real_numbers_is_0_or_pi() -> None:
    for dtype in (resilin.float32, resilin.float64, resilin.bfloat16, resilin.float16):
        x = resilin.tensor([1.0, -1.0, 0.0, -0.0, math.inf, -math.inf], dtype=dtype)
        pi = resilin.tensor([0.0, math.pi, 0.0, 0.0, 0.0, math.pi], dtype=dtype)
        assert resilin.equal(resilin.angle(x), pi)
        assert resilin.angle(resilin.cat((x, x.new_full((1,), math.nan))))[-1].isnan()
    assert resilin.angle(resilin.tensor([1, -2])).dtype is resilin.float32


@pytest.mark.parametrize("offset", [-7, -2, 0, 1, 7])
def test_places_of_triangles_are_numpys(offset: int) -> None:
    for rows in range(5):
        for columns in range(5):
            low, high = np.tril_indices(rows, offset, columns), np.triu_indices(rows, offset, columns)
            assert np.array_equal(resilin.tril_indices(rows, columns, offset).numpy(), np.array(low).reshape(2, -1))
            assert np.array_equal(resilin.triu_indices(rows, columns, offset).numpy(), np.array(high).reshape(2, -1))
    assert resilin.tril_indices(2, 2, dtype=resilin.int32).dtype is resilin.int32


@pytest.mark.parametrize("n", [1, 2, 7, 8, 1001])
def test_frequencies_are_numpys(n: int) -> None:
    for ours, theirs in ((resilin.fft.fftfreq, np.fft.fftfreq), (resilin.fft.rfftfreq, np.fft.rfftfreq)):
        found = ours(n, 0.5, dtype=resilin.float64).numpy()
        assert np.allclose(found, theirs(n, 0.5), rtol=1e-15, atol=0)


def test_a_limited_logit_is_that_of_its_limits() -> None:
    x = resilin.tensor([-1.0, 0.0, 0.1, 0.5, 0.95, 1.0, 2.0, math.nan])
    found = resilin.logit(x, 0.1)
    assert resilin.allclose(found, resilin.logit(x.clamp(0.1, 0.9)), equal_nan=True)
    crossed = resilin.logit(x[:3], 0.8)  # the lower limit comes first
    assert resilin.allclose(crossed, resilin.logit(resilin.tensor([0.8, 0.8, 0.8])))


def test_limits_in_place_are_those_of_clamp() -> None:
    for dtype in (resilin.float32, resilin.int64, resilin.bfloat16):
        x = resilin.tensor([-3.0, 0.5, 4.0]).to(dtype)
        assert resilin.equal(x.clone().clamp_min_(1), x.clamp(min=1))
        assert resilin.equal(x.clone().clamp_max_(max=1), x.clamp(max=1))
    with pytest.raises(TypeError):
        resilin.ones(2).clamp_min_()


def test_counts_have_the_dtype_that_is_asked_for() -> None:
    flags = resilin.ones(300, dtype=resilin.bool)
    assert flags.sum(dtype=resilin.int32).item() == 300
    assert flags.sum(dtype=resilin.uint8).item() == 300 % 256
    assert flags.view(3, 100).sum(1, keepdim=True, dtype=resilin.int16).dtype is resilin.int16


def test_running_products_have_the_gradient_of_their_quotients() -> None:
    for values in ([[0.5, -2.0, 3.0]], [[0.5, 0.0, 3.0]]):
        x = resilin.tensor(values, dtype=resilin.float64, requires_grad=True)
        assert resilin.autograd.gradcheck(lambda x: x.cumprod(1), (x,))
        assert resilin.autograd.gradgradcheck(lambda x: x.cumprod(1), (x,))


def test_pairs_of_reals_are_a_view_of_complex_numbers() -> None:
    z = resilin.zeros(2, 3, dtype=resilin.complex64)
    resilin.view_as_real(z)[0, 1, 1] = 2.0
    assert z[0, 1].item() == 2j
    assert resilin.view_as_real(z[:, ::2]).stride() == (6, 4, 1)
    assert resilin.view_as_real(z[0, 0]).shape == (2,)
