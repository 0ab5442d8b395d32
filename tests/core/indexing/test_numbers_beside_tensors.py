"""Python numbers beside tensors of every dtype: which dtype comes of it, which value, and what is refused.

The values are PyTorch 2.13's. Where halves meet a summand or a factor `alpha`, or divide a number, they are the exact
ones, rounded once: PyTorch's CPU rounds these numbers, but no factor and no divisor, to the half type first.
"""

import itertools

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin import bfloat16, float16, float32, float64, int8, int16, int32, int64, uint8

BYTES = [0, 1, 10, 128, 255]
HALVES = [float16, bfloat16]


def _bytes():
    return resilin.tensor(BYTES, dtype=uint8)


@pytest.mark.parametrize(
    ("values", "dtype", "number", "expected"),
    [
        ([16384, -16384], int16, 32768, [0.5, -0.5]),
        ([128, 0, 255], uint8, 256, [0.5, 0.0, 0.99609375]),
        ([10, 128], uint8, -1, [-10.0, -128.0]),
        ([-128, 64], int8, 256, [-0.5, 0.25]),
        ([-(2**31), 2**30], int32, 2**31, [-1.0, 0.5]),
        ([2**40, -(2**62)], int64, 2**63, [2.0**-23, -0.5]),
        ([2**40], int64, 2**64, [2.0**-24]),
        ([1], uint8, -(2**70), [-(2.0**-70)]),
        ([True, False], resilin.bool, 300, [1 / 300, 0.0]),
    ],
)
def test_a_number_that_integers_are_divided_by_is_used_as_it_is(values, dtype, number, expected):
    x = resilin.tensor(values, dtype=dtype)
    quotients = [
        x / number,
        resilin.div(x, number),
        x.div(number),
        x.true_divide(number),
        resilin.true_divide(x, number),
    ]
    if -(2**63) <= number < 2**63:
        quotients += [x / np.int64(number), resilin.divide(input=x, other=number)]
    for found in quotients:
        assert found.dtype is float32
        assert found.tolist() == np.float32(expected).tolist()
    for found in (number / x[:1], x[:1].__rtruediv__(number)):
        assert found.tolist() == [float(np.float32(number) / np.float32(values[0]))]
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.div_(number)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: resilin.atan2(x, 256), [0.0, 0.0039062302093952894, 0.039042651653289795]),
        (lambda x: resilin.hypot(x, -300), [300.0, 300.0016784667969, 300.1666259765625]),
        (lambda x: resilin.xlogy(x, 300), [0.0, 5.7037824746562, 57.037824746562]),
        (lambda x: resilin.xlogy(300, x + 1), [0.0, 207.94415283203125, 719.3685913085938]),
        (lambda x: resilin.special.xlog1py(x, 299), [0.0, 5.7037824746562, 57.037824746562]),
        (lambda x: resilin.copysign(x, -300), [-0.0, -1.0, -10.0]),
        (lambda x: resilin.special.zeta(x + 2, 300), [0.0033388950396329165, 5.57410476176301e-06, 5.2e-29]),
    ],
)
def test_functions_that_give_floats_use_the_number_as_it_is(call, expected):
    found = call(_bytes()[:3])
    assert found.dtype is float32
    assert found.tolist()[:2] == pytest.approx(expected[:2], rel=1e-6)
    assert np.signbit(found.numpy()).tolist() == np.signbit(expected).tolist()


