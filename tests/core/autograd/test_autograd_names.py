"""Names of torch.autograd at their usual places, and what `grad` refuses."""

from __future__ import annotations

from typing import Any

import pytest

import resilin
from resilin import autograd, func
from resilin.autograd.function import Function, FunctionCtx, once_differentiable
from resilin.utils import checkpoint as checkpoints


def test_names_are_at_their_places_of_pytorch() -> None:
    assert autograd.Function is Function
    assert autograd.once_differentiable is once_differentiable
    assert autograd.FunctionCtx is FunctionCtx
    assert checkpoints.checkpoint is autograd.checkpoint
    assert autograd.grad_mode.no_grad is resilin.no_grad
    assert resilin.vmap is func.vmap


def test_a_variable_is_a_leaf_and_every_tensor_is_one() -> None:
    data = resilin.tensor([1.0, 2.0])
    made = autograd.Variable(data, requires_grad=True)
    assert made.requires_grad
    assert made.data_ptr() == data.data_ptr()
    assert isinstance(data, autograd.Variable)
    assert not isinstance(3, autograd.Variable)
    wrong: Any = 3
    with pytest.raises(TypeError, match="has to be a tensor"):
        autograd.Variable(wrong)


def test_anomaly_mode_can_be_asked_for_and_switched() -> None:
    assert (resilin.is_anomaly_enabled(), resilin.is_anomaly_check_nan_enabled()) == (False, True)
    with autograd.detect_anomaly(check_nan=False):
        assert (resilin.is_anomaly_enabled(), resilin.is_anomaly_check_nan_enabled()) == (True, False)
    resilin.set_anomaly_enabled(True)
    assert resilin.is_anomaly_enabled()
    resilin.set_anomaly_enabled(False)
    assert not resilin.is_anomaly_enabled()


def test_a_tensor_knows_which_output_it_is() -> None:
    x = resilin.ones(4, 2, requires_grad=True)
    assert [part.output_nr for part in x.split(1)] == [0, 1, 2, 3]
    assert (x.output_nr, x.sum().output_nr) == (0, 0)


def test_grad_refuses_what_cannot_be_meant() -> None:
    x, unused = resilin.ones(2, requires_grad=True), resilin.ones(2, requires_grad=True)
    y = x * 2
    with pytest.raises(RuntimeError, match="cannot be empty"):
        autograd.grad(y.sum(), [])
    with pytest.raises(ValueError, match="Expected allow_unused to be True or not passed"):
        autograd.grad(y.sum(), x, allow_unused=False, materialize_grads=True)
    with pytest.raises(RuntimeError, match="at index 1 appears to not have been used"):
        autograd.grad(y.sum(), [x, unused])
    with pytest.raises(RuntimeError, match="got 1 tensors and 2 gradients"):
        autograd.grad(y, x, [resilin.ones(2), resilin.ones(2)])
    with pytest.raises(RuntimeError, match="interpret the first dimension"):
        autograd.grad(y, x, resilin.ones(3, 3), is_grads_batched=True)


def test_a_gradient_can_be_kept_and_seen_inside_vmap() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        y = x * 2
        y.retain_grad()
        y.register_hook(lambda g: g * 3)
        kept.append(y)
        return (y * x).sum()

    x = resilin.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = func.vmap(func.grad(f))(x)
    assert resilin.equal(found, x * 3 * 2 + x * 2)
    assert kept[0]._inner.grad.tolist() == (x * 3).tolist()


def test_a_variable_may_be_volatile_as_of_old_which_does_nothing_but_warn():
    with pytest.warns(UserWarning, match="volatile was removed and now has no effect"):
        x = autograd.Variable(resilin.ones(2), volatile=True)
    assert x.tolist() == [1.0, 1.0]
    assert autograd.Variable().shape == (0,)
