"""Integers are computed as integers, and operands of two dtypes meet in the one that both promote to.

The values are PyTorch 2.13's, but for `isclose`, which compares integers in float32 there, and here by their distance.
"""

import pytest

import resilin
from resilin import bfloat16, float16, float32, float64, int8, int16, int32, int64, uint8

A = [123456789, -123456789, 2**24 + 1, 2**53 + 1, -(2**53 + 1), 2**62 + 1, -(2**62) - 1]
B = [-10, 7, 1, 2, -3, 1, -7]


def _a(dtype=int64):
    return resilin.tensor(A, dtype=dtype)


def _b(dtype=int64):
    return resilin.tensor(B, dtype=dtype)


def _towards_zero(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def test_division_rounds_integers_of_any_size_exactly():
    trunc, floor = {"rounding_mode": "trunc"}, {"rounding_mode": "floor"}
    expected = [_towards_zero(a, b) for a, b in zip(A, B, strict=True)]
    assert resilin.div(_a(), _b(), **trunc).tolist() == expected
    assert _a().div(_b(), **trunc).tolist() == _a().div_(_b(), **trunc).tolist() == expected
    assert resilin.div(_a(), 10, **trunc).tolist() == [_towards_zero(a, 10) for a in A]
    assert resilin.div(1234567891011, _b(), **trunc).tolist() == [_towards_zero(1234567891011, b) for b in B]
    assert resilin.div(_a(), _b(), **floor).tolist() == [a // b for a, b in zip(A, B, strict=True)]
    assert resilin.div(resilin.tensor(123456789), 10, **trunc).item() == 12345678
    smallest = resilin.tensor([-(2**63), 2**63 - 1])
    assert resilin.div(smallest, 3, **trunc).tolist() == [-3074457345618258602, 3074457345618258602]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        resilin.div(_a(), 0, **trunc)


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (uint8, int64, int64),
        (int64, uint8, int64),
        (uint8, int8, int16),
        (int32, int16, int32),
        (int64, float16, float16),
        (bfloat16, int32, bfloat16),
        (float32, int64, float32),
        (int64, float64, float64),
        (float16, bfloat16, float32),
        (resilin.bool, int32, int32),
        (int32, resilin.bool, int32),
    ],
)
def test_rounded_quotients_have_the_dtype_that_both_promote_to(first, second, expected, mode):
    a, b = resilin.tensor([1, 1, 1]).to(first), resilin.tensor([1, 1, 1]).to(second)
    found = resilin.div(a, b, rounding_mode=mode)
    assert found.dtype is expected
    assert found.tolist() == [1, 1, 1]
    if resilin.can_cast(expected, first):
        assert a.div_(b, rounding_mode=mode).dtype is first
    else:
        with pytest.raises(RuntimeError, match="can't be cast"):
            a.div_(b, rounding_mode=mode)


def test_rounded_quotients_have_no_gradient_and_the_same_value_with_one():
    x = resilin.tensor([1.0, 2.5], requires_grad=True)
    for mode, expected in (("floor", [9.0, 24.0]), ("trunc", [10.0, 25.0])):
        y = resilin.div(x, 0.1, rounding_mode=mode)
        assert y.tolist() == resilin.div(x.detach(), 0.1, rounding_mode=mode).tolist() == expected
        assert resilin.autograd.grad(y.sum(), x)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("first", "second", "rtol", "atol", "expected"),
    [
        ([2**53 + 1, 2**62], [2**53, 2**62 + 1], 0, 0, [False, False]),
        ([2**53 + 1, 2**62], [2**53, 2**62 + 1], 0, 1, [True, True]),
        ([2**53 + 2, 2**62], [2**53, 2**62 - 2], 0, 1, [False, False]),
        ([-123456789, 2**63 - 1], [-123456788, -(2**63)], 0, 1, [True, False]),
        ([2**63 - 1, 5], [-(2**63), 7], 0, float("inf"), [True, True]),
        ([100, 100], [101, 120], 0.1, 0, [True, False]),
        ([5, 5], [5, 6], 0, 0.9, [True, False]),
        ([5, 5], [5, 6], float("nan"), 0.9, [True, False]),
    ],
)
def test_integers_are_close_by_their_exact_distance(first, second, rtol, atol, expected):
    a, b = resilin.tensor(first), resilin.tensor(second)
    assert resilin.isclose(a, b, rtol=rtol, atol=atol).tolist() == expected
    assert resilin.allclose(a, b, rtol=rtol, atol=atol) is all(expected)


