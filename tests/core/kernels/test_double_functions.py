"""Functions of float64 by loops of our own: within an ulp, special values as C99 has them, in any place."""

import math
from typing import Any

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin.core.kernels import loader
from resilin.core.machine import threads

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")
wide = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="the reference needs longer numbers than float64")

N = 20_000
ONE = ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sinh", "cosh", "tanh", "arctanh", "arcsin", "arccos"]
ONE += ["arctan"]
EDGES = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.5, math.inf, math.nan, 5e-324, 2.2e-308, 1e-17, 1e17, 1.7976931348623157e308]
EDGES += [1e300, 710.0, 709.8, 745.2, 1024.0, 1075.0, 9007199254740993.0, 1 - 2**-53, 1 + 2**-52]
SIGNED = np.array([sign * x for x in EDGES for sign in (1, -1)])


def _loop(name: str) -> Any:
    return loader.native.looped(getattr(np, name), name)


def _ulps(found: Any, exact: Any) -> float:
    """The largest error in units of the last place of the nearest float64."""
    near = exact.astype(np.float64)
    inside = np.isfinite(near) & np.isfinite(found)
    assert np.array_equal(found[~inside], near[~inside], equal_nan=True)
    return float(np.max(np.abs(found - exact)[inside] / np.spacing(np.abs(near[inside])), initial=0.0))


def _spread(low: float, high: float) -> Any:
    """Magnitudes from 10 ** low to 10 ** high, of both signs."""
    r = np.random.default_rng(0)
    return 10.0 ** r.uniform(low, high, N) * r.choice([-1, 1], N)


def _sweep(name: str) -> Any:
    r = np.random.default_rng(1)
    if name.startswith("log"):
        near = _spread(-16, -1)
        return np.concatenate([np.abs(_spread(-323, 308)), r.uniform(0.5, 2, N), near if name == "log1p" else 1 + near])
    if name in ("arcsin", "arccos", "arctanh"):
        return np.concatenate([r.uniform(-1, 1, N), _spread(-320, 0), 1 - np.abs(_spread(-16, -1))])
    end = {"exp2": 1070.0, "arctan": 1e3}.get(name, 709.0)
    return np.concatenate([r.uniform(-end, end, N), r.uniform(-3, 3, N), _spread(-320, 1)])


@wide
@pytest.mark.parametrize("name", ONE)
def test_functions_are_within_an_ulp(name: str) -> None:
    x = _sweep(name)
    with np.errstate(all="ignore"):
        assert _ulps(_loop(name)(x), getattr(np, name)(x.astype(np.longdouble))) < 0.95


@wide
def test_angles_and_powers_are_within_an_ulp() -> None:
    r = np.random.default_rng(2)
    x, y = (
        np.concatenate([_spread(-320, 308), r.normal(size=N)]),
        np.concatenate([_spread(-320, 308)[::-1], r.normal(size=N)]),
    )
    assert _ulps(_loop("arctan2")(x, y), np.arctan2(x.astype(np.longdouble), y.astype(np.longdouble))) <= 1.0
    base = np.concatenate([np.abs(_spread(-3, 3)), np.abs(_spread(-308, 308)), 1 + _spread(-16, -1), np.full(N, 2.0)])
    power = np.concatenate([r.normal(size=N) * 20, r.uniform(-1, 1, N), _spread(0, 17), r.uniform(-1070, 1023, N)])
    with np.errstate(all="ignore"):
        exact = np.power(base.astype(np.longdouble), power.astype(np.longdouble))
        exact = np.where(np.abs(exact) > np.finfo(np.float64).max, np.inf, exact)
        assert _ulps(_loop("power")(base, power), exact) < 0.98


def _same(found: Any, expected: Any) -> None:
    np.testing.assert_array_max_ulp(found[~np.isnan(found)], expected[~np.isnan(found)], 1)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    zero = expected == 0
    assert np.array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("name", ONE)
def test_special_values_are_the_c_librarys(name: str) -> None:
    with np.errstate(all="ignore"):
        _same(_loop(name)(SIGNED), getattr(np, name)(SIGNED))


@pytest.mark.parametrize("name", ["arctan2", "power"])
def test_special_values_of_pairs_are_the_c_librarys(name: str) -> None:
    x, y = (v.ravel().copy() for v in np.meshgrid(SIGNED, SIGNED))
    with np.errstate(all="ignore"):
        _same(_loop(name)(x, y), getattr(np, name)(x, y))


@pytest.mark.parametrize("name", [*ONE, "arctan2", "power"])
def test_an_element_does_not_depend_on_its_place_strides_or_threads(name: str) -> None:
    r, before = np.random.default_rng(3), threads.get_num_threads()
    x, y = r.uniform(0.01, 0.99, 60_001), r.normal(size=60_001)
    given = (x, y) if name in ("arctan2", "power") else (x,)
    whole = _loop(name)(*given)
    for n in (0, 1, 3, 4, 5, 33):
        assert (
            _loop(name)(*(v[-n:] if n else v[:0] for v in given)).tobytes()
            == (whole[-n:] if n else whole[:0]).tobytes()
        )
    assert np.array_equal(_loop(name)(*(v[::-3] for v in given)), whole[::-3])
    for count in (1, 2):
        threads.set_num_threads(count)
        assert _loop(name)(*given).tobytes() == whole.tobytes()
    threads.set_num_threads(before)
    assert _loop(name)(*given, given[0]) is given[0]
    assert given[0].tobytes() == whole.tobytes()


