"""autograd.Function, checkpoint, functional derivatives, gradcheck."""

import math
import weakref

import numpy as np
import pytest

import resilin
from resilin.autograd import Function, checkpoint, functional, gradcheck, gradgradcheck, once_differentiable


class Cube(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * x * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x * ctx.scale, None


class Both(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, g_product, g_sum):
        x, y = ctx.saved_tensors
        return g_product * y + g_sum, g_product * x + g_sum


def double(*values):
    return resilin.tensor(values, dtype=resilin.float64, requires_grad=True)


def test_a_function_has_its_own_backward_and_it_is_differentiable():
    x = double(1.0, 2.0)
    assert gradcheck(lambda t: Cube.apply(t, 2.0), x)
    assert gradgradcheck(lambda t: Cube.apply(t, 2.0), x)


def test_a_function_with_two_outputs_gets_zeros_for_the_unused_one():
    x, y = double(1.0, 2.0), double(3.0, 4.0)
    product, total = Both.apply(x, y)
    total.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1.0)
    assert gradcheck(lambda a, b: Both.apply(a, b), (x, y))
    assert type(product.grad_fn).__name__ == "Pick"


def test_a_function_is_freed_by_backward_like_any_operation():
    y = Cube.apply(double(1.0), 1.0)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_wrong_number_of_gradients_is_an_error_that_names_the_function():
    class Wrong(Cube):
        @staticmethod
        def backward(ctx, g):
            return g, None, g

    with pytest.raises(
        RuntimeError, match=r"WrongBackward returned an incorrect number of gradients \(expected 2, got 3\)"
    ):
        Wrong.apply(double(1.0), 1.0).backward()


def test_once_differentiable_gradients_are_constants():
    class Once(Cube):
        backward = staticmethod(once_differentiable(Cube.backward))

    x = double(2.0)
    (g,) = resilin.autograd.grad(Once.apply(x, 1.0), x, create_graph=True)
    assert g.item() == 12.0
    assert not g.requires_grad


def test_outputs_marked_non_differentiable_have_no_history():
    class Index(Function):
        @staticmethod
        def forward(ctx, x):
            rounded = x.round()
            ctx.mark_non_differentiable(rounded)
            return x * 2, rounded

        @staticmethod
        def backward(ctx, g, _):
            return g * 2

    x = double(1.2)
    twice, rounded = Index.apply(x)
    assert twice.requires_grad
    assert not rounded.requires_grad
    twice.backward()
    assert x.grad.item() == 2.0


def test_checkpoint_gives_equal_gradients_and_repeats_the_random_numbers():
    def block(t):
        return resilin.nn.functional.dropout((t @ t).tanh(), 0.5).sum()

    gradients = []
    for run in (block, lambda t: checkpoint(block, t)):
        resilin.manual_seed(5)
        x = resilin.ones(8, 8, requires_grad=True)
        run(x).backward()
        gradients.append((x.grad.numpy().tobytes(), resilin.default_generator().offset))
    assert gradients[0] == gradients[1]


def test_checkpoint_reaches_parameters_that_the_function_uses():
    w = resilin.tensor([2.0], requires_grad=True)
    x = resilin.tensor([3.0], requires_grad=True)
    checkpoint(lambda t: t * w * w, x).backward()
    assert (w.grad.item(), x.grad.item()) == (12.0, 4.0)


def test_vjp_and_jvp_multiply_by_the_jacobian():
    def fn(x):
        return resilin.stack([x[0] * x[1], x[1] ** 2, x.sum()])

    x = resilin.tensor([2.0, 3.0])
    jacobian = np.array([[3.0, 2.0], [0.0, 6.0], [1.0, 1.0]])
    np.testing.assert_allclose(functional.jacobian(fn, x).numpy(), jacobian)
    v, u = resilin.tensor([1.0, -1.0, 0.5]), resilin.tensor([1.0, 2.0])
    np.testing.assert_allclose(functional.vjp(fn, x, v)[1].numpy(), v.numpy() @ jacobian)
    np.testing.assert_allclose(functional.jvp(fn, x, u)[1].numpy(), jacobian @ u.numpy())


def test_hessian_and_its_products_agree():
    def fn(x):
        return (x[0] ** 2 * x[1]).sin() + x[1].exp()

    x = resilin.tensor([0.3, 0.7], dtype=resilin.float64)
    hessian = functional.hessian(fn, x).numpy()
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-12)
    v = resilin.tensor([1.0, 2.0], dtype=resilin.float64)
    np.testing.assert_allclose(functional.hvp(fn, x, v)[1].numpy(), hessian @ v.numpy(), rtol=1e-12)
    a, b = 0.3, 0.7
    second = -math.sin(a * a * b) * a**4 + math.exp(b)
    assert hessian[1, 1] == pytest.approx(second)


def test_jacobian_of_several_inputs_and_outputs_is_nested():
    found = functional.jacobian(lambda x, y: (x * y, x.sum()), (resilin.ones(2), resilin.ones(2)))
    assert [[tuple(part.shape) for part in row] for row in found] == [[(2, 2), (2, 2)], [(2,), (2,)]]


