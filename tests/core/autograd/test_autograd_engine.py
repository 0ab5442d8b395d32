"""Backward: accumulation, order, hooks, freeing, errors."""

import gc
import weakref

import numpy as np
import pytest

import resilin
from resilin.core.autograd import engine
from resilin.core.ops.registry import OPS
from resilin.core.tensor import Parameter


def leaf(*values):
    return resilin.tensor(values, requires_grad=True)


def test_gradients_of_several_uses_are_summed():
    x = leaf(1.0, 2.0)
    (x * x + 3 * x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [5.0, 7.0])


def test_a_second_backward_adds_to_the_same_gradient_tensor():
    x = leaf(1.0, 2.0)
    (x * 2).sum().backward()
    first = x.grad
    (x * 2).sum().backward()
    assert x.grad is first
    np.testing.assert_allclose(first.numpy(), [4.0, 4.0])


def test_two_leaves_that_get_the_same_gradient_do_not_share_its_memory():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (x + y).sum().backward()
    x.grad.zero_()
    np.testing.assert_allclose(y.grad.numpy(), [1.0, 1.0])


def test_the_gradient_given_to_backward_is_not_taken_as_the_leafs_own():
    x = leaf(1.0, 2.0)
    g = resilin.tensor([1.0, 2.0])
    (x + 0).backward(g)
    x.grad.zero_()
    np.testing.assert_allclose(g.numpy(), [1.0, 2.0])


def test_a_fresh_gradient_becomes_the_leafs_own_without_a_copy(monkeypatch):
    impl = OPS["conv2d"].impls["cpu"]
    rule, addresses = impl.vjp, []

    def watched(*args):
        parts = rule(*args)
        addresses.append(parts[1].__array_interface__["data"][0])
        return parts

    monkeypatch.setattr(impl, "vjp", watched)
    w = Parameter(resilin.ones(3, 2, 2, 2))
    resilin.nn.functional.conv2d(resilin.ones(2, 2, 4, 4), w).sum().backward()
    assert addresses == [w.grad.data_ptr()]


def test_the_first_gradient_lands_in_the_slot_and_the_next_ones_too():
    w = Parameter(resilin.ones(3))
    slot = np.full(3, 9.0, np.float32)
    w._grad_slot = slot
    (w * 2).sum().backward()
    (w * 3).sum().backward()
    assert w.grad._array is slot
    np.testing.assert_allclose(slot, 5.0)


def test_a_non_scalar_without_gradient_is_refused():
    with pytest.raises(RuntimeError, match="scalar outputs"):
        (leaf(1.0, 2.0) * 2).backward()


def test_backward_without_any_leaf_is_refused():
    with pytest.raises(RuntimeError, match="does not require grad"):
        resilin.ones(3).sum().backward()


def test_a_second_walk_needs_retain_graph():
    x = leaf(1.0, 2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), [4.0, 8.0])
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_saved_tensors_are_dropped_while_backward_walks():
    x = leaf(1.0, 2.0)
    hidden = x.exp()
    gone = weakref.ref(hidden)
    y = (hidden * hidden).sum()
    del hidden
    gc.collect()
    assert gone() is not None
    y.backward()
    assert gone() is None


def test_a_graph_that_is_never_walked_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        hidden = leaf(1.0, 2.0).exp().sigmoid()
        gone = weakref.ref(hidden)
        del hidden
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_graph_of_a_hundred_thousand_nodes_needs_no_recursion():
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y + 1
    y.backward()
    assert x.grad.item() == 1.0
    del y


def test_a_hook_sees_and_replaces_the_gradient():
    x = leaf(1.0, 2.0)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    handle = x.register_hook(lambda g: g * 10)
    y.sum().backward()
    handle.remove()
    assert seen == [[1.0, 1.0]]
    np.testing.assert_allclose(x.grad.numpy(), [20.0, 20.0])


def test_a_leafs_hook_sees_the_sum_of_all_its_uses_once():
    x = leaf(1.0)
    seen = []
    x.register_hook(lambda g: seen.append(g.item()))
    (x * 2 + x * 3).backward()
    assert seen == [5.0]


def test_post_accumulate_hooks_run_in_the_order_gradients_become_final():
    first, second = leaf(1.0), leaf(1.0)
    order = []
    first.register_post_accumulate_grad_hook(lambda t: order.append(("first", t.grad.item())))
    second.register_post_accumulate_grad_hook(lambda t: order.append(("second", t.grad.item())))
    y = first * 2
    (y * second * second).backward()
    assert order == [("second", 4.0), ("first", 2.0)]


def test_a_post_accumulate_hook_may_clear_the_gradient():
    x = leaf(1.0)
    x.register_post_accumulate_grad_hook(lambda t: setattr(t, "grad", None))
    (x * 2).backward()
    assert x.grad is None


def test_post_accumulate_hooks_are_for_leaves():
    with pytest.raises(RuntimeError, match="non-leaf"):
        (leaf(1.0) * 2).register_post_accumulate_grad_hook(print)