FORMS: dict[str, Any] = {  # in longer numbers
    "elu": (lambda x: F.elu(x, 1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 0)))),
    "selu": (
        F.selu,
        lambda x: 1.0507009873554804934 * np.where(x > 0, x, 1.6732632423543772848 * np.expm1(np.minimum(x, 0))),
    ),
    "celu": (
        lambda x: F.celu(x, 0.7),
        lambda x: np.where(x > 0, x, 0.7 * np.expm1(np.minimum(x, 0) / np.longdouble(0.7))),
    ),
    "softplus": (lambda x: F.softplus(x, 2.0), lambda x: np.where(2 * x > 20, x, np.log1p(np.exp(2 * x)) / 2)),
    "logsigmoid": (F.logsigmoid, lambda x: -np.log1p(np.exp(-x))),
    "mish": (F.mish, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "sinc": (resilin.sinc, np.sinc),
}


@wide
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64])
def test_activations_in_one_pass_are_their_formulas(name: str, dtype: Any) -> None:
    form, exact = FORMS[name]
    x = resilin.tensor(
        np.concatenate([np.random.default_rng(4).normal(size=5001) * 6, [0.0, 1.0, -3.0, 40.0, -40.0]])
    ).to(dtype)
    expected = exact(x.numpy().astype(np.longdouble)).astype(np.float64)
    eps = np.finfo(np.float64 if dtype is resilin.float64 else np.float32).eps
    np.testing.assert_allclose(form(x).double().numpy(), expected, 12 * eps, 4 * eps)
    np.testing.assert_array_equal(form(x[::2]).numpy(), form(x).numpy()[::2])
    assert math.isnan(form(resilin.tensor(math.nan, dtype=dtype)).item())


@pytest.mark.parametrize("name", FORMS)
def test_gradients_of_activations_of_float64_are_those_of_small_steps(name: str) -> None:
    form, step = FORMS[name][0], 1e-5
    values = np.random.default_rng(5).normal(size=999) * 4
    x = resilin.tensor(values, requires_grad=True)
    form(x).sum().backward()
    slope = (form(x.detach() + step) - form(x.detach() - step)).numpy() / (2 * step)
    np.testing.assert_allclose(x.grad.numpy(), slope, 1e-5, 1e-8)


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64, resilin.float16, resilin.bfloat16])
def test_logit_has_its_edges_in_every_dtype(dtype: Any) -> None:
    x = resilin.tensor([0.0, -0.0, 1.0, -0.5, 1.5, math.nan, 0.5, 0.25], dtype=dtype)
    expected = [-math.inf, -math.inf, math.inf, math.nan, math.nan, math.nan, 0.0, -math.log(3)]
    rtol = 1e-2 if x.element_size() == 2 else 1e-6
    np.testing.assert_allclose(resilin.logit(x).double().numpy(), expected, rtol)
    np.testing.assert_allclose(resilin.logit(x, 0.25).double().numpy()[[0, 2]], [-math.log(3), math.log(3)], rtol)


def test_special_functions_of_16_bits_are_those_of_float32_rounded() -> None:
    x = resilin.tensor(np.random.default_rng(6).uniform(-0.99, 3, 4097)).half()
    for name in ("erfc", "ndtr", "log_ndtr", "i0", "i0e", "i1", "gammaln", "digamma", "erfinv"):
        f = getattr(resilin.special, name)
        found, expected = f(x).numpy(), f(x.float()).half().numpy()
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(f(x[::3]).numpy(), expected[::3])


def test_gamma_functions_meet_the_c_librarys_and_are_exact_near_the_zeros() -> None:
    r = np.random.default_rng(7)
    x = np.concatenate([r.uniform(0, 20, 4000), -r.uniform(0, 30, 2000)])
    x = x[np.abs(x - np.rint(x)) > 1e-3]
    found, expected = resilin.lgamma(resilin.tensor(x)).numpy(), np.array([math.lgamma(v) for v in x])
    np.testing.assert_allclose(found, expected, 1e-14, 4e-14)  # by its largest term
    off = 10.0 ** r.uniform(-15, -7, 500) * r.choice([-1, 1], 500)
    for zero, slope, bend in (
        (1.0, -0.5772156649015329, 0.8224670334241132),
        (2.0, 0.42278433509846713, 0.3224670334241132),
    ):
        near = zero + off
        d = near - zero
        found = resilin.lgamma(resilin.tensor(near)).numpy()
        np.testing.assert_allclose(found, d * (slope + bend * d), 1e-13)
    edges = resilin.tensor([0.0, -0.0, -1.0, math.inf, -math.inf, math.nan], dtype=resilin.float64)
    np.testing.assert_array_equal(resilin.lgamma(edges).numpy(), [math.inf] * 5 + [math.nan])
    np.testing.assert_array_equal(
        resilin.digamma(edges).numpy(), [-math.inf, math.inf, math.nan, math.inf, math.nan, math.nan]
    )
