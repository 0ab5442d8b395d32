"""Gradients of tensors without dimensions, whose arithmetic gives numpy's numbers where others give arrays."""

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin.core.ops.registry import OPS
from resilin.core.tensor import wrap
from resilin.testing import check_ops, coverage

coverage.load()


def _takes_numbers(op):
    if not (op.elementwise and op.samples is not None and op.differentiable and op.order and op.n > 0):
        return False
    return all(isinstance(value, resilin.Tensor) for value in check_ops.samples(op)[0][: op.n])


OF_NUMBERS = sorted(name for name, op in OPS.items() if _takes_numbers(op))


def _derivatives(name, arrays, rest, order):
    """The value of an op and the gradients of the sum of its squares, first and, for `order` 2, of their squares."""
    tensors = [wrap(array).requires_grad_() for array in arrays]
    out = OPS[name].call(*tensors, *rest)
    first = resilin.autograd.grad((out * out).sum(), tensors, create_graph=True)
    found = [out, *first]
    if order > 1:
        found += resilin.autograd.grad(sum((g * g).sum() for g in first), tensors, materialize_grads=True)
    return [t.detach().numpy() for t in found]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_number_has_the_derivatives_that_it_has_in_a_row(name, dtype):
    op = OPS[name]
    sample = check_ops.samples(op, dtype)[0]
    rows = [a.reshape(-1)[:1].copy() for a in np.broadcast_arrays(*(t._array for t in sample[: op.n]))]
    expected = _derivatives(name, rows, sample[op.n :], op.order)
    found = _derivatives(name, [row.reshape(()) for row in rows], sample[op.n :], op.order)
    for number, one in zip(found, expected, strict=True):
        assert number.shape == ()
        np.testing.assert_allclose(number, one[0], rtol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [resilin.float64, resilin.float32, resilin.bfloat16, resilin.float16])
@pytest.mark.parametrize(
    "function",
    [F.softplus, F.logsigmoid, F.mish, F.silu, F.gelu, resilin.sigmoid, resilin.tanh, resilin.erf, resilin.log1p],
)
def test_activations_of_a_number_have_second_derivatives_in_every_precision(function, dtype):
    x = resilin.tensor(0.75, dtype=dtype, requires_grad=True)
    (first,) = resilin.autograd.grad(function(x), x, create_graph=True)
    (second,) = resilin.autograd.grad(first, x)
    row = resilin.tensor([0.75], dtype=dtype, requires_grad=True)
    (expected,) = resilin.autograd.grad(function(row).sum(), row, create_graph=True)
    (expected_second,) = resilin.autograd.grad(expected.sum(), row)
    assert first.shape == second.shape == ()
    assert float(first) == pytest.approx(float(expected), rel=2e-2)
    assert float(second) == pytest.approx(float(expected_second), rel=5e-2, abs=1e-2)
