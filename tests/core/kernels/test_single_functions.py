"""Functions of float32 by loops of our own: the nearest float32 nearly everywhere, special values as C99 has them."""

import math
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import loader
from resilin.core.machine import threads

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

ONE = ["log", "log2", "log10", "log1p", "expm1", "sinh", "cosh", "tan", "arcsinh", "arccosh", "arctanh", "arcsin"]
ONE += ["arccos", "arctan"]
TWO = ["arctan2", "power", "logaddexp"]
EDGES = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.5, math.inf, math.nan, 1e-45, 1.17e-38, 1e-17, 1e17, 3.4028235e38, 16777217.0]
EDGES += [88.7, 89.4, 90.0, 104.0, 128.0, 150.0, 1 - 2**-24, 1 + 2**-23, 1e5, 9.99e5, 1.01e6, 1e30]
SIGNED = np.array([sign * x for x in EDGES for sign in (1, -1)], np.float32)


def _loop(name: str) -> Any:
    return loader.native.looped(getattr(np, name), name)


def _ulps(found: Any, exact: Any) -> float:
    """The largest error in units of the last place of the nearest float32; all else must be equal."""
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
    inside = np.isfinite(near) & np.isfinite(found)
    assert np.array_equal(found[~inside], near[~inside], equal_nan=True)
    zero = near == 0
    assert np.array_equal(np.signbit(found[zero]), np.signbit(near[zero]))
    return float(np.max(np.abs(found - exact)[inside] / np.spacing(np.abs(near[inside])), initial=0.0))


def _every(step: int) -> Any:
    """Every so manieth of all float32, NaN and infinity among them."""
    return np.arange(0, 2**32, step, dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize("name", ONE)
def test_functions_round_once(name: str) -> None:
    x = np.concatenate([_every(9973), SIGNED])
    if name == "tan":
        x = x[~(np.abs(x) > 1e6)]  # beyond it is the C library's
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.float64))
        assert _ulps(_loop(name)(x), exact) < 0.51


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_round_once(name: str) -> None:
    r = np.random.default_rng(0)
    x, y = (np.concatenate([_every(19997)[: 1 << 17], np.float32(r.normal(size=1 << 17))]) for _ in "xy")
    r.shuffle(x)
    bases, powers = np.abs(r.normal(size=1 << 16)), r.normal(size=1 << 16) * 30
    pairs = np.meshgrid(SIGNED, SIGNED)
    x = np.concatenate([x, bases.astype(np.float32), pairs[0].ravel()])
    y = np.concatenate([y, powers.astype(np.float32), pairs[1].ravel()])
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.float64), y.astype(np.float64))
        found = _loop(name)(x, y)
        if name == "logaddexp":  # its two terms may be nearly opposite
            np.testing.assert_allclose(found.astype(np.float64), exact, 6.1e-8, 1e-10)
        else:
            assert _ulps(found, exact) < 0.51


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_an_element_does_not_depend_on_its_place_strides_or_threads(name: str) -> None:
    r, before = np.random.default_rng(3), threads.get_num_threads()
    x, y = r.uniform(0.01, 0.99, 70_001).astype(np.float32), r.normal(size=70_001).astype(np.float32)
    x += name == "arccosh"
    given = (x, y) if name in TWO else (x,)
    whole = _loop(name)(*given)
    for n in (0, 1, 3, 7, 8, 9, 33):
        some = _loop(name)(*(v[v.size - n :] for v in given))
        assert some.tobytes() == whole[whole.size - n :].tobytes()
    assert np.array_equal(_loop(name)(*(v[::-3] for v in given)), whole[::-3])
    for count in (1, 2):
        threads.set_num_threads(count)
        assert _loop(name)(*given).tobytes() == whole.tobytes()
    threads.set_num_threads(before)
    assert _loop(name)(*given, given[0]) is given[0]
    assert given[0].tobytes() == whole.tobytes()


@pytest.mark.parametrize("dtype", [resilin.float16, resilin.bfloat16])
def test_functions_of_16_bits_are_those_of_float32_rounded(dtype: Any) -> None:
    x = resilin.tensor(np.random.default_rng(6).uniform(0.01, 0.99, 4097)).to(dtype)
    for name in ("log", "log1p", "expm1", "sinh", "cosh", "tan", "asin", "acos", "atan", "asinh", "atanh"):
        f = getattr(resilin, name)
        assert resilin.equal(f(x), f(x.float()).to(dtype))
    assert resilin.equal(resilin.atan2(x, x.flip(0)), resilin.atan2(x.float(), x.flip(0).float()).to(dtype))


def test_large_angles_have_the_tangents_of_the_c_library() -> None:
    x = np.float32([1e6, 1e7, -3e10, 3.4e38, 999999.9])
    np.testing.assert_array_max_ulp(_loop("tan")(x), np.tan(x.astype(np.float64)).astype(np.float32), 1)
