"""`autograd.graph`: packing what nodes save, hooks on several gradients, versions."""

from __future__ import annotations

from typing import Any

import pytest

import resilin
from resilin.autograd import Function, checkpoint, grad
from resilin.autograd.graph import (
    Node,
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    increment_version,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)


def _leaf(*values: float) -> Any:
    return resilin.tensor(values, dtype=resilin.float64, requires_grad=True)


class _Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


@pytest.mark.parametrize("fn", [lambda x: x * x * x, lambda x: x.exp(), lambda x: x.softmax(0), _Cube.apply])
def test_saved_tensors_go_through_the_hooks_and_derivatives_of_any_order_stay(fn: Any) -> None:
    packed: list[Any] = []

    def pack(tensor: Any) -> Any:
        packed.append(tensor)
        return tensor.numpy().copy()

    x = _leaf(0.5, -1.5, 2.0)
    with saved_tensors_hooks(pack, resilin.from_numpy):
        y = fn(x)
    assert packed
    (first,) = grad(y[0], x, create_graph=True)
    (second,) = grad(first.sum(), x)
    x2 = x.detach().requires_grad_()
    (first2,) = grad(fn(x2)[0], x2, create_graph=True)
    assert first.tolist() == first2.tolist()
    assert second.tolist() == grad(first2.sum(), x2)[0].tolist()


def test_what_unpack_gives_is_what_backward_sees_each_time() -> None:
    x = _leaf(3.0)
    calls: list[Any] = []

    def unpack(tensor: Any) -> Any:
        calls.append(tensor)
        return tensor * 10

    with saved_tensors_hooks(lambda t: t, unpack):
        y = x.square()
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [60.0]
    y.backward()
    assert len(calls) == 2
    assert x.grad.tolist() == [120.0]


def test_the_innermost_hooks_count_and_the_outer_ones_return() -> None:
    seen: list[str] = []
    x = _leaf(1.0)
    with saved_tensors_hooks(lambda t: seen.append("outer") or t, lambda t: t):
        with saved_tensors_hooks(lambda t: seen.append("inner") or t, lambda t: t):
            x.square()
        x.square()
    x.square()
    assert seen == ["inner", "outer"]


def test_an_unpack_hook_that_gives_no_tensor_is_named() -> None:
    with saved_tensors_hooks(lambda t: 1, lambda packed: packed):
        y = _leaf(1.0).square()
    with pytest.raises(TypeError, match="unpack_hook must return a Tensor, got int"):
        y.backward()


def test_hooks_can_be_forbidden() -> None:
    hooks = saved_tensors_hooks(lambda t: t, lambda t: t)
    with disable_saved_tensors_hooks("not here"), pytest.raises(RuntimeError, match="not here"), hooks:
        pass


def test_hooks_inside_a_checkpoint_keep_what_is_saved_under_them() -> None:
    packed: list[Any] = []

    def pack(tensor: Any) -> Any:
        packed.append(tensor.tolist())
        return tensor

    def inside(x: Any) -> Any:
        y = x.exp()
        with saved_tensors_hooks(pack, lambda t: t * 1):
            y = y.square()
        return y.sin() * x

    x, z = _leaf(0.5), _leaf(0.5)
    checkpoint(inside, x).backward()
    (z.exp().square().sin() * z).backward()
    assert x.grad.tolist() == z.grad.tolist()
    assert packed[0] == z.exp().tolist()


def test_saved_tensors_may_be_written_where_that_is_allowed() -> None:
    x, y = _leaf(2.0), _leaf(3.0)
    with allow_mutation_on_saved_tensors():
        a = x.clone()
        out = (a * y).sum()
        a.fill_(10.0)
        out.backward()
    assert y.grad.tolist() == x.detach().tolist()


def test_a_checkpoint_inside_hooks_still_runs_again() -> None:
    x = _leaf(2.0)
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        y = checkpoint(lambda a: a.square().exp(), x) * x
    y.backward()
    z = _leaf(2.0)
    (z.square().exp() * z).backward()
    assert x.grad.tolist() == z.grad.tolist()


def test_saved_tensors_can_wait_on_the_host() -> None:
    x = resilin.tensor([2.0], device="sim:0").requires_grad_()
    with save_on_cpu():
        y = x.square()
    y.backward()
    assert x.grad.cpu().tolist() == [4.0]
    assert x.grad.device == x.device


def test_one_hook_gets_all_gradients_when_the_last_has_come() -> None:
    a, b = _leaf(1.0), _leaf(2.0)
    calls: list[Any] = []
    handle = register_multi_grad_hook([a, b], lambda grads: calls.append([g.tolist() for g in grads]))
    for _ in range(2):
        (a * b).backward()
    assert calls == [[[2.0], [1.0]]] * 2
    handle.remove()
    (a * b).backward()
    assert len(calls) == 2


def test_a_tensor_without_gradient_in_this_backward_is_none_in_the_list() -> None:
    a, b = _leaf(1.0), _leaf(2.0)
    calls: list[Any] = []
    register_multi_grad_hook([a, b], calls.append)
    (a * 3).backward()
    assert calls[0][0].tolist() == [3.0]
    assert calls[0][1] is None
    assert len(calls) == 1


def test_with_any_the_first_gradient_calls_the_hook_once_per_backward() -> None:
    a, b = _leaf(1.0), _leaf(2.0)
    calls: list[Any] = []
    register_multi_grad_hook((a, b), calls.append, mode="any")
    (a * b).backward()
    (a * b).backward()
    assert len(calls) == 2
    with pytest.raises(ValueError, match="mode must be"):
        register_multi_grad_hook((a, b), calls.append, mode="most")


def test_a_version_that_was_incremented_is_noticed_in_backward() -> None:
    x = _leaf(1.0)
    y = (x * 2).requires_grad_()
    z = y.square()
    increment_version(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()
    assert isinstance(z.grad_fn, Node)
