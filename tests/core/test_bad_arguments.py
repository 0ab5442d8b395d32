"""Arguments that PyTorch refuses are refused with its types of error, and the message says what was wrong."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin import nn

A = resilin.zeros(3, 4)
IMAGE, FILTER = resilin.zeros(1, 3, 8, 8), resilin.zeros(4, 3, 3, 3)
ONE = resilin.tensor([1])
QUERY = resilin.zeros(1, 2, 3, 4)


def _ones(*shape: int) -> Any:
    return resilin.ones(shape)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.layer_norm(A, [4], _ones(2)), RuntimeError, "Expected weight to be of same shape"),
        (lambda: F.layer_norm(A, [4], None, _ones(8)), RuntimeError, "Expected bias to be of same shape"),
        (lambda: F.layer_norm(resilin.zeros(2, 3, 4), [3, 4], _ones(4)), RuntimeError, "same shape"),
        (lambda: F.batch_norm(A, _ones(1), _ones(4)), RuntimeError, "running_mean should contain 4"),
        (lambda: F.batch_norm(A, None, None, _ones(1), training=True), RuntimeError, "weight should contain 4"),
        (lambda: nn.BatchNorm2d(3)(resilin.zeros(2, 4, 1, 1)), RuntimeError, "running_mean should contain 4"),
        (lambda: F.linear(A, _ones(2, 4), _ones(3)), RuntimeError, "bias of shape"),
        (lambda: nn.Linear(2, 3)(1), TypeError, "must be a Tensor, not int|must be a Tensor, got int"),
        (lambda: F.conv2d(IMAGE, FILTER, _ones(1)), RuntimeError, "bias to be 1-dimensional with 4"),
        (lambda: F.conv2d(IMAGE, FILTER, dilation=0), RuntimeError, "dilation should be greater than zero"),
        (lambda: F.conv2d(IMAGE, FILTER, stride=0), RuntimeError, "stride should be greater"),
        (lambda: F.conv2d(IMAGE, FILTER, padding=-1), RuntimeError, "negative padding"),
        (lambda: F.conv2d(IMAGE, FILTER, groups=0), RuntimeError, "groups"),
        (lambda: F.conv2d(_ones(1, 4, 5, 5), _ones(3, 2, 3, 3), groups=2), RuntimeError, "divisible by groups=2"),
        (lambda: F.conv2d(_ones(1, 0, 5, 5), _ones(4, 0, 3, 3)), RuntimeError, "at least one input and output"),
        (lambda: F.conv2d(_ones(1, 4, 5, 5), _ones(0, 4, 3, 3)), RuntimeError, "at least one input and output"),
        (lambda: F.conv_transpose2d(_ones(1, 0, 5, 5), _ones(0, 4, 3, 3)), RuntimeError, "at least one input and"),
        (lambda: resilin.searchsorted(_ones(), A), RuntimeError, "positive dimension, but got 0 dimension"),
        (lambda: F.max_pool2d(IMAGE, 0), RuntimeError, "max_pool2d: kernel size"),
        (lambda: F.max_pool2d(IMAGE, 2, 0), RuntimeError, "max_pool2d: stride"),
        (lambda: F.max_pool2d(IMAGE, 2, 2, 0, 0), RuntimeError, "max_pool2d: dilation"),
        (lambda: F.max_pool2d(IMAGE, 9), RuntimeError, "max_pool2d: a window of 9"),
        (lambda: F.avg_pool2d(IMAGE, 2, -1), RuntimeError, "avg_pool2d: stride"),
        (lambda: F.avg_pool2d(IMAGE, 2, 2, 5), RuntimeError, "avg_pool2d: pad should"),
        (lambda: F.adaptive_avg_pool2d(IMAGE, -1), RuntimeError, "output_size"),
        (lambda: F.embedding(ONE, A, padding_idx=7), RuntimeError, "padding_idx"),
        (lambda: F.one_hot(resilin.tensor([3]), 3), RuntimeError, "smaller than num_classes"),
        (lambda: F.one_hot(resilin.tensor([-1]), 3), RuntimeError, "non-negative"),
        (lambda: F.cross_entropy(A, resilin.tensor([0, 1, 4])), IndexError, r"target\[2\] is 4"),
        (lambda: F.cross_entropy(A, resilin.tensor([0, 1, 2]), _ones(2)), RuntimeError, "all 4 classes"),
        (lambda: F.nll_loss(A, resilin.tensor([0, 1, 2]), _ones(2)), RuntimeError, "all 4 classes"),
        (lambda: F.binary_cross_entropy(_ones(1) * 2, _ones(1)), RuntimeError, "between 0 and 1"),
        (lambda: F.scaled_dot_product_attention(QUERY, QUERY, QUERY, _ones(5, 5)), RuntimeError, "does not broadcast"),
        (lambda: F.scaled_dot_product_attention(QUERY, QUERY, QUERY, ONE), RuntimeError, "bool or float"),
        (lambda: ONE // 0, RuntimeError, "ZeroDivisionError"),
        (lambda: ONE % 0, RuntimeError, "ZeroDivisionError"),
        (lambda: ONE.fmod(0), RuntimeError, "ZeroDivisionError"),
        (lambda: 5 % resilin.tensor([2, 0]), RuntimeError, "ZeroDivisionError"),
        (lambda: resilin.div(ONE, 0, rounding_mode="trunc"), RuntimeError, "ZeroDivisionError"),
        (lambda: A.narrow(1, 3, 2), RuntimeError, r"start \(3\) \+ length \(2\) exceeds"),
        (lambda: A.narrow(1, 5, 0), IndexError, "start out of range"),
        (lambda: A.narrow(1, 0, -1), RuntimeError, "non-negative"),
        (lambda: A.chunk(0), RuntimeError, "greater than 0"),
        (lambda: A.split(0), RuntimeError, "must be positive"),
        (lambda: A.split([-1, 4]), RuntimeError, "do not sum"),
        (lambda: resilin.arange(0, 1, 0), RuntimeError, "nonzero"),
        (lambda: resilin.arange(5, 0), RuntimeError, "inconsistent"),
        (lambda: resilin.eye(-1), RuntimeError, "negative dimension"),
        (lambda: resilin.randperm(-1), RuntimeError, "negative"),
        (lambda: resilin.randperm(300, dtype=resilin.uint8), RuntimeError, "does not hold all integers below 300"),
        (lambda: resilin.randperm(3000, dtype=resilin.float16), RuntimeError, "does not hold all integers below 3000"),
        (lambda: resilin.randint(2**63 + 1, (3,)), RuntimeError, "out of bounds for resilin.int64"),
        (lambda: resilin.randint(5, (3,), dtype=resilin.complex64), NotImplementedError, "not drawn as"),
        (lambda: resilin.bernoulli(A, 1.5), RuntimeError, r"p to be in \[0, 1\], got 1.5"),
        (lambda: resilin.bernoulli(A, float("nan")), RuntimeError, r"p to be in \[0, 1\], got nan"),
        (lambda: resilin.multinomial(resilin.tensor([0.0, 0, 5]), 3), RuntimeError, "fewer than 3 elements above 0"),
        (lambda: resilin.sort(resilin.tensor(1.0), dim=5), IndexError, "out of range"),
        (lambda: resilin.argsort(resilin.tensor(1), -3), IndexError, "out of range"),
        (lambda: A.index_add(0, resilin.tensor([5]), _ones(1, 4)), IndexError, "index 5 is out of bounds"),
        (lambda: A.clone().uniform_(2, 1), RuntimeError, "from=2 > to=1"),
        (lambda: A.clone().normal_(0, -1), RuntimeError, "std -1"),
        (lambda: nn.Linear(2, 2).to(resilin.int64), TypeError, "floating point or complex"),
        (lambda: resilin.zeros(0, 3).argmax(0), IndexError, "non-zero size"),
        (lambda: resilin.zeros(0, 3).max(0), IndexError, "non-zero size"),
        (lambda: resilin.zeros(0).argmax(), IndexError, "to be specified"),
        (lambda: resilin.tensor([True]) - resilin.tensor([True]), RuntimeError, r"subtract\(bool \[1\]\): not impl"),
        (lambda: resilin.tensor([True]) @ resilin.tensor([True]), RuntimeError, "Bool"),
        (lambda: A.masked_select(ONE), RuntimeError, "BoolTensor"),
        (lambda: A.masked_select(resilin.tensor([True, False])), RuntimeError, "broadcast"),
        (lambda: A.gather(1, resilin.zeros(5, 2, dtype=resilin.int64)), RuntimeError, "no larger than self"),
        (lambda: A.reshape(5, -1), RuntimeError, r"reshape\(float32 \[3, 4\], shape=\(5, -1\)\)|invalid"),
    ],
)  # fmt: skip
def test_a_bad_argument_raises_pytorchs_error_type(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_narrow_counts_a_negative_start_from_the_end() -> None:
    assert resilin.arange(5).narrow(0, -2, 2).tolist() == [3, 4]


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss])
def test_a_loss_of_shapes_that_broadcast_warns(loss: Any) -> None:
    with pytest.warns(UserWarning, match="incorrect results due to broadcasting"):
        loss(resilin.zeros(2), resilin.zeros(2, 2))


def test_grad_takes_no_tensor_of_another_shape_or_dtype() -> None:
    x = resilin.zeros(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="shape"):
        x.grad = resilin.zeros(2)
    with pytest.raises(RuntimeError, match="dtype"):
        x.grad = resilin.zeros(3, dtype=resilin.float64)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (resilin.zeros(2), RuntimeError, "changed the size"),
        (resilin.zeros(3, dtype=resilin.float64), RuntimeError, "changed the type"),
        (1.0, TypeError, "must return None or a Tensor"),
    ],
)
def test_a_hook_may_not_return_something_that_is_no_gradient(result: Any, error: type[Exception], message: str) -> None:
    x = resilin.zeros(3, requires_grad=True)
    x.register_hook(lambda _grad: result)
    with pytest.raises(error, match=message):
        (x * 2).sum().backward()


def test_backward_of_a_complex_number_needs_a_gradient() -> None:
    x = resilin.tensor(1 + 2j, requires_grad=True)
    with pytest.raises(RuntimeError, match="real scalar outputs"):
        (x * 2).backward()


def test_data_replaced_by_another_shape_before_backward_is_named() -> None:
    w = resilin.ones(64, requires_grad=True)
    y = F.layer_norm(resilin.randn(8, 64), [64], w)
    w.data = resilin.ones(1)
    with pytest.raises(RuntimeError, match="NativeLayerNormBackward0 saved a tensor of shape"):
        y.sum().backward()


def test_a_function_whose_gradient_has_a_wrong_shape_is_named() -> None:
    class Wrong(resilin.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return resilin.zeros(5)

    x = resilin.zeros(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"WrongBackward.*index 0 - got \[5\] but expected.*\[2, 3\]"):
        Wrong.apply(x).sum().backward()


@pytest.mark.parametrize(
    ("fn", "x", "expected"),
    [
        (lambda x: x**0, [0.0, 2.0, -1.0], [0.0, 0.0, 0.0]),
        (lambda x: 0**x, [0.0, 2.0, -1.0], [0.0, 0.0, -np.inf]),
        (lambda x: resilin.zeros(2, dtype=resilin.float64) ** x, [0.0, 2.0], [0.0, 0.0]),
        (lambda x: x.cumprod(0), [2.0, 0.0, 3.0, 0.0, 5.0], [1.0, 8.0, 0.0, 0.0, 0.0]),
        (lambda x: x.cumprod(0), [3.7, -2.3, 0.0, 1.5], [-1.3, 3.7, -21.275, 0.0]),
        (lambda x: x.norm(p=-1), [3.7, -2.3, 0.0, 1.5], [0.0, 0.0, 0.0, 0.0]),
        (lambda x: x.norm(p=3), [0.0, 0.0], [0.0, 0.0]),
        (lambda x: x.norm(p=0.5), [0.0, 4.0], [0.0, 1.0]),
    ],
)
def test_the_gradient_at_zero_is_the_limit_and_not_nan(fn: Any, x: list[float], expected: list[float]) -> None:
    leaf = resilin.tensor(x, dtype=resilin.float64, requires_grad=True)
    fn(leaf).sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64, resilin.float16])
@pytest.mark.parametrize(
    "fn",
    [
        F.relu, F.gelu, F.silu, lambda x: F.gelu(x, "tanh"), lambda x: F.softmax(x, -1), lambda x: F.log_softmax(x, -1),
        lambda x: F.layer_norm(x, [4]), lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), lambda x: F.linear(x, x),
        lambda x: F.cross_entropy(x, resilin.tensor([0, 1, 2])),
    ],
)  # fmt: skip
def test_nan_and_infinity_give_no_warnings_of_numpy(fn: Any, dtype: Any) -> None:
    x = resilin.tensor([[1.0, np.nan, np.inf, 2.0], [-np.inf, 0, 1, 3], [6e4, 6e4, 6e4, 6e4]], dtype=dtype)
    x.requires_grad_()
    fn(x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("other", [1j, resilin.tensor([1j])])
@pytest.mark.parametrize("compare", [operator.lt, operator.ge])
def test_complex_numbers_have_no_order(compare, other):
    with pytest.raises(RuntimeError, match="no order"):
        compare(resilin.ones(1), other)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: resilin.ones(3, 2) // resilin.ones(3, 3), RuntimeError),
        (lambda: resilin.ones(3) & resilin.ones(3), NotImplementedError),
        (lambda: resilin.tensor([True]) ^ 1.5, NotImplementedError),
        (lambda: resilin.ones(3).mT, RuntimeError),
    ],
)
def test_mistakes_raise_what_pytorch_raises(call, kind):
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda x: x.floor_divide(resilin.zeros(4)),
            RuntimeError,
            r"floor_divide: the shapes \(2, 3\) and \(4,\) cannot be broadcast",
        ),
        (lambda x: x // resilin.zeros(2, 4), RuntimeError, r"the shapes \(2, 3\) and \(2, 4\) cannot be broadcast"),
        (
            lambda x: resilin.cross(x, resilin.zeros(4, 3)),
            RuntimeError,
            r"cross: the shapes \(2, 3\) and \(4, 3\) cannot",
        ),
        (lambda x: resilin.linalg.cross(x, resilin.zeros(4, 3)), RuntimeError, r"\(2, 3\) and \(4, 3\) cannot be"),
        (
            lambda x: resilin.broadcast_shapes((2, 3), (4,)),
            RuntimeError,
            r"shapes \(2, 3\) and \(4,\) cannot be broadcast",
        ),
        (lambda x: -x.bool(), NotImplementedError, "negative.*not implemented for bool"),
        (lambda x: x.cfloat().signbit(), NotImplementedError, "signbit.*not implemented for complex64"),
        (lambda x: x.bool() @ x.bool(), NotImplementedError, "matmul: not implemented for"),
        (lambda x: x.sum().chunk(1), RuntimeError, "at least a 1-dimensional tensor"),
        (lambda x: resilin.floor_divide(7, 2), TypeError, "expected a Tensor, got int and int"),
        (lambda x: resilin.div(7, 2, rounding_mode="floor"), TypeError, "expected a Tensor, got int and int"),
        (lambda x: x.__delitem__(0), TypeError, "does not support deleting items"),
    ],
)
def test_mistakes_are_told_in_words_of_this_library(call, kind, message):
    with pytest.raises(kind, match=message) as caught:
        call(resilin.ones(2, 3))
    assert not any(word in str(caught.value) for word in ("numpy", "ufunc", "operands", "objects"))