def test_small_integers_do_not_overflow_when_they_are_compared():
    a, b = resilin.tensor([250, 6], dtype=uint8), resilin.tensor([1, 7], dtype=uint8)
    assert resilin.isclose(a, b, 0, 2).tolist() == [False, True]
    a, b = resilin.tensor([-128], dtype=int8), resilin.tensor([127], dtype=int8)
    assert (resilin.isclose(a, b, 0, 255).item(), resilin.isclose(a, b, 0, 254).item()) == (True, False)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda a, b: a // b, [a // b for a, b in zip(A, B, strict=True)]),
        (lambda a, b: a % b, [a % b for a, b in zip(A, B, strict=True)]),
        (lambda a, b: resilin.fmod(a, b), [a - b * _towards_zero(a, b) for a, b in zip(A, B, strict=True)]),
        (lambda a, b: resilin.clamp(a, 2**53 + 1, 2**62), [min(max(a, 2**53 + 1), 2**62) for a in A]),
        (lambda a, b: resilin.add(a, b, alpha=3), [a + 3 * b for a, b in zip(A, B, strict=True)]),
        (lambda a, b: resilin.add(b, b, alpha=2**53 + 1), [b + (2**53 + 1) * b for b in B]),
        (lambda a, b: a.sort().values, sorted(A)),
        (lambda a, b: a.unique(), sorted(A)),
        (lambda a, b: a.median(), 2**24 + 1),
        (lambda a, b: resilin.isin(a, a + 1), [False] * 7),
        (lambda a, b: resilin.searchsorted(a.sort().values, a), [sorted(A).index(a) for a in A]),
        (lambda a, b: resilin.dot(b, b + 2**53), sum(b * (b + 2**53) for b in B)),
        (lambda a, b: resilin.einsum("i,i->", b, b + 2**53), sum(b * (b + 2**53) for b in B)),
        (lambda a, b: resilin.arange(2**53 + 1, 2**53 + 9, 3), [2**53 + 1, 2**53 + 4, 2**53 + 7]),
        (lambda a, b: a.masked_fill(a > 0, 2**53 + 1), [2**53 + 1 if a > 0 else a for a in A]),
        (lambda a, b: resilin.lcm(a[5:6], b[5:6] + 2), [4611686018427387901]),
        (
            lambda a, b: resilin.linalg.matrix_power(b[:4].reshape(2, 2) * 1234567, 2).flatten(),
            [163084657491323, -85352717939384, -12193245419912, 16765712452379],
        ),
        (lambda a, b: resilin.matrix_power(b[:4].reshape(2, 2), 0).flatten(), [1, 0, 0, 1]),
        (lambda a, b: resilin.index_add(b, 0, resilin.tensor([0]), b[1:2], alpha=2.5), [4, *B[1:]]),
    ],
)
def test_large_integers_take_no_way_by_floats(call, expected):
    found = call(_a(), _b())
    assert found.dtype is (resilin.bool if expected == [False] * 7 else int64)
    assert found.tolist() == expected


def test_integers_refuse_what_only_floats_have():
    with pytest.raises(NotImplementedError, match="decimals"):
        resilin.round(_a(), decimals=1)
    with pytest.raises(RuntimeError, match="matrix_power"):
        resilin.linalg.matrix_power(_b()[:4].reshape(2, 2), -1)


