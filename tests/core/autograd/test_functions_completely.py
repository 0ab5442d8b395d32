"""autograd.Function and checkpoint: what their less known options do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

import resilin
from resilin import autograd, func, nn
from resilin.autograd import Function, checkpoint, checkpoint_sequential, forward_ad, once_differentiable


class Square(Function):
    """With everything in its places, and a rule for batches that tells when it is used."""

    seen: list[Any] = []  # noqa: RUF012 - shared on purpose

    @staticmethod
    def forward(x: Any) -> Any:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        Square.seen.append((ctx.name(), ctx.needs_input_grad, len(ctx.next_functions), ctx.metadata))
        return 2 * g * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:
        Square.seen.append((info.batch_size, info.randomness, in_dims, tuple(x.shape)))
        return Square.apply(x), in_dims[0]


class Plain(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g * ctx.saved_tensors[0]


def _leaf(*values: float) -> Any:
    return resilin.tensor(values, dtype=resilin.float64, requires_grad=True)


def test_a_function_says_its_rule_for_batches() -> None:
    Square.seen.clear()
    x = _leaf(1.0, 2.0, 3.0)
    found = func.vmap(Square.apply)(x)
    assert Square.seen == [(3, "error", (0,), (3,))]
    found.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
    assert Square.seen[-1] == ("SquareBackward", (True,), 1, {})


def test_a_function_without_one_goes_sample_by_sample() -> None:
    x = _leaf(1.0, 2.0, 3.0).detach()
    assert func.vmap(Plain.apply)(x).tolist() == [1.0, 4.0, 9.0]
    assert func.vmap(func.grad(Plain.apply))(x).tolist() == [2.0, 4.0, 6.0]
    assert func.jacrev(Plain.apply)(x).tolist() == [[2.0, 0, 0], [0, 4.0, 0], [0, 0, 6.0]]


def test_forward_mode_of_a_function_comes_from_its_backward() -> None:
    x = _leaf(1.0, 2.0).detach()
    assert func.jvp(Plain.apply, (x,), (x + 1,))[1].tolist() == [4.0, 12.0]


def test_once_differentiable_refuses_the_second_time() -> None:
    class Once(Plain):
        backward = staticmethod(once_differentiable(Plain.backward))

    x, g = _leaf(3.0), _leaf(1.0)
    (found,) = autograd.grad(Once.apply(x), x, g, create_graph=True)
    assert found.item() == 6.0
    with pytest.raises(RuntimeError, match="differentiate twice a function that was marked with @once_differentiable"):
        found.sum().backward()


def test_a_function_saves_tensors_only_and_marks_no_leaf_as_dirty() -> None:
    class Saves(Plain):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(3)

    class Dirty(Plain):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.add_(1)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 5

    with pytest.raises(TypeError, match="can only save variables, but argument 0 is of type int"):
        Saves.apply(_leaf(1.0))
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        Dirty.apply(_leaf(1.0, 2.0))
    x = _leaf(1.0)
    y = x * 1
    assert Dirty.apply(y) is y
    y.sum().backward()
    assert x.grad.tolist() == [5.0]


def test_dual_tensors_carry_tangents_through_any_operation() -> None:
    x, t = _leaf(0.5, 1.0).detach(), _leaf(1.0, -2.0).detach()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        primal, tangent = forward_ad.unpack_dual((dual.sin() * dual).cumsum(0))
        assert not primal.requires_grad
        assert not tangent.requires_grad
        assert resilin.allclose(tangent, (t * (x.cos() * x + x.sin())).cumsum(0))
        assert forward_ad.unpack_dual(x).tangent is None
        by_direction = func.vmap(lambda v: forward_ad.unpack_dual(forward_ad.make_dual(x, v).exp()).tangent)
        assert resilin.allclose(by_direction(resilin.eye(2, dtype=x.dtype)), resilin.diag(x.exp()))
        with pytest.raises(RuntimeError, match="Nested forward mode"):
            forward_ad.enter_dual_level()
        with pytest.raises(RuntimeError, match="must be like the primal"):
            forward_ad.make_dual(x, t[:1])
        with pytest.raises(ValueError, match="Expected tangent to be floating point"):
            forward_ad.make_dual(x, resilin.tensor([1, 2]))
    assert forward_ad.unpack_dual(dual).tangent is None
    for call in (lambda: forward_ad.make_dual(x, t), forward_ad.exit_dual_level):
        with pytest.raises(RuntimeError, match="level"):
            call()


def test_a_tangent_can_be_differentiated() -> None:
    x = _leaf(0.5, 1.0)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(forward_ad.make_dual(x, resilin.ones(2, dtype=x.dtype)) ** 3).tangent
        (found,) = autograd.grad(tangent.sum(), x)
    assert resilin.allclose(found, 6 * x.detach())


def test_a_sequence_is_checkpointed_in_segments() -> None:
    resilin.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(5))).double()
    x, y = _leaf(1.0, 2.0, 3.0), _leaf(1.0, 2.0, 3.0)
    out = checkpoint_sequential(layers, 2, x)
    out.sum().backward()
    layers(y).sum().backward()
    assert resilin.allclose(x.grad, y.grad)
    with pytest.raises(ValueError, match="between 1 and 5, got 6"):
        checkpoint_sequential(layers, 6, x)


def test_a_checkpoint_enters_the_contexts_it_is_given() -> None:
    entered: list[str] = []

    @contextmanager
    def note(name: str) -> Any:
        entered.append(name)
        yield

    x = _leaf(2.0)
    y = checkpoint(lambda a: a.exp().sin(), x, context_fn=lambda: (note("first"), note("again")))
    assert entered == ["first"]
    y.backward()
    assert entered == ["first", "again"]
    with pytest.raises(ValueError, match="determinism_check"):
        checkpoint(lambda a: a, x, determinism_check="always")


def test_a_second_run_ends_early_unless_told_not_to() -> None:
    ends: list[int] = []

    def noted(a: Any) -> Any:
        b = a.exp().sin()
        ends.append(1)
        return b

    x = _leaf(2.0)
    checkpoint(noted, x).backward()
    assert len(ends) == 1
    checkpoint(noted, x, early_stop=False).backward()
    assert len(ends) == 3
    with autograd.set_checkpoint_early_stop(False):
        y = checkpoint(noted, x)
    y.backward()
    assert len(ends) == 5


def test_a_checkpoint_that_changes_is_named_and_may_be_let_pass() -> None:
    calls: list[int] = []

    def changing(a: Any) -> Any:
        calls.append(1)
        return a.sin() if len(calls) % 2 else a.cos()

    with pytest.raises(autograd.CheckpointError, match="forward recorded SinBackward0"):
        checkpoint(changing, _leaf(2.0)).backward()
    checkpoint(changing, _leaf(2.0), determinism_check="none").backward()


def test_multithreading_is_accepted_as_a_setting() -> None:
    x = _leaf(2.0)
    with autograd.set_multithreading_enabled(False):
        (x * x).backward()
    assert x.grad.item() == 4.0


class ForwardOnly(Function):
    """No backward at all: forward mode goes by `jvp`."""

    @staticmethod
    def forward(x: Any, scale: float, y: Any) -> Any:
        return x * scale + y, x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[1]
        ctx.save_for_forward(inputs[0], inputs[2])

    @staticmethod
    def jvp(ctx: Any, x_tangent: Any, _: Any, y_tangent: Any) -> Any:
        x, y = ctx.saved_tensors
        if y_tangent is None:
            return x_tangent * ctx.scale, x_tangent * y
        return x_tangent * ctx.scale + y_tangent, x_tangent * y + y_tangent * x


def test_a_function_with_a_jvp_of_its_own_is_pushed_through_by_it() -> None:
    x, y = _leaf(1.0, 2.0).detach(), _leaf(-1.0, 0.5).detach()

    def f(x: Any, y: Any) -> Any:
        first, second = ForwardOnly.apply(x.sin(), 3.0, y)
        parts = (first * second).split(1)
        return parts[0] + parts[1], second.sum()

    def plain(x: Any, y: Any) -> Any:
        s = x.sin()
        parts = ((s * 3.0 + y) * (s * y)).split(1)
        return parts[0] + parts[1], (s * y).sum()

    directions = (y + 1, x * 2)
    for found, expected in zip(func.jvp(f, (x, y), directions)[1], func.jvp(plain, (x, y), directions)[1], strict=True):
        assert resilin.allclose(found, expected)
        assert not found.requires_grad
    for found, expected in zip(func.jacfwd(f, (0, 1))(x, y), func.jacfwd(plain, (0, 1))(x, y), strict=True):
        assert all(resilin.allclose(a, b) for a, b in zip(found, expected, strict=True))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(ForwardOnly.apply(forward_ad.make_dual(x, y), 2.0, y)[1]).tangent
        assert resilin.allclose(tangent, y * y)
    again = func.jvp(lambda a: func.jvp(lambda b: f(b, y)[1], (a,), (y,))[1], (x,), (y,))[1]
    assert resilin.allclose(again, func.jvp(lambda a: func.jvp(lambda b: plain(b, y)[1], (a,), (y,))[1], (x,), (y,))[1])


def test_a_jvp_with_too_few_tangents_is_an_error() -> None:
    class Short(ForwardOnly):
        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            return tangents[0]

    x = _leaf(1.0, 2.0).detach()
    with pytest.raises(RuntimeError, match=r"incorrect number of tangents \(expected 2, got 1\)"):
        func.jvp(lambda a: Short.apply(a, 1.0, x), (x,), (x,))
