"""Special functions by native code: as their numpy forms, for any number of threads."""

import math
from typing import Any

import numpy as np
import pytest

from resilin.core.kernels import bessel, gamma, loader
from resilin.core.machine import threads
from resilin.core.ops import special as ops

FORMULAS: dict[str, Any] = {
    "gammaln": gamma.lgamma,
    "digamma": gamma.digamma,
    "erfc": gamma.erfc,
    "erfcx": bessel.erfcx,
    "erfinv": gamma.erfinv,
    "ndtr": ops._ndtr,
    "ndtri": lambda p: -np.sqrt(2) * gamma.erfcinv(2 * p),
    "log_ndtr": ops._log_ndtr,
    "i0": bessel.i0,
    "i0e": bessel.i0e,
    "i1": bessel.i1,
    "i1e": bessel.i1e,
}
pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

ENDS = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 8.0, -8.0, 13.0, 700.0, -700.0, 1e30, -1e30, np.inf, -np.inf, np.nan]


def _points() -> Any:
    r = np.random.default_rng(0)
    return np.concatenate([ENDS, r.uniform(-1, 1, 500), r.normal(size=500) * 12, r.uniform(0, 1e-6, 30)])


def _native(name: str, x: Any) -> Any:
    return getattr(loader.native, "special_" + name)(x)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_functions_equal_their_numpy_forms(name: str, dtype: Any) -> None:
    x = _points().astype(dtype)
    with np.errstate(all="ignore"):
        expected = FORMULAS[name](x.astype(np.float64)).astype(dtype)
    # the numpy form is good to some ulps of the largest term, which cancels where a function is 0
    np.testing.assert_allclose(_native(name, x), expected, 64 * np.finfo(dtype).eps, 1e-14)


@pytest.mark.parametrize("name", FORMULAS)
def test_special_functions_of_an_element_do_not_depend_on_its_place(name: str) -> None:
    x = _points().astype(np.float32)
    whole = _native(name, x)
    for n in (0, 1, 63, 64, 65):
        assert _native(name, x[-n:] if n else x[:0]).tobytes() == (whole[-n:] if n else whole[:0]).tobytes()
    assert _native(name, x.reshape(-1, 1)[::2]).tobytes() == whole[::2].tobytes()


def test_special_functions_are_the_same_for_any_number_of_threads() -> None:
    x, before = np.resize(_points(), 20_000).astype(np.float32), threads.get_num_threads()
    found = set()
    for count in (1, 2):
        threads.set_num_threads(count)
        found.add(b"".join(_native(name, x).tobytes() for name in FORMULAS))
    threads.set_num_threads(before)
    assert len(found) == 1


def test_special_functions_of_integers_are_left_to_the_numpy_form() -> None:
    assert all(_native(name, np.arange(3)) is None for name in FORMULAS)


def _dense(low: float, high: float) -> Any:
    """Samples of [low, high], denser about 0, with 0, subnormal and the smallest normal numbers."""
    r = np.random.default_rng(1)
    small = [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1e-45, -1e-45, 1.1754944e-38]
    near = 10.0 ** r.uniform(-30, 0, 300) * r.choice([-1, 1], 300)
    return np.concatenate([small, r.uniform(low, high, 6000), near[(near >= low) & (near <= high)]])


def _ulps(found: Any, expected: Any) -> Any:
    """The largest distance in units in the last place of `found`'s dtype, of `expected` in float64."""
    unit = np.spacing(np.abs(expected).astype(found.dtype)).astype(np.float64)
    return (np.abs(found.astype(np.float64) - expected) / unit).max()


