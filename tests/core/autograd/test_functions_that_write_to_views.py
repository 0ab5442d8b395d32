"""A custom Function that writes to a view: the tensor it is a view of takes part."""

import numpy as np
import pytest

import resilin


class Scale(resilin.autograd.Function):
    """Multiplies in place by 2, or by `weight`."""

    @staticmethod
    def forward(ctx, x, weight=None):
        ctx.save_for_backward(x.clone(), weight)
        x.mul_(2 if weight is None else weight.detach())
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        old, weight = ctx.saved_tensors
        return (g * 2, None) if weight is None else (g * weight, (g * old).sum())


def test_the_base_of_a_written_view_has_the_functions_gradient():
    x = resilin.tensor([1.0, 2.0, 3.0], requires_grad=True)
    base = x * 1
    part = base[1:]
    assert Scale.apply(part) is part
    np.testing.assert_array_equal(base.detach().numpy(), [1, 4, 6])
    (grad,) = resilin.autograd.grad((base * base).sum(), x)
    np.testing.assert_array_equal(grad.numpy(), [2, 16, 24])


def test_other_views_of_the_base_see_the_write():
    x = resilin.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    base = x * 1
    row = base[0]
    Scale.apply(base.t()[1:])
    (grad,) = resilin.autograd.grad(row.sum(), x)
    np.testing.assert_array_equal(grad.numpy(), [[1, 2], [0, 0]])


def test_a_base_without_gradient_gets_one_from_what_was_written():
    weight = resilin.tensor(5.0, requires_grad=True)
    base = resilin.ones(3)
    Scale.apply(base[:2], weight)
    assert base.requires_grad
    (grad,) = resilin.autograd.grad(base.sum(), weight)
    assert float(grad) == 2


@pytest.mark.parametrize("written", [lambda x: x, lambda x: x[1:]], ids=["leaf", "view of a leaf"])
def test_a_leaf_that_requires_gradients_cannot_be_written_by_a_function(written):
    x = resilin.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        Scale.apply(written(x))