def test_a_queued_callback_runs_once_at_the_end_of_backward():
    x = leaf(1.0)
    order = []

    def hook(t):
        engine.queue_callback(lambda: order.append("callback"))
        order.append("hook")

    x.register_post_accumulate_grad_hook(hook)
    (x * 2).backward()
    assert order == ["hook", "callback"]
    with pytest.raises(RuntimeError, match="no backward is running"):
        engine.queue_callback(print)


def test_an_error_in_a_hook_leaves_the_engine_usable():
    x = leaf(1.0)
    handle = x.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (x * 2).backward()
    handle.remove()
    (x * 2).backward()
    assert x.grad.item() == 2.0
    assert resilin.is_grad_enabled()


def test_retain_grad_keeps_the_gradient_of_a_computed_tensor():
    x = leaf(1.0, 2.0)
    y = x * 3
    y.retain_grad()
    (y * y).sum().backward()
    np.testing.assert_allclose(y.grad.numpy(), [6.0, 12.0])


def test_grad_returns_gradients_and_touches_no_leaf():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    gx, gy = resilin.autograd.grad((x * y).sum(), (x, y))
    np.testing.assert_allclose(gx.numpy(), [3.0, 4.0])
    np.testing.assert_allclose(gy.numpy(), [1.0, 2.0])
    assert x.grad is None


def test_grad_reaches_computed_tensors():
    x = leaf(1.0, 2.0)
    hidden = x * 3
    (g,) = resilin.autograd.grad((hidden * hidden).sum(), hidden)
    np.testing.assert_allclose(g.numpy(), [6.0, 12.0])


def test_an_unused_input_is_an_error_unless_allowed():
    x, y = leaf(1.0), leaf(2.0)
    with pytest.raises(RuntimeError, match="not have been used"):
        resilin.autograd.grad(x * 2, (x, y))
    assert resilin.autograd.grad(x * 2, (x, y), allow_unused=True)[1] is None
    assert resilin.autograd.grad(x * 2, (x, y), materialize_grads=True)[1].item() == 0.0


def test_create_graph_gives_third_derivatives():
    x = leaf(2.0)
    first = resilin.autograd.grad(x**4, x, create_graph=True)[0]
    second = resilin.autograd.grad(first, x, create_graph=True)[0]
    (third,) = resilin.autograd.grad(second, x)
    assert third.item() == pytest.approx(48.0)


def test_backward_with_inputs_accumulates_into_these_only():
    x, y = leaf(1.0), leaf(2.0)
    (x * y).backward(inputs=[x])
    assert x.grad.item() == 2.0
    assert y.grad is None


def test_broadcast_and_promoted_inputs_get_gradients_of_their_own_shape_and_dtype():
    x = resilin.ones(3, 1, requires_grad=True)
    y = resilin.ones(4, dtype=resilin.float64, requires_grad=True)
    (x * y).sum().backward()
    assert (x.grad.shape, x.grad.dtype) == ((3, 1), resilin.float32)
    assert (y.grad.shape, y.grad.dtype) == ((4,), resilin.float64)
    np.testing.assert_allclose(x.grad.numpy(), 4.0)


def test_only_the_used_output_of_a_split_contributes():
    x = resilin.arange(6.0).requires_grad_()
    a, _, c = (x * 1).split(2)
    (a.sum() + (c * c).sum()).backward()
    np.testing.assert_allclose(x.grad.numpy(), [1, 1, 0, 0, 8, 10])


def test_backward_is_bit_equal_when_repeated():
    def run():
        resilin.manual_seed(3)
        x = resilin.randn(64, 64, requires_grad=True)
        ((x @ x).tanh() @ x).softmax(1).log().sum().backward()
        return x.grad.numpy().tobytes()

    assert run() == run()


def test_anomaly_mode_names_the_forward_call_of_a_nan():
    x = leaf(0.0)
    with resilin.autograd.detect_anomaly():
        y = (x.sqrt() * 0).sum()
        with pytest.raises(RuntimeError, match="returned nan values") as caught:
            y.backward()
    assert "test_autograd_engine.py" in "".join(caught.value.__notes__)


def test_nothing_is_recorded_under_no_grad_also_as_decorator():
    x = leaf(1.0)
    with resilin.no_grad():
        assert not (x * 2).requires_grad
        with resilin.enable_grad():
            assert (x * 2).requires_grad

    @resilin.no_grad()
    def double(t):
        return t * 2

    assert not double(x).requires_grad
    with resilin.inference_mode():
        assert resilin.is_inference_mode_enabled()
        assert not (x * 2).requires_grad
    with resilin.set_grad_enabled(False):
        assert not resilin.is_grad_enabled()
    assert resilin.is_grad_enabled()


def test_retain_grad_keeps_what_hooks_made_of_the_gradient_once():
    x = resilin.tensor([1.0], requires_grad=True)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert (y.grad.item(), x.grad.item()) == (10.0, 20.0)


@pytest.mark.parametrize("leave", [lambda x: x.detach_(), lambda x: x.requires_grad_(False)])
def test_a_leaf_that_left_the_graph_gets_no_gradient(leave):
    x, w = resilin.ones(2, requires_grad=True), resilin.ones(2, requires_grad=True)
    y = (x * w).sum()
    leave(x)
    y.backward()
    assert x.grad is None
    assert w.grad.tolist() == [1, 1]
