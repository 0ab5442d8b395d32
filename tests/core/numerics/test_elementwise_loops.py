"""Loops over elements of every dtype and layout: equal to numpy's values, to wider computation, and among layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import gamma, loader
from resilin.core.kernels import gelu as gelu_kernel
from resilin.core.kernels import silu as silu_kernel
from resilin.nn import functional as F

INTEGERS = ["int8", "uint8", "int16", "int32", "int64"]
HALVES = [resilin.float16, resilin.bfloat16]
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
ACTIVATIONS: dict[str, Any] = {
    "relu": F.relu,
    "sigmoid": resilin.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.3, -2.0),
    "softsign": F.softsign,
    "elu": F.elu,
    "mish": F.mish,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "erf": resilin.erf,
}


def _bits(x: Any) -> Any:
    array = np.ascontiguousarray(x._array)
    return array.view(BITS[array.itemsize])


def _layouts(x: Any) -> list[Any]:
    """Views of a matrix: as it is, turned, of every other row or column, one column, and none of it."""
    return [x, x.t(), x[::2], x[:, ::3], x[:, 1], x[:0], x[:, :3]]


def _numbers(dtype: str, low: int, high: int, size: int, seed: int) -> Any:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(max(low, info.min), min(high, info.max), size, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("size", [0, 1, 7, 1025, 40_000])
@pytest.mark.parametrize("most", [60, 2**63 - 1])
def test_integers_of_any_size_are_divided_as_numpy_divides_them(dtype: str, size: int, most: int) -> None:
    a, b = (_numbers(dtype, -most, most, size, seed) for seed in (0, 1))
    b[b == 0] = 3
    if size and a.dtype.kind == "i":
        a[0], b[0] = np.iinfo(dtype).min, -1  # which overflows
    x, y = resilin.tensor(a), resilin.tensor(b)
    with np.errstate(all="ignore"):
        floor, rest, least = np.floor_divide(a, b), np.remainder(a, b), np.fmod(a, b)
        assert np.array_equal((x // y).numpy(), floor)
        assert np.array_equal((x % y).numpy(), rest)
        assert np.array_equal(resilin.fmod(x, y).numpy(), least)
        whole = np.floor_divide(a - least, b)
        assert np.array_equal(resilin.div(x, y, rounding_mode="trunc").numpy(), whole)
        assert np.array_equal((x[::2] // 7).numpy(), a[::2] // np.array(7, dtype))
        assert np.array_equal((x[::3] % y[::3]).numpy(), rest[::3])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_bits_extremes_and_steps_of_integers_are_numpys(dtype: str) -> None:
    a, b = (_numbers(dtype, -(2**63), 2**63 - 1, 1025, seed) for seed in (0, 1))
    by = _numbers(dtype, -3, 70, 1025, 2)
    x, y, s = map(resilin.tensor, (a, b, by))
    for ours, numpys in (
        (resilin.bitwise_left_shift(x, s), np.left_shift(a, by)),
        (resilin.bitwise_right_shift(x, s), np.right_shift(a, by)),
        (x & y, a & b),
        (x | 5, a | np.array(5, dtype)),
        (x ^ y, a ^ b),
        (resilin.maximum(x, y), np.maximum(a, b)),
        (resilin.minimum(x[::2], y[::2]), np.minimum(a, b)[::2]),
        (resilin.heaviside(x, y), np.where(a == 0, b, a > 0)),
        (F.relu(x), np.maximum(a, 0)),
        (x.clamp(-2, 50) if a.dtype.kind == "i" else x.clamp(2, 50), np.clip(a, -2 if a.dtype.kind == "i" else 2, 50)),
        (x[::2].clamp(min=3), np.maximum(a[::2], np.array(3, dtype))),
        (x.clamp(max=3), np.minimum(a, np.array(3, dtype))),
        (x.clamp(9, 2), np.full_like(a, 2)),
    ):
        assert str(ours.dtype).endswith(dtype)
        assert np.array_equal(ours.numpy(), numpys.astype(dtype))


_BY_ZERO: list[Any] = [
    lambda x, y: x // y,
    lambda x, y: x % y,
    resilin.fmod,
    lambda x, y: resilin.div(x, y, rounding_mode="trunc"),
    lambda x, y: x.floor_divide_(y),
    lambda x, y: x.remainder_(y),
    lambda x, y: x.fmod_(y),
]


@pytest.mark.parametrize("divide", _BY_ZERO)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_zero_among_divisors_is_an_error_and_nothing_is_written(divide: Any, dtype: str) -> None:
    x = resilin.arange(40_000).to(getattr(resilin, dtype))
    y = resilin.ones_like(x)
    y[39_999] = 0
    before = x.clone()
    for a, b in ((x, y), (x[1::2], y[1::2]), (x, 0)):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(a, b)
    assert resilin.equal(x, before)


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64", "float16", "bfloat16"])
def test_forms_in_place_are_those_that_are_not(dtype: str) -> None:
    kind = getattr(resilin, dtype)
    x = (resilin.arange(3000) % 90 + 1).to(kind).view(50, 60)
    y = (resilin.arange(3000) % 7 + 1).to(kind).view(50, 60)
    forms: list[tuple[str, tuple[Any, ...]]] = [("add_", (y,)), ("sub_", (y,)), ("mul_", (2,)), ("remainder_", (y,))]
    forms += [
        ("fmod_", (y,)),
        ("floor_divide_", (3,)),
        ("abs_", ()),
        ("square_", ()),
        ("clamp_", (2, 5)),
        ("pow_", (2,)),
    ]
    if kind.is_floating_point:
        forms += [("sigmoid_", ()), ("pow_", (3,)), ("pow_", (0.5,)), ("pow_", (-2,)), ("neg_", ()), ("relu_", ())]
    else:
        forms += [("bitwise_and_", (y,)), ("bitwise_or_", (9,)), ("bitwise_xor_", (y,)), ("bitwise_left_shift_", (1,))]
    for name, args in forms:
        for view in (lambda t: t, lambda t: t.t(), lambda t: t[::2, 1:]):
            given = tuple(view(arg) if arg is y else arg for arg in args)
            written, version = x.clone(), x._version
            part = view(written)
            expected = getattr(view(x), name[:-1])(*given)
            assert getattr(part, name)(*given) is part
            assert np.array_equal(_bits(part), _bits(expected)), name
            assert written._version > version


def test_integers_in_place_refuse_what_would_widen_them() -> None:
    x = resilin.tensor([1, 2, 3])
    for write in (lambda: x.add_(0.5), lambda: x.div_(2), lambda: x.mul_(resilin.tensor([1.5, 2, 3]))):
        with pytest.raises(RuntimeError, match="can't be cast"):
            write()
    assert x.tolist() == [1, 2, 3]


def _with_edges(dtype: Any) -> Any:
    rng = np.random.default_rng(3)
    x = resilin.tensor(rng.standard_normal((45, 60)) * 4).to(dtype)
    x[0, :8] = resilin.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 300.0, -300.0, 0.5]).to(dtype)
    return x


def _slope(f: Any, x: Any, g: Any) -> Any:
    leaf = x.detach().requires_grad_()
    (slope,) = resilin.autograd.grad(f(leaf), leaf, g)
    return slope


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_activations_of_16_bits_are_those_of_float32_rounded_once(name: str, dtype: Any) -> None:
    f, x = ACTIVATIONS[name], _with_edges(dtype)
    g = (resilin.arange(45 * 60).view(45, 60) % 11 - 5).to(dtype)
    for part, given in zip(_layouts(x), _layouts(g), strict=True):
        wide = part.float()
        assert np.array_equal(f(part).float().numpy(), f(wide).to(dtype).float().numpy(), equal_nan=True)
        slope, expected = _slope(f, part, given), _slope(f, wide, given.float()).to(dtype)
        if name == "sigmoid":  # whose rule reads the result, which is rounded
            y = f(part).float()
            expected = (given.float() * (y * (1 - y))).to(dtype)
        assert slope.dtype is dtype
        assert np.array_equal(slope.float().numpy(), expected.float().numpy(), equal_nan=True)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64])
def test_activations_do_not_depend_on_layout_or_threads(name: str, dtype: Any) -> None:
    f, x = ACTIVATIONS[name], _with_edges(dtype)
    g = (resilin.arange(45 * 60).view(45, 60) % 11 - 5).to(dtype)
    for part, given in zip(_layouts(x), _layouts(g), strict=True):
        flat, of = (
            part.clone(memory_format=resilin.contiguous_format),
            given.clone(memory_format=resilin.contiguous_format),
        )
        assert np.array_equal(f(part).numpy(), f(flat).numpy(), equal_nan=True)
        assert np.array_equal(_slope(f, part, given).numpy(), _slope(f, flat, of).numpy(), equal_nan=True)
    large = resilin.cat([x.reshape(-1)] * 20)
    threads = resilin.get_num_threads()
    try:
        resilin.set_num_threads(1)
        alone = f(large)
        resilin.set_num_threads(2)
        assert np.array_equal(f(large).numpy(), alone.numpy(), equal_nan=True)
    finally:
        resilin.set_num_threads(threads)


def test_gradients_of_float64_are_right_to_its_digits() -> None:
    rng = np.random.default_rng(5)
    x, g = rng.standard_normal(4097) * 6, rng.standard_normal(4097)
    for form in ("none", "tanh"):
        expected = gelu_kernel.reference_backward(g, x, form)
        assert np.abs(gelu_kernel.backward(g, x, form) - expected).max() < 1e-14
    assert np.abs(silu_kernel.backward(g, x) - silu_kernel.reference_backward(g, x)).max() < 1e-14
    edges, ones = np.array([1e200, -1e200, 39.5, np.inf, np.nan]), np.ones(5)
    assert np.array_equal(gelu_kernel.backward(ones, edges, "none"), [1, 0, 1, np.nan, np.nan], equal_nan=True)


def test_activations_in_place_write_what_they_give() -> None:
    forms: list[tuple[Any, Any, tuple[Any, ...]]] = [
        (F.leaky_relu, F.leaky_relu_, (0.2,)),
        (F.elu, F.elu_, (1.5,)),
        (F.celu, F.celu_, (0.7,)),
        (F.selu, F.selu_, ()),
        (F.threshold, F.threshold_, (0.3, 2.0)),
        (F.hardtanh, F.hardtanh_, (-0.5, 0.7)),
        (F.silu, lambda x: F.silu(x, inplace=True), ()),
        (F.mish, lambda x: F.mish(x, inplace=True), ()),
        (F.hardswish, lambda x: F.hardswish(x, inplace=True), ()),
        (F.hardsigmoid, lambda x: F.hardsigmoid(x, inplace=True), ()),
    ]
    for dtype in (resilin.float32, resilin.float64, *HALVES):
        x = _with_edges(dtype)
        for f, write, args in forms:
            for view in (lambda t: t, lambda t: t.t(), lambda t: t[::2, 1:]):
                written = x.clone()
                part = view(written)
                assert write(part, *args) is part
                assert np.array_equal(part.float().numpy(), f(view(x), *args).float().numpy(), equal_nan=True)
    with pytest.raises(RuntimeError, match="alpha cannot be 0"):
        F.celu_(resilin.ones(2), 0)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, -2])
def test_powers_of_16_bits_are_rounded_once(dtype: Any, exponent: float) -> None:
    x = (resilin.arange(1, 3000) / 700).to(dtype)
    assert resilin.equal(x**exponent, (x.float() ** exponent).to(dtype))
    assert resilin.equal(x[::3] ** exponent, (x[::3].float() ** exponent).to(dtype))
    g = resilin.ones_like(x)
    assert resilin.equal(
        _slope(lambda t: t**exponent, x, g), _slope(lambda t: t**exponent, x.float(), g.float()).to(dtype)
    )


def test_powers_beside_a_tensor_of_one_number_are_those_of_the_number() -> None:
    x = resilin.tensor([0.5, 2.0, 3.0])
    for exponent in (2.0, -1.0, 0.5, 1.7):
        assert resilin.equal(x ** resilin.tensor(exponent), x**exponent)


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64", "float16", "bfloat16", "bool", "complex64"])
def test_arrays_are_filled_and_turned_whatever_their_dtype(dtype: str) -> None:
    kind = getattr(resilin, dtype)
    x = (resilin.arange(9000) % 2).to(kind).view(90, 100)
    for view in (x, x.t(), x[::2, 3:], x[:0]):
        for dims in ((0,), (1,), (0, 1)):
            assert np.array_equal(view.flip(dims)._array.tolist(), np.flip(view._array, dims).tolist())
    for value in (1, 0):
        part = x[::2]
        assert part.fill_(value) is part
        assert (part == value).all()
        assert (x.clone().fill_(value) == value).all()
    assert not (x.zero_() != 0).any()
    assert x.shape == (90, 100)


def test_the_next_number_is_numpys() -> None:
    edges = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3.4e38, np.inf, -np.inf, np.nan, 1e-310, 2.5]
    for dtype in ("float32", "float64"):
        a, b = (np.array(v).astype(dtype) for v in np.meshgrid(edges, edges))
        with np.errstate(all="ignore"):
            found, expected = resilin.nextafter(resilin.tensor(a), resilin.tensor(b)).numpy(), np.nextafter(a, b)
        same = (found.view(BITS[found.itemsize]) == expected.view(BITS[found.itemsize])) | np.isnan(expected)
        assert same.all()
        assert np.array_equal(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_both_parts_of_complex_numbers_change_their_signs(dtype: str) -> None:
    parts = np.array([0.0, -0.0, 1.5, np.inf, np.nan])
    x = np.empty((5, 5), dtype)
    x.real, x.imag = parts[:, None], parts
    for array in (x, x.T, x[::2, 1:]):
        found, expected = (-resilin.tensor(x)).numpy(), np.negative(x)
        assert np.array_equal(np.signbit(found.real), np.signbit(expected.real))
        assert np.array_equal(np.signbit(found.imag), np.signbit(expected.imag))
        assert np.array_equal((-resilin.from_numpy(array)).numpy(), -array, equal_nan=True)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "uint8"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 1, 1), (5, 7, 3), (33, 64, 65), (9, 0, 4), (0, 3, 2), (300, 70, 64)]
)
def test_products_of_integers_wrap_around(dtype: str, rows: int, depth: int, columns: int) -> None:
    a = _numbers(dtype, -(2**62), 2**62, rows * depth, 1).reshape(rows, depth)
    b = _numbers(dtype, -(2**62), 2**62, depth * columns, 2).reshape(depth, columns)
    with np.errstate(all="ignore"):
        expected = a @ b
    x, y = resilin.tensor(a), resilin.tensor(b)
    assert np.array_equal((x @ y).numpy(), expected)
    assert np.array_equal((y.t() @ x.t()).numpy(), expected.T)
    assert np.array_equal((resilin.cat([x, x], 1)[:, :depth] @ y.clone()).numpy(), expected)


_STEPS: list[Any] = [
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a.exp() * b,
    lambda a, b: a.log() + b,
    lambda a, b: a.sqrt() - b,
    resilin.maximum,
    resilin.minimum,
    lambda a, b: (a - b).abs(),
]


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_16_bits_are_those_of_float32_rounded_after_each_step(step: Any, dtype: Any) -> None:
    a = ((resilin.arange(3000) % 97 + 1) / 31).to(dtype).view(50, 60)
    b = ((resilin.arange(3000) % 89 + 1) / 41).to(dtype).view(50, 60)
    g = (resilin.arange(3000) % 11 - 5).to(dtype).view(50, 60)
    for left, right in ((a, b), (a, b[0]), (a[:, :1], b), (a.t(), b.t()), (a, a)):
        given = g.t() if left.shape == (60, 50) else g
        leaves = [x.detach().requires_grad_() for x in (left, right)]
        wide = [x.detach().float().requires_grad_() for x in (left, right)]
        found = resilin.autograd.grad(step(*leaves), leaves, given)
        expected = resilin.autograd.grad(step(*wide), wide, given.float())
        for mine, other in zip(found, expected, strict=True):
            assert mine.dtype is dtype
            off = (mine.float() - other).abs().max()
            assert off <= 4 * resilin.finfo(dtype).eps * other.abs().max()


@pytest.mark.parametrize("dtype", HALVES)
def test_a_gradient_of_one_step_is_rounded_once(dtype: Any) -> None:
    a = ((resilin.arange(3000) % 97 + 1) / 31).to(dtype)
    b, g = a.flip(0), (resilin.arange(3000) % 11 - 5).to(dtype)
    for f, slope in (
        (lambda x: x * b, lambda x, y: b.float()),
        (lambda x: x / b, lambda x, y: 1 / b.float()),
        (lambda x: x.exp(), lambda x, y: y),
        (lambda x: x.log(), lambda x, y: 1 / x),
    ):
        by = slope(a.float(), f(a).float())
        found = _slope(f, a, g)
        exact = (g.double() * by.double()).to(dtype)
        assert (found != exact).sum() <= 3000 * 0.01  # what 1 / x is off in float32 moves few of them


def test_what_one_element_gives_is_repeated() -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16", "int64", "int8"):
        x = resilin.tensor([3]).to(getattr(resilin, dtype))
        wide, many = x.expand(40_000), x.repeat(40_000)
        for f in (lambda t: -t, resilin.abs, lambda t: t + t, lambda t: t * 2, lambda t: t == t, resilin.square):
            assert resilin.equal(f(wide), f(many))
            assert resilin.equal(f(wide.view(200, 200)[:, 1:]), f(many.view(200, 200)[:, 1:]))
            assert f(wide)[:0].shape == (0,)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int8", "bool"])
def test_what_is_true_of_two_is_numpys(dtype: str) -> None:
    values = np.array([0, 1, 5, 0, 7]).astype(dtype)
    if values.dtype.kind == "f":
        values[2:4] = np.nan, -0.0
    a, b = (v.ravel().repeat(50) for v in np.meshgrid(values, values))
    x, y = resilin.tensor(a), resilin.tensor(b)
    for name in ("logical_and", "logical_or", "logical_xor"):
        expected = getattr(np, name)(a, b)
        assert np.array_equal(getattr(resilin, name)(x, y).numpy(), expected)
        assert np.array_equal(getattr(resilin, name)(x[::3], y[::3]).numpy(), expected[::3])
    signs = resilin.tensor([-3, 0, 4, -(2**63)])
    assert resilin.signbit(signs).tolist() == [True, False, False, True]


def test_trigamma_is_right_to_its_digits_on_both_sides_of_0() -> None:
    x = np.concatenate([np.linspace(-20.03, 40, 5003), [0.0, -0.0, -3.0, np.inf, -np.inf, np.nan, 1e-5, 1e9]])
    with np.errstate(all="ignore"):
        expected = gamma.polygamma(x, 1)
    np.testing.assert_allclose(resilin.polygamma(1, resilin.tensor(x)).numpy(), expected, rtol=2e-15)
    assert resilin.polygamma(1, resilin.tensor([1e200])).dtype is resilin.float32


@pytest.mark.skipif(loader.native is None, reason="numpy's own are further off")
def test_powers_of_two_are_within_a_unit_of_the_last_digit() -> None:
    x = np.concatenate([np.linspace(-150, 128, 40_001), [-200, 200, 127.99999, -149, -126, 0.0]]).astype(np.float32)
    found, exact = resilin.exp2(resilin.tensor(x)).numpy(), np.exp2(x.astype(np.float64))
    inside = (exact > 1.2e-38) & (exact < 3.4028235e38)
    assert (np.abs(found - exact)[inside] <= np.spacing(exact[inside].astype(np.float32))).all()
    assert np.isinf(found[exact > 3.5e38]).all()
    whole = np.arange(-149, 128)
    powers = resilin.exp2(resilin.tensor(whole.astype(np.float32))).numpy()
    assert np.array_equal(powers, np.ldexp(np.float32(1), whole))
    assert resilin.exp2(resilin.tensor([float("nan"), -float("inf")])).isnan().tolist() == [True, False]