_ERF, _ERFC, _LGAMMA = (np.vectorize(f, otypes=[float]) for f in (math.erf, math.erfc, math.lgamma))
REFERENCES: dict[str, Any] = {  # libm's functions, which are within 1 unit of float64, and where to look
    "erfc": (_ERFC, _dense(-7, 26)),
    "ndtr": (lambda x: 0.5 * _ERFC(x * -math.sqrt(0.5)), _dense(-13, 8)),
    "gammaln": (_LGAMMA, np.abs(_dense(-40, 40))[8:]),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_float32_results_are_those_of_float64_rounded_once(name: str) -> None:
    formula, points = REFERENCES[name]
    x = points.astype(np.float32)
    assert _ulps(_native(name, x), formula(x.astype(np.float64))) <= 0.6


def test_erfc_of_float64_is_within_four_units_of_libms() -> None:
    x = _dense(-7, 26)
    assert _ulps(_native("erfc", x), _ERFC(x)) <= 4


def test_erf_of_float64_is_within_three_units_of_libms() -> None:
    x = _dense(-6, 6)
    assert loader.native is not None
    assert _ulps(loader.native.special_erf(x), _ERF(x)) <= 3


def test_the_inverse_error_function_is_inverted_by_erf_and_erfc() -> None:
    x = _dense(-1, 1)
    found = _native("erfinv", x)
    inner = np.abs(x) < 0.5
    assert _ulps(_ERF(found[inner]), x[inner]) <= 4
    # of y the error of erfc(y) is 2 y * y times as large
    y, rest = np.abs(found[~inner]), 1 - np.abs(x[~inner])
    assert (np.abs(_ERFC(y) / rest - 1) / (1 + 2 * y * y)).max() < 4 * 2.0**-52
    narrow = x.astype(np.float32)
    narrow = narrow[np.abs(narrow) < 1]
    assert _ulps(_native("erfinv", narrow), _native("erfinv", narrow.astype(np.float64))) <= 0.7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_edges_of_error_functions(dtype: Any) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30], dtype)
    y = _native("erf", x.astype(np.float64))
    np.testing.assert_array_equal(y, [1, -1, np.nan, 0, -0.0, 1, -1])
    assert np.signbit(y[4])
    np.testing.assert_array_equal(_native("erfc", x), np.array([0, 2, np.nan, 1, 1, 0, 2], dtype))
    np.testing.assert_array_equal(_native("ndtr", x), np.array([1, 0, np.nan, 0.5, 0.5, 1, 0], dtype))
    np.testing.assert_array_equal(_native("log_ndtr", x)[[0, 1, 2, 5]], np.array([0, -np.inf, np.nan, 0], dtype))
    np.testing.assert_array_equal(
        _native("erfinv", x), np.array([np.nan, np.nan, np.nan, 0, -0.0, np.nan, np.nan], dtype)
    )
    assert np.signbit(_native("erfinv", x)[4])
    np.testing.assert_array_equal(_native("erfinv", np.array([1, -1], dtype)), np.array([np.inf, -np.inf], dtype))


@pytest.mark.parametrize("name", ["special_erf", "sigmoid_forward", "silu_forward"])
def test_float64_forms_are_their_formulas_wherever_an_element_lies(name: str) -> None:
    x = np.concatenate([_dense(-40, 40), [710.0, -745.0, -800.0, 1e300]])
    assert loader.native is not None
    whole = getattr(loader.native, name)(x)
    with np.errstate(over="ignore"):
        sigmoid = np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))
    expected = {"special_erf": _ERF(x), "sigmoid_forward": sigmoid, "silu_forward": x * sigmoid}[name]
    np.testing.assert_allclose(whole, expected, 1e-15, 1e-300)
    for n in (1, 7, 8, 9, 63, 65):
        assert getattr(loader.native, name)(x[-n:].copy()).tobytes() == whole[-n:].tobytes()


@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_of_float64_is_x_times_the_normal_distribution(tanh: bool) -> None:
    x = _dense(-6, 40)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    expected = 0.5 * x * (1 + np.tanh(inner)) if tanh else 0.5 * x * _ERFC(x * -math.sqrt(0.5))
    assert loader.native is not None
    found = loader.native.gelu_forward(x, tanh)
    np.testing.assert_allclose(found, expected, 1e-14, 1e-15)
    assert loader.native.gelu_forward(x[-9:].copy(), tanh).tobytes() == found[-9:].tobytes()


def test_log_ndtr_of_all_finite_numbers_is_finite_or_the_square_that_overflows() -> None:
    x = -np.concatenate([np.logspace(0, 308, 4001), [7.815720878319654e55, np.finfo(np.float64).max, np.inf]])
    found = loader.native.special_log_ndtr(x)
    with np.errstate(all="ignore"):
        expected = ops._log_ndtr(x)
        far = x < -1e10
        np.testing.assert_array_equal(found[far], -0.5 * x[far] * x[far])
    np.testing.assert_allclose(found[~far], expected[~far], rtol=1e-14)
    single = x[np.abs(x) < 3e38].astype(np.float32)
    wide = loader.native.special_log_ndtr(single.astype(np.float64))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(loader.native.special_log_ndtr(single), wide.astype(np.float32), rtol=3e-7)


def test_erf_of_the_smallest_numbers_is_within_two_ulps() -> None:
    bits = np.concatenate([np.arange(1, 1 << 12), np.linspace(1, 1 << 30, 5001).astype(np.int64)]).astype(np.uint32)
    x = bits.view(np.float32)
    x = np.concatenate([x[x < 1e-30], -x[x < 1e-30]])
    found, exact = loader.native.erf_forward(x), 2 / np.sqrt(np.pi) * x.astype(np.float64)
    steps = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    tiny = np.abs(x) < 1e-36
    assert (np.abs(found - exact) <= np.where(tiny, 1.5, 4) * steps).all()