def test_gradcheck_finds_a_wrong_gradient():
    class Wrong(Cube):
        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0], None

    with pytest.raises(RuntimeError, match="analytical"):
        gradcheck(lambda t: Wrong.apply(t, 1.0), double(1.0, 2.0))
    assert not gradcheck(lambda t: Wrong.apply(t, 1.0), double(1.0, 2.0), raise_exception=False)


class CubeInTwoParts(Function):
    @staticmethod
    def forward(x, scale):
        return x * x * x * scale, x * 0

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x, output[0])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _none):
        x, _ = ctx.saved_tensors
        return g * 3 * x * x * ctx.scale, None


def test_a_function_may_compute_without_context_and_set_it_up_after():
    x = double(1.0, 2.0)
    cubes, constant = CubeInTwoParts.apply(x, 2.0)
    assert cubes.tolist() == [2.0, 16.0]
    assert not constant.requires_grad
    cubes.sum().backward()
    assert x.grad.tolist() == [6.0, 24.0]
    assert gradgradcheck(lambda t: CubeInTwoParts.apply(t, 2.0)[0], x)


def _checkpointed(w):
    return lambda t: checkpoint(lambda s: (s * w).tanh() * w, t)


def test_checkpoint_is_differentiated_as_the_plain_call_to_any_order():
    w, x = double([0.5, 2.0]), double([0.3, -0.4])
    assert resilin.autograd.gradgradcheck(lambda t, v: _checkpointed(v)(t), (x, w))
    values = []
    for y in ((x * w).tanh() * w, _checkpointed(w)(x)):
        first = resilin.autograd.grad(y.sum(), [x, w], create_graph=True)
        second = resilin.autograd.grad((first[0] * first[1]).sum(), [x, w])
        values.append([g.tolist() for g in (*first, *second)])
    assert values[0] == values[1]
    assert w.grad is None


def test_checkpoint_gives_parameters_their_gradients_only_when_asked():
    w, x = double([0.5, 2.0]), double([0.3, -0.4])
    _checkpointed(w)(x).sum().backward(inputs=[x])
    assert x.grad is not None
    assert w.grad is None


def test_a_parameter_used_in_and_outside_a_checkpoint_accumulates_once():
    w, x = double([0.5, 2.0]), double([0.3, -0.4])
    seen = []
    w.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    (_checkpointed(w)(x) + _checkpointed(w)(x) + w).sum().backward()
    assert seen == [w.grad.tolist()]


def test_a_checkpoint_of_constants_takes_and_returns_structures():
    w = double([3.0])
    calls = []

    def fn(given, *, scale):
        calls.append(scale)
        return {"a": [given["x"] * w * w * scale], "b": "text"}

    out = checkpoint(fn, {"x": resilin.ones(1, dtype=resilin.float64)}, scale=2.0, use_reentrant=False)
    assert out["b"] == "text"
    out["a"][0].sum().backward()
    assert (w.grad.item(), calls) == (12.0, [2.0, 2.0])


def test_checkpoints_in_a_checkpoint_and_functions_bring_back_what_they_saved():
    class Square(Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * t

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    def inner(t):
        return Square.apply(t.sin()).exp()

    def outer(t):
        return checkpoint(inner, t.cos()) * checkpoint(inner, t)

    x, y = double([0.3, 0.7]), double([0.3, 0.7])
    checkpoint(outer, x).sum().backward()
    (inner(y.cos()) * inner(y)).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()


def test_a_checkpoint_holds_no_intermediate_result_before_backward():
    alive = []

    def fn(t):
        middle = t.exp()
        alive.append(weakref.ref(middle))
        return middle.tanh().exp().sum()

    x = double([1.0, 2.0])
    loss = checkpoint(fn, x)
    assert alive[0]() is None
    assert all(node is None or node.saved is None for node in (loss.grad_fn, loss.grad_fn.edges[0]))
    loss.backward()
    assert len(alive) == 2


def test_a_write_in_place_inside_a_checkpoint_is_run_again():
    def fn(t):
        y = t * 2
        y.mul_(t)
        y[0] = t[1] * t[1]
        return y.exp()

    x, y = (resilin.tensor([0.5, 0.25], requires_grad=True) for _ in range(2))
    checkpoint(fn, x).sum().backward()
    fn(y).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()


def test_a_checkpoint_says_when_its_function_or_argument_has_changed():
    turns = iter([resilin.Tensor.exp, resilin.Tensor.tanh, resilin.Tensor.exp])
    with pytest.raises(RuntimeError, match="did not do the same when it ran again: forward recorded ExpBackward"):
        checkpoint(lambda t: next(turns)(t), double([1.0])).backward()
    counts = iter([3, 2])
    with pytest.raises(RuntimeError, match=r"recorded [0-9]+ operations in forward, but [0-9]+"):
        checkpoint(lambda t: resilin.stack([t.exp() for _ in range(next(counts))])[0], double([1.0])).backward()
    x = double([1.0]) * 1
    y = checkpoint(lambda t: t.exp(), x)
    with resilin.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="argument has been modified"):
        y.backward()


def test_the_reentrant_checkpoint_refuses_keyword_arguments():
    with pytest.raises(ValueError, match="keyword arguments"):
        checkpoint(lambda t, a: t * a, double([1.0]), use_reentrant=True, a=2)
