"""Loops over elements on several threads: numpy's bits, whatever the size, dtype, strides and number of threads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import choose, loader, pack
from resilin.core.machine import threads

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

SIZES = [0, 1, 31, 33, 4097]
FLOATS = [np.float32, np.float64]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -3e38, 3e38, 0.5, -0.5, 7.0, -7.0, 2.0**40, 1e-30]
TWO = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder", "fmod", "floor_divide", "copysign"]
TWO += ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and"]
ONE = ["negative", "absolute", "square", "sqrt", "floor", "ceil", "trunc", "rint", "isnan", "isfinite"]
HALVES = [resilin.float16, resilin.bfloat16]


def _numbers(n: int, seed: int, dtype: Any) -> Any:
    r = np.random.default_rng(seed)
    x = (r.normal(size=n) * 4).astype(dtype)
    x[: n // 3] = r.choice(SPECIAL, n // 3)
    return x


def _bits(x: Any) -> bytes:
    x = np.asarray(x)
    return np.where(np.isnan(x), x.dtype.type(np.nan), x).tobytes() if x.dtype.kind == "f" else x.tobytes()


def _looped(name: str) -> Any:
    return loader.native.looped(getattr(np, name), name)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", TWO)
def test_loops_of_two_give_numpys_bits(name: str, n: int, dtype: Any) -> None:
    x, y = _numbers(n, 0, dtype), _numbers(n, 1, dtype)
    with np.errstate(all="ignore"):
        assert _bits(_looped(name)(x, y)) == _bits(getattr(np, name)(x, y))
        assert _bits(_looped(name)(x, 2.5)) == _bits(getattr(np, name)(x, 2.5))
        assert _bits(_looped(name)(x[::2], y[::2])) == _bits(getattr(np, name)(x[::2], y[::2]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ONE)
def test_loops_of_one_give_numpys_bits(name: str, n: int, dtype: Any) -> None:
    x = _numbers(n, 2, dtype)
    with np.errstate(all="ignore"):
        assert _bits(_looped(name)(x)) == _bits(getattr(np, name)(x))
        assert _bits(_looped(name)(x[::-1])) == _bits(getattr(np, name)(x[::-1]))


@pytest.mark.parametrize(
    ("name", "dtype"), [("exp", np.float32), ("hypot", np.float32), ("sin", np.float64), ("cos", np.float64)]
)
def test_loops_of_our_own_are_within_two_units_of_the_last_place(name: str, dtype: Any) -> None:
    x = np.concatenate(
        [_numbers(4097, 3, dtype), np.linspace(-110, 95, 5000).astype(dtype), np.array([1e5, 3e7], dtype)]
    )
    given = (x, _numbers(len(x), 4, dtype)) if name == "hypot" else (x,)
    with np.errstate(all="ignore"):
        wide = [v.astype(np.longdouble if dtype is np.float64 else np.float64) for v in given]
        expected = getattr(np, name)(*wide)
        found = getattr(resilin, name)(*map(resilin.tensor, given)).numpy()
        np.testing.assert_allclose(found, expected.astype(dtype), 2 * np.finfo(dtype).eps, 2 * np.finfo(dtype).tiny)


def test_ldexp_multiplies_by_powers_of_two_without_overflow_between() -> None:
    x, power = np.float32([1e-40, 3e38, 1.5, np.nan, -2.0]), np.float32([200, -250, 0.5, 3, 10])
    expected = (x.astype(np.float64) * np.exp2(power.astype(np.float64))).astype(np.float32)
    np.testing.assert_array_equal(resilin.ldexp(resilin.tensor(x), resilin.tensor(power)).numpy(), expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "maximum", "less", "fmod", "remainder"])
def test_loops_of_16_bit_floats_compute_in_float32_and_round_once(name: str, n: int, dtype: Any) -> None:
    x, y = (resilin.tensor(_numbers(n, seed, np.float32)).to(dtype)._array for seed in (5, 6))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(pack.to_float32(x), pack.to_float32(y))
        found = _looped(name)(x, y)
        if expected.dtype == np.float32:
            expected, found = pack.to_float32(pack.astype(expected, x.dtype)), pack.to_float32(found)
        assert _bits(found) == _bits(expected)
        strided = _looped(name)(x[::2], y[::2])
        assert strided.astype(np.float32).shape == expected[::2].shape


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_loops_of_integers_are_numpys(dtype: Any) -> None:
    r = np.random.default_rng(7)
    x, y = (r.integers(0, 2 if dtype is np.bool_ else 100, 4097).astype(dtype) for _ in range(2))
    for name in ("add", "multiply", "maximum", "equal", "less", "bitwise_and"):
        found, expected = _looped(name)(x, y), getattr(np, name)(x, y)
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("a", "b"),
    [((50, 64), (64,)), ((50, 64), (50, 1)), ((3, 1, 5), (4, 1)), ((0, 3), (3,)), ((700, 33), (33,)), ((2, 3, 4), ())],
)
def test_loops_broadcast_as_numpy_does(a: Any, b: Any) -> None:
    r = np.random.default_rng(8)
    x, y = r.normal(size=a).astype(np.float32), np.asarray(r.normal(size=b), np.float32)
    for left, right in ((x, y), (y, x), (x.T, x.T), (x[::2], x[1::2][:1]), (x.T, np.ones((), np.float32))):
        expected = np.add(left, right)
        found = _looped("add")(left, right)
        assert found.shape == expected.shape
        assert found.strides == expected.strides or 0 in found.shape or 1 in found.shape
        assert np.array_equal(found, expected)


def test_loops_write_where_they_are_told_and_leave_overlaps_to_numpy() -> None:
    x = np.arange(10, dtype=np.float32)
    looped = _looped("add")
    assert looped(x, x, x) is x
    assert x.tolist() == [2.0 * k for k in range(10)]
    expected = np.add(x[1:].copy(), x[:-1].copy())
    looped(x[1:], x[:-1], x[1:])
    assert np.array_equal(x[1:], expected)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("n", SIZES)
def test_where_takes_elements_as_they_are(n: int, dtype: Any) -> None:
    r = np.random.default_rng(9)
    a, b = ((r.normal(size=n) * 9).astype(dtype) for _ in range(2))
    condition = r.integers(0, 2, n) == 1
    assert choose.where(condition, a, b).tobytes() == np.where(condition, a, b).tobytes()
    assert choose.where(condition[::2], a[::2], b[::2]).tobytes() == np.where(condition[::2], a[::2], b[::2]).tobytes()
    one = np.asarray(3, dtype)
    assert choose.where(condition, one, b).tobytes() == np.where(condition, one, b).tobytes()


KINDS = [np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_conversions_are_numpys(source: Any, target: Any) -> None:
    r = np.random.default_rng(10)
    x = r.integers(0, 2 if source is np.bool_ else 100, 1031).astype(source)
    if np.dtype(source).kind == "f" and np.dtype(target).kind == "f":
        x = np.concatenate([x, (r.normal(size=1000) * 1e-3).astype(source), np.array([np.inf, -0.0, 65519.9], source)])
    with np.errstate(all="ignore"):
        for given in (x, x[::3], x.reshape(-1, 1)[:7]):
            assert pack.astype(given, np.dtype(target)).tobytes() == given.astype(target).tobytes()


def test_float64_is_rounded_to_float16_once() -> None:
    x = np.float64([1 + 2**-11 + 2**-40, 1 + 2**-11, 1 + 3 * 2**-11 - 2**-40, 2.0**-25 + 2.0**-60, 1e-50, -1e300])
    with np.errstate(all="ignore"):
        assert pack.astype(x, np.dtype(np.float16)).tobytes() == x.astype(np.float16).tobytes()


def _some(count: int) -> bytes:
    threads.set_num_threads(count)
    x = resilin.tensor(np.resize(_numbers(4097, 11, np.float32), 150_000))
    y = resilin.tensor(np.resize(_numbers(4097, 12, np.float32), 150_000))
    calls: list[Callable[[], Any]] = [
        lambda: x + y, lambda: x.exp(), lambda: resilin.remainder(x, y), lambda: resilin.where(x > y, x, y),
        lambda: (x.half() * y.half()).float(), lambda: x.view(-1, 50) + y[:50], lambda: x.double().sin(),
        lambda: x.norm(), lambda: x.clamp(0.9, 1.1).prod(), lambda: x.to(resilin.bfloat16).sum().float(),
    ]  # fmt: skip
    return b"".join(_bits(call().numpy()) for call in calls)


def test_loops_have_the_same_bits_for_any_number_of_threads() -> None:
    before = threads.get_num_threads()
    found = {_some(count) for count in (1, 2, 3)}
    threads.set_num_threads(before)
    assert len(found) == 1