WRAPPED = {  # of bytes: (operation, number) -> PyTorch's values
    ("__add__", 300): [44, 45, 54, 172, 43],
    ("__add__", -1): [255, 0, 9, 127, 254],
    ("__add__", 2**63): [0, 1, 10, 128, 255],
    ("__sub__", 300): [212, 213, 222, 84, 211],
    ("__rsub__", 300): [44, 43, 34, 172, 45],
    ("__mul__", 300): [0, 44, 184, 0, 212],
    ("__mul__", -(2**63)): [0, 0, 0, 0, 0],
    ("__floordiv__", 300): [0, 0, 0, 2, 5],
    ("__floordiv__", -129): [0, 0, 0, 1, 2],
    ("__mod__", 300): [0, 1, 10, 40, 35],
    ("__and__", 300): [0, 0, 8, 0, 44],
    ("__and__", -1): [0, 1, 10, 128, 255],
    ("__rand__", -129): [0, 1, 10, 0, 127],
    ("__or__", 300): [44, 45, 46, 172, 255],
    ("__ror__", -1): [255, 255, 255, 255, 255],
    ("__xor__", 300): [44, 45, 38, 172, 211],
    ("__xor__", 2**40 + 1): [1, 0, 11, 129, 254],
    ("__rxor__", -1): [255, 254, 245, 127, 0],
    ("__lshift__", 257): [0, 2, 20, 0, 254],
    ("__lshift__", -1): [0, 0, 0, 0, 0],
    ("__rlshift__", 300): [44, 88, 0, 0, 0],
    ("__rshift__", 257): [0, 0, 5, 64, 127],
    ("__rrshift__", 300): [44, 22, 0, 0, 0],
    ("__rpow__", 300): [1, 44, 0, 0, 0],
    ("__pow__", 3): [0, 1, 232, 0, 255],
    ("__lt__", 300): [True, True, True, False, False],
    ("__eq__", 266): [False, False, True, False, False],
    ("__ne__", -1): [True, True, True, True, False],
    ("__ge__", -128): [False, False, False, True, True],
}
FUNCTIONS = {
    "__add__": ("add", "add_"),
    "__sub__": ("sub", "sub_"),
    "__mul__": ("mul", "mul_"),
    "__floordiv__": ("floor_divide", "floor_divide_"),
    "__mod__": ("remainder", "remainder_"),
    "__and__": ("bitwise_and", "bitwise_and_"),
    "__or__": ("bitwise_or", "bitwise_or_"),
    "__xor__": ("bitwise_xor", "bitwise_xor_"),
    "__lshift__": ("bitwise_left_shift", "bitwise_left_shift_"),
    "__rshift__": ("bitwise_right_shift", "bitwise_right_shift_"),
    "__pow__": ("pow", "pow_"),
    "__lt__": ("lt", None),
    "__eq__": ("eq", None),
    "__ne__": ("ne", None),
    "__ge__": ("ge", None),
}


@pytest.mark.parametrize(("operation", "number"), WRAPPED, ids=str)
def test_a_number_beside_integers_that_stay_integers_wraps_around(operation, number):
    expected = WRAPPED[operation, number]
    spellings = [lambda x: getattr(x, operation)(number)]
    if -(2**63) <= number < 2**63:
        spellings.append(lambda x: getattr(x, operation)(np.int64(number)))
    function, in_place = FUNCTIONS.get(operation, (None, None))
    if function:
        spellings += [lambda x: getattr(resilin, function)(x, number), lambda x: getattr(x, function)(number)]
    if in_place:
        spellings += [lambda x: getattr(x, in_place)(number)]
    for spelled in spellings:
        found = spelled(_bytes())
        assert found.dtype is (resilin.bool if isinstance(expected[0], bool) else uint8)
        assert found.tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "values", "number", "total"),
    [
        (int8, [-128, -5, 7], 300, [-84, 39, 51]),
        (int16, [-32768, -5, 7], 65537, [-32767, -4, 8]),
        (int32, [-(2**31), -5, 7], 2**31, [0, 2147483643, -2147483641]),
        (int64, [-(2**63), -5, 7], 2**63, [0, 9223372036854775803, -9223372036854775801]),
    ],
)
def test_numbers_wrap_around_to_every_integer_dtype(dtype, values, number, total):
    x = resilin.tensor(values, dtype=dtype)
    assert (x + number).dtype is dtype
    assert (x + number).tolist() == (number + x).tolist() == x.add_(number).tolist() == total


