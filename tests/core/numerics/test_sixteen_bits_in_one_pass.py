"""16-bit floats straight through native code give what the way by float32, or step by step, gives."""

from __future__ import annotations

import numpy as np
import pytest

import resilin
from resilin.nn import functional as F

HALVES = [resilin.float16, resilin.bfloat16]
FLOATS = [resilin.float32, resilin.float64, *HALVES]


def every(dtype: resilin.dtype) -> resilin.Tensor:
    """All numbers of a 16-bit dtype, NaNs among them."""
    return resilin.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16)).view(dtype)


def same(x: resilin.Tensor, y: resilin.Tensor) -> bool:
    """Whether dtypes and bits are equal, those of NaNs aside."""
    a, b = x.detach().double().numpy(), y.detach().double().numpy()
    number = ~np.isnan(a)
    return (
        x.dtype == y.dtype
        and np.array_equal(a, b, equal_nan=True)
        and bool((np.signbit(a) == np.signbit(b))[number].all())
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["log", "log2", "log10", "log1p", "atanh"])
def test_logarithms_of_all_numbers_are_those_of_float32_rounded(name: str, dtype: resilin.dtype) -> None:
    x = every(dtype)
    assert same(getattr(x, name)(), getattr(x.float(), name)().to(dtype))
    assert same(getattr(x[::3], name)(), getattr(x.float(), name)().to(dtype)[::3])


@pytest.mark.parametrize("dtype", HALVES)
def test_equality_knows_zeros_and_nans(dtype: resilin.dtype) -> None:
    x = every(dtype)
    known = x[~x.isnan()]
    assert resilin.equal(known, known.clone())
    assert not resilin.equal(x, x)
    assert resilin.equal(resilin.tensor([0.0, -0.0, 1.0], dtype=dtype), resilin.tensor([-0.0, 0.0, 1.0], dtype=dtype))
    assert not resilin.equal(resilin.tensor([0.0, 1.0], dtype=dtype), resilin.tensor([0.0, -1.0], dtype=dtype))
    for place in (0, 31, 4096, len(known) - 1):
        other = known.clone()
        other[place] = -other[place] if other[place] != 0 else 1.0
        assert not resilin.equal(known, other)
    assert resilin.equal(known[::2], known.clone()[::2])
    assert resilin.equal(resilin.empty(0, dtype=dtype), resilin.empty(0, dtype=dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_counts_of_what_is_not_zero(dtype: resilin.dtype) -> None:
    x = every(dtype)
    assert x.count_nonzero() == (1 << 16) - 2
    rows = resilin.randn(40, 33).relu().to(dtype)
    assert resilin.equal(rows.count_nonzero(1), rows.float().count_nonzero(1))
    assert resilin.equal((rows * (rows > 2)).any(1), (rows > 2).any(1))
    assert resilin.equal(rows.count_nonzero(0), rows.float().count_nonzero(0))
    assert not resilin.tensor([-0.0, 0.0], dtype=dtype).any()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 31, 2047, 2049, 70_001])
def test_products_are_those_of_float32_rounded(n: int, dtype: resilin.dtype) -> None:
    x = (1 + resilin.randn(3, n) / 300).to(dtype)
    assert same(x.prod(), x.float().prod().to(dtype))
    assert same(x.prod(1), x.float().prod(1).to(dtype))
    assert same(x.prod(0), x.float().prod(0).to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 7, 1000, 5003])
def test_distances_are_those_of_float32_rounded(n: int, dtype: resilin.dtype) -> None:
    x, y = resilin.randn(n).to(dtype), resilin.randn(n).to(dtype)
    assert same(x.dist(y), x.float().dist(y.float()).to(dtype))
    assert same(x.dist(y, 1), x.float().dist(y.float(), 1).to(dtype))
    leaf = x.clone().requires_grad_()
    assert same(leaf.dist(y), x.dist(y))
    assert same(x[::2].dist(y[::2]), x.float()[::2].dist(y.float()[::2]).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "last"), [((50, 64), 1), ((3, 5, 7), 2), ((2, 5000), 1), ((4, 1), 1), ((6,), 1)])
def test_rms_norm_in_one_pass_is_that_of_its_steps(shape: tuple[int, ...], last: int, dtype: resilin.dtype) -> None:
    x = (3 * resilin.randn(shape)).to(dtype)
    normalized = shape[-last:]
    for weight in (None, resilin.randn(normalized).to(dtype), resilin.randn(normalized)):
        for eps in (None, 1e-3, 1):
            steps = F.rms_norm(x.clone().requires_grad_(), normalized, weight, eps)
            assert same(F.rms_norm(x, normalized, weight, eps), steps)
    assert same(F.rms_norm(x.flip(0), normalized), F.rms_norm(x.flip(0).contiguous(), normalized))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("columns", [1, 16, 31, 33, 64, 100])
def test_batch_norm_of_columns_is_that_of_float32_rounded(columns: int, dtype: resilin.dtype) -> None:
    x = resilin.randn(37, columns).to(dtype)
    weight, bias = resilin.randn(columns), resilin.randn(columns)
    found = F.batch_norm(x, None, None, weight, bias, training=True)
    assert same(found, F.batch_norm(x.float(), None, None, weight, bias, training=True).to(dtype))


def test_float64_becomes_float16_with_one_rounding() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (halves[:-1] + halves[1:]) / 2
    near = [
        middles,
        np.nextafter(middles, 0),
        np.nextafter(middles, 1e9),
        middles * (1 + 2**-30),
        middles * (1 - 2**-30),
    ]
    ends = np.array([65519.99999999999, 65520, 1e300, 1.8e308, 5e-324, 2**-25, np.nextafter(2**-25, 1), np.inf, np.nan])
    x = np.concatenate([*near, halves, ends])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    found = resilin.from_numpy(x).half().numpy()
    assert np.array_equal(found.view(np.uint16)[~np.isnan(x)], expected.view(np.uint16)[~np.isnan(x)])
    assert np.isnan(found[np.isnan(x)]).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["fmax", "fmin", "prelu"])
def test_choices_between_two_are_those_of_float32_rounded(name: str, dtype: resilin.dtype) -> None:
    x = every(dtype)
    function = getattr(F, name) if name == "prelu" else getattr(resilin, name)
    others = [resilin.tensor([value], dtype=dtype) for value in (0.3, -2.0, 0.0, float("inf"), float("nan"))]
    if name != "prelu":
        others += [x.roll(1), x.flip(0)]
    for other in others:
        assert same(function(x, other), function(x.float(), other.float()).to(dtype))
        assert same(function(x[::3], other[::3]), function(x.float()[::3], other.float()[::3]).to(dtype))