@pytest.mark.parametrize(
    ("call", "dtypes", "expected"),
    [
        (resilin.ldexp, (float16, int64), float16),
        (resilin.ldexp, (bfloat16, uint8), bfloat16),
        (resilin.ldexp, (int32, int64), float32),
        (resilin.ldexp, (uint8, float16), float16),
        (resilin.ldexp, (float64, float32), float64),
        (resilin.ldexp, (float16, bfloat16), float32),
        (resilin.special.xlog1py, (int64, float64), float64),
        (resilin.special.xlog1py, (float16, int64), float16),
        (resilin.special.xlog1py, (int32, bfloat16), bfloat16),
        (resilin.special.xlog1py, (int8, int16), float32),
        (resilin.special.xlog1py, (float16, float32), float32),
        (lambda a, b: resilin.special.xlog1py(2, b), (int8, float16), float16),
        (lambda a, b: resilin.special.xlog1py(a, 2.5), (int8, float16), float32),
        (lambda a, b: resilin.special.xlog1py(2.5, b), (int8, float64), float64),
        (lambda a, b: resilin.add(a, b, alpha=0.5), (float16, int64), float16),
        (lambda a, b: resilin.add(a, b, alpha=0.5), (int64, bfloat16), bfloat16),
        (lambda a, b: resilin.sub(a, b, alpha=2), (uint8, int32), int32),
        (lambda a, b: resilin.add(a, b, alpha=2), (int8, float32), float32),
        (lambda a, b: resilin.rsub(a, b, alpha=0.5), (int64, float64), float64),
        (lambda a, b: resilin.add(a, 1.5, alpha=2), (float16, int8), float16),
        (lambda a, b: resilin.add(a, 1.5, alpha=0.5), (int8, int8), float32),
        (lambda a, b: resilin.add(a, 3, alpha=2), (uint8, int8), uint8),
        (lambda a, b: a.index_fill(0, resilin.tensor([0]), b[0]), (bfloat16, float32), bfloat16),
        (lambda a, b: resilin.logaddexp2(a, b), (uint8, float16), float16),
    ],
)
def test_results_have_the_dtype_that_the_operands_promote_to(call, dtypes, expected):
    a, b = (resilin.tensor([1, 2, 5]).to(dtype) for dtype in dtypes)
    assert call(a, b).dtype is expected


def test_a_factor_meets_the_operands_in_their_common_dtype():
    small, floats = resilin.tensor([0, 1, 10, 128, 255], dtype=uint8), resilin.zeros(5)
    assert resilin.add(floats, small, alpha=300).tolist() == [0.0, 300.0, 3000.0, 38400.0, 76500.0]
    assert resilin.sub(floats, small, alpha=0.5).tolist() == [0.0, -0.5, -5.0, -64.0, -127.5]
    assert resilin.add(small.to(int32), small, alpha=300).tolist() == [0, 301, 3010, 38528, 76755]
    assert floats.add_(small, alpha=-1).tolist() == [0.0, -1.0, -10.0, -128.0, -255.0]
    large = resilin.ldexp(resilin.tensor([1.5, -3.0], dtype=float16), resilin.tensor([3, 20]))
    assert large.tolist() == [12.0, -float("inf")]
    assert resilin.logaddexp2(resilin.tensor([1.0]).bfloat16(), resilin.tensor([3]).bfloat16()).tolist() == [3.328125]


@pytest.mark.parametrize("operands", [(uint8, int32, 0.5), (int64, int8, 1.0)])
def test_integers_take_no_fraction_as_factor(operands):
    first, second, alpha = operands
    with pytest.raises(RuntimeError, match="For integral input tensors"):
        resilin.add(resilin.ones(2, dtype=first), resilin.ones(2, dtype=second), alpha=alpha)
    with pytest.raises(RuntimeError, match="Boolean alpha"):
        resilin.sub(resilin.ones(2, dtype=first), resilin.ones(2, dtype=second), alpha=True)


def test_tolerances_of_isclose_may_be_any_number():
    x = resilin.tensor([1, 2])
    assert resilin.isclose(x, x + 1, rtol=2**70).tolist() == [True, True]
    assert resilin.isclose(x.double(), x.double() + 1, atol=2**70).tolist() == [True, True]


def test_slopes_of_integers_are_differences_of_integers():
    (slope,) = resilin.gradient(resilin.tensor([2**24, 2**24 + 1, 2**24 + 4]))
    assert slope.tolist() == [1.0, 2.0, 3.0]


def test_powers_of_two_scale_exactly():
    ones = resilin.ones(3, dtype=resilin.float64)
    assert resilin.ldexp(ones, resilin.tensor([1, 2, 3])).tolist() == [2.0, 4.0, 8.0]
    assert resilin.ldexp(ones[:1] * 3, resilin.tensor([-7])).tolist() == [3 / 128]
    assert resilin.ldexp(ones[:1] * 5e-324, resilin.tensor([2097])).tolist() == [2.0**1023]


def test_no_integers_may_be_divided_by_zero():
    empty = resilin.ones(0, dtype=resilin.int32)
    for quotient in (empty // 0, empty % 0, resilin.fmod(empty, 0), resilin.div(empty, 0, rounding_mode="trunc")):
        assert quotient.tolist() == []