@pytest.mark.parametrize("call", [lambda x, n: x + n, lambda x, n: n * x, lambda x, n: x & n, lambda x, n: x < n])
def test_no_number_beyond_64_bits_meets_integers(call):
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(RuntimeError, match="does not fit into 64 bits"):
            call(_bytes(), number)
    with pytest.raises(RuntimeError, match="int64"):
        call(resilin.tensor([True]), 2**63)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, n: x**n,
        lambda x, n: x.pow(n),
        lambda x, n: x.pow_(n),
        lambda x, n: x.clamp(n),
        lambda x, n: x.clip(max=n),
        lambda x, n: x.clamp_(0, n),
        lambda x, n: x.fill_(n),
        lambda x, n: x.masked_fill(x > 3, n),
        lambda x, n: x.index_fill(0, resilin.tensor([0]), n),
        lambda x, n: x.scatter(0, resilin.tensor([0]), n),
        lambda x, n: x.index_add(0, resilin.tensor([0]), x[:1], alpha=n),
        lambda x, n: x.new_full((2,), n),
        lambda x, n: resilin.full((2,), n, dtype=uint8),
        lambda x, n: resilin.full_like(x, n),
        lambda x, n: resilin.where(x > 3, x, n),
        lambda x, n: resilin.add(x, x, alpha=n),
        lambda x, n: x.sub_(x, alpha=n),
        lambda x, n: resilin.rsub(x, 3, alpha=n),
        lambda x, n: F.threshold(x, 2, n),
        lambda x, n: F.pad(x, (1, 1), value=n),
        lambda x, n: resilin.addmm(x[:1, None], x[None], x[:, None], beta=n),
        lambda x, n: resilin.addmv(x[:1], x[None], x, alpha=n),
    ],
)
def test_numbers_that_do_not_fit_are_refused_where_pytorch_refuses_them(call):
    for number in (300, 2**40, np.int64(300)):
        with pytest.raises(RuntimeError, match="uint8 without overflow"):
            call(_bytes(), number)


def test_integers_take_no_negative_exponent():
    for dtype in (uint8, int8, int64):
        for exponent in (-1, -300):
            with pytest.raises(RuntimeError, match="Integers to negative integer powers are not allowed"):
                resilin.tensor([1, 2], dtype=dtype) ** exponent
    assert (2.0 ** resilin.tensor([1, 2], dtype=uint8)).dtype is float32
    with pytest.raises(NotImplementedError, match="power"):
        resilin.tensor([True]) ** resilin.tensor([True])


def test_limits_of_unsigned_integers_wrap_around_below_zero():
    assert _bytes().clamp(-1).tolist() == [255] * 5
    assert _bytes().clamp(0, -129).tolist() == [0, 1, 10, 127, 127]
    assert _bytes().clamp(np.int64(3), 100).dtype is uint8


@pytest.mark.parametrize(
    ("number", "inside", "found"),
    [(256, [True, False, False, False, False], True), (-1, [False] * 4 + [True], True), (3, [False] * 5, False)],
)
def test_isin_looks_for_a_number_as_the_elements_hold_it(number, inside, found):
    assert resilin.isin(_bytes(), number).tolist() == inside
    assert resilin.isin(number, _bytes()).item() is found
    assert resilin.isin(resilin.tensor([2048.0], dtype=float16), 2049).tolist() == [True]


def test_floats_beside_integers_make_floats():
    for found in (_bytes() + 300.5, np.float32(300.5) + _bytes(), _bytes().add(np.float64(300.5))):
        assert found.dtype is float32
        assert found.tolist() == [300.5, 301.5, 310.5, 428.5, 555.5]
    assert (_bytes() * 1e30).tolist() == [float(np.float32(v) * np.float32(1e30)) for v in BYTES]
    assert (_bytes() + 1j).dtype is resilin.complex64


# -- half types


NUMBERS = [0.1, 1 / 3, 1e-5, 3e4, 1e5, 70000.0, -0.3, 3, 2049, 65537, 0.5]
SPELLINGS = {
    "add": lambda x, n: (x + n, n + x, resilin.add(x, n), x.add(n), x.clone().add_(n)),
    "subtract": lambda x, n: (x - n, resilin.sub(x, n), x.clone().sub_(n), x.subtract(n)),
    "reversed": lambda x, n: (n - x, resilin.rsub(x, n)),
    "multiply": lambda x, n: (x * n, n * x, resilin.mul(x, n), x.mul(n), x.clone().mul_(n), x.multiply(np.float64(n))),
    "divide": lambda x, n: (x / n, resilin.div(x, n), x.true_divide(n), x.clone().div_(n)),
    "inverse": lambda x, n: (n / x, x.__rtruediv__(n)),
    "floor": lambda x, n: (x // n, resilin.div(x, n, rounding_mode="floor"), x.clone().floor_divide_(n)),
    "trunc": lambda x, n: (resilin.div(x, n, rounding_mode="trunc"), x.clone().div_(n, rounding_mode="trunc")),
    "scaled": lambda x, n: (resilin.add(x, x, alpha=n), x.clone().add_(x, alpha=n)),
    "less": lambda x, n: (resilin.sub(x, x, alpha=n), resilin.rsub(x, x, alpha=n), x.clone().sub_(x, alpha=n)),
}
IN_FLOAT32 = {
    "add": lambda x, n: x + n,
    "subtract": lambda x, n: x - n,
    "reversed": lambda x, n: n - x,
    "multiply": lambda x, n: x * n,
    "divide": lambda x, n: x / n,
    "inverse": lambda x, n: n / x,
    "floor": lambda x, n: np.floor_divide(x, n),
    "trunc": lambda x, n: np.trunc(x / n),
    "scaled": lambda x, n: x + n * x,
    "less": lambda x, n: x - n * x,
}


def _halves(dtype):
    scale = np.exp2(np.linspace(-20, 15, 257))
    return resilin.tensor((np.random.RandomState(0).randn(257) * scale).astype(np.float32)).to(dtype)


@pytest.mark.parametrize("operation", SPELLINGS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_meet_a_number_in_float32_and_are_rounded_once(operation, dtype):
    few, many = _halves(dtype), _halves(dtype).repeat(8)  # native code takes few by another way
    for x, number in itertools.product((few, many, few[40]), NUMBERS):
        with np.errstate(all="ignore"):
            exact = IN_FLOAT32[operation](x.float().numpy(), np.float32(number))
        expected = resilin.tensor(exact).to(dtype).float().numpy()
        for found in SPELLINGS[operation](x, number):
            assert found.dtype is dtype
            assert np.array_equal(found.float().numpy(), expected, equal_nan=True), number


def test_products_and_quotients_of_halves_are_pytorchs():
    x = resilin.tensor([1.0, 3.0, 2049.0, 65504.0, 1e-4], dtype=float16)
    assert (x * 0.1).tolist() == [0.0999755859375, 0.300048828125, 204.75, 6552.0, 1.0013580322265625e-05]
    assert (x / 70000.0).tolist() == [
        1.430511474609375e-05,
        4.285573959350586e-05,
        0.0292510986328125,
        0.935546875,
        0.0,
    ]
    assert (x // 0.1).tolist() == [9.0, 29.0, 20480.0, float("inf"), 0.0]
    ramp = resilin.arange(1, 257).bfloat16()
    assert (ramp * 0.1).float().sum().item() == 3289.62646484375
    assert (ramp / 10).float().sum().item() == 3289.62646484375


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients_of_halves_meet_the_number_in_float32(dtype):
    g = _halves(dtype)
    for number in (0.1, 1 / 3, 70000.0, 3):
        for operation, exact in (
            (lambda x, n: x * n, g.float() * number),
            (lambda x, n: n * x, g.float() * number),
            (lambda x, n: x / n, g.float() / number),
            (lambda x, n: resilin.add(x.detach(), x, alpha=n), g.float() * number),
        ):
            x = resilin.ones(257, dtype=dtype, requires_grad=True)
            operation(x, number).backward(g)
            assert x.grad.dtype is dtype
            assert x.grad.float().tolist() == exact.to(dtype).float().tolist()
            (twice,) = resilin.autograd.grad(operation(x, number), x, g, create_graph=True)
            assert twice.dtype is dtype
            assert twice.float().tolist() == exact.to(dtype).float().tolist()


def test_halves_in_vmap_are_those_of_their_samples():
    x = _halves(bfloat16).reshape(257, 1)
    found = resilin.vmap(lambda row: row * 0.1)(x)
    assert found.float().tolist() == (x * 0.1).float().tolist()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_compared_with_the_number_as_they_hold_it(dtype):
    x = resilin.tensor([0.1, 1 / 3], dtype=dtype)
    assert (x == 0.1).tolist() == [True, False]
    assert (x >= 1 / 3).tolist() == [False, True]
    assert (x < 2**70).tolist() == [True, True]


def test_what_is_too_large_for_halves_is_infinite_or_refused():
    x = resilin.tensor([1.0, float("nan"), float("inf")], dtype=float16)
    large = float("inf")
    assert resilin.where(x > 0, 1e5, x).tolist()[0] == large
    assert resilin.nan_to_num(x, 1e5, 2e5).tolist() == [1.0, large, large]
    assert resilin.special.xlog1py(x[:1], 1e5).tolist() == [large]
    assert resilin.xlogy(1e5, x[:1] + 1).tolist() == [large]
    for refused in (x.clamp, x.masked_fill, x.fill_):
        with pytest.raises(RuntimeError, match="float16 without overflow"):
            refused(*((x > 0,) if refused == x.masked_fill else ()), 1e5)


def test_single_and_double_precision_take_the_number_in_their_own():
    assert (resilin.tensor([1.0]) * 0.1).tolist() == [float(np.float32(0.1))]
    assert (resilin.tensor([1.0], dtype=float64) * 0.1).tolist() == [0.1]


@pytest.mark.parametrize("dtype", [*HALVES, resilin.float32], ids=str)
@pytest.mark.parametrize("number", [np.float64(0.5), np.int64(2), np.float32(0.5)], ids=repr)
def test_numpys_numbers_as_parameters_widen_no_dtype(dtype, number):
    functional = resilin.nn.functional
    x, plain = resilin.tensor([0.1, -2.5], dtype=dtype), number.item()
    for function in (
        lambda n: x.clamp(n),
        lambda n: x.clip(-n, n),
        lambda n: functional.elu(x, n),
        lambda n: functional.celu(x, n),
        lambda n: functional.leaky_relu(x, n),
        lambda n: functional.hardtanh(x, -n, n),
        lambda n: functional.softplus(x, n),
        lambda n: functional.softshrink(x, n),
        lambda n: functional.normalize(x, dim=0, eps=n),
        lambda n: functional.smooth_l1_loss(x, -x, beta=n),
        lambda n: functional.huber_loss(x, -x, delta=n),
        lambda n: resilin.addcmul(x, x, x, value=n),
        lambda n: resilin.lerp(x, -x, n),
    ):
        assert function(number).dtype == dtype
        assert function(number).tolist() == function(plain).tolist()


def test_numbers_written_into_halves_become_infinite_where_they_are_too_large():
    x = resilin.zeros(2, 3, dtype=float16)  # as in PyTorch, which refuses them in fill_ and masked_fill alone
    x[0] = 65536
    x[x == 0] = -1e300
    x[0, 0] = 65519  # rounds to the largest
    assert x.tolist() == [[65504.0, float("inf"), float("inf")], [-float("inf")] * 3]
    with pytest.raises(RuntimeError, match="float32 without overflow"):
        resilin.zeros(2)[0] = 1e39


def test_ranges_of_numpys_integers_are_integers():
    assert resilin.arange(np.int64(3)).dtype == int64
    assert resilin.arange(np.int64(2**40), np.int64(2**40 + 2)).tolist() == [2**40, 2**40 + 1]
    assert resilin.arange(np.float32(0.5), 2).dtype == float32


def test_a_factor_is_applied_before_the_product_which_may_leave_the_range():
    zero, large, small = (resilin.tensor([number]) for number in (0.0, 1e30, 1e-30))
    expected = pytest.approx([1e30], rel=1e-6)
    assert resilin.addcmul(zero, large, large, value=1e-30).tolist() == expected
    assert resilin.addcdiv(zero, large, small, value=1e-30).tolist() == expected
    assert resilin.addr(zero.reshape(1, 1), large, large, alpha=1e-30).reshape(1).tolist() == expected
