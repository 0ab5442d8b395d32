"""What backward does at the edges: threads that meet at a leaf, chosen inputs, retained gradients, odd hooks."""

import inspect
import threading
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.autograd import Function
from resilin.core.autograd.gradcheck import GradcheckError
from resilin.utils import checkpoint


def _x() -> resilin.Tensor:
    return resilin.tensor([1.0, 2.0], requires_grad=True)


def test_backwards_of_several_threads_lose_no_part_of_a_shared_gradient() -> None:
    w = resilin.ones(1_000_000, requires_grad=True)

    def work() -> None:
        for _ in range(15):
            (w * 2).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (w.grad == 120).all()


@pytest.mark.parametrize("create_graph", [False, True])
def test_backward_counts_the_gradient_of_each_chosen_input_once(create_graph: bool) -> None:
    x = _x()
    y = x * 2
    y.retain_grad()
    calls: list[Any] = []
    x.register_post_accumulate_grad_hook(lambda leaf: calls.append(leaf.grad.tolist()))
    y.sum().backward(inputs=[y, x, x, y], create_graph=create_graph)
    assert y.grad.tolist() == [1, 1]
    assert x.grad.tolist() == [2, 2]
    assert calls == [[2, 2]]


def test_backward_into_a_computed_tensor_retains_its_gradient_and_leaves_others_alone() -> None:
    x = _x()
    y = x * 2
    y.sum().backward(inputs=[y])
    assert y.grad.tolist() == [1, 1]
    assert y.retains_grad
    assert x.grad is None


def test_backward_refuses_a_chosen_input_that_requires_no_gradient() -> None:
    with pytest.raises(RuntimeError, match="does not require gradients"):
        (_x() * 2).sum().backward(inputs=[resilin.ones(2)])


@pytest.mark.parametrize("write", [lambda y: y.mul_(3), lambda y: y.view(2, 1).mul_(3), lambda y: y.copy_(y * 3)])
def test_a_retained_gradient_is_that_of_the_value_after_writes_in_place(write: Any) -> None:
    x = _x()
    y = x * 2
    y.retain_grad()
    write(y)
    y.retain_grad()
    y.sum().backward()
    assert y.grad.tolist() == [1, 1]
    assert x.grad.tolist() == [6, 6]


def test_a_backward_after_one_with_create_graph_adds_into_the_same_gradient() -> None:
    x = _x()
    (x**2).sum().backward(create_graph=True)
    before = x.grad
    (x * 2).sum().backward()
    assert x.grad is before
    assert before.tolist() == [4, 6]


def test_leaves_with_equal_gradients_do_not_share_them_after_create_graph() -> None:
    a, b = _x(), _x()
    g = resilin.ones(2)
    (a + b).backward(g, create_graph=True)
    (a * 3).sum().backward()
    assert a.grad.tolist() == [4, 4]
    assert b.grad.tolist() == [1, 1]
    assert g.tolist() == [1, 1]


def test_complex_and_real_gradients_are_not_taken_for_one_another() -> None:
    with pytest.raises(RuntimeError, match="Mismatch in dtype"):
        (_x() * 2).backward(resilin.tensor([1j, 1j]))
    z = resilin.tensor([1 + 1j, 2], requires_grad=True)
    with pytest.raises(RuntimeError, match="Mismatch in dtype"):
        resilin.autograd.grad(z * 2, z, resilin.ones(2))


def test_a_hook_before_a_node_may_take_its_gradient_away() -> None:
    x = _x()
    y = x * 2 * 3
    y.grad_fn.register_prehook(lambda grads: (None,))
    y.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("returned", [5, resilin.ones(2)])
def test_hooks_of_a_node_must_return_a_tuple(returned: Any) -> None:
    for name, hook in (("register_hook", lambda *_: returned), ("register_prehook", lambda *_: returned)):
        y = _x() * 2
        getattr(y.grad_fn, name)(hook)
        with pytest.raises(TypeError, match="expected tuple, but hook returned"):
            y.sum().backward()


def test_a_hook_after_accumulation_that_returns_something_is_told_so() -> None:
    x = _x()
    x.register_post_accumulate_grad_hook(lambda leaf: 5)
    with pytest.raises(TypeError, match="must return None, got int"):
        x.sum().backward()


def test_deleting_a_gradient_is_setting_it_to_none() -> None:
    x = _x()
    x.sum().backward()
    del x.grad
    assert x.grad is None


def test_a_tensor_cannot_be_its_own_gradient() -> None:
    x = _x()
    with pytest.raises(RuntimeError, match="its own grad"):
        x.grad = x


def test_a_function_must_return_the_inputs_that_it_marks_dirty() -> None:
    class Forgetful(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2).clone()

    with pytest.raises(RuntimeError, match="not returned as output"):
        Forgetful.apply(_x() * 1)


def test_an_input_that_a_function_returns_as_not_differentiable_needs_no_gradient() -> None:
    class Constant(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_non_differentiable(x)
            return x

    x = _x()
    y = Constant.apply(x)
    assert not y.requires_grad
    assert y is not x
    assert x.requires_grad


def test_from_dlpack_refuses_a_tensor_that_requires_a_gradient() -> None:
    with pytest.raises(BufferError, match="detach"):
        resilin.from_dlpack(_x())


def test_a_power_with_a_complex_number_has_first_and_second_derivatives() -> None:
    z = resilin.tensor([1 + 1j, 2], dtype=resilin.complex128, requires_grad=True)
    x = resilin.tensor(np.array([0.5, 2.0]), requires_grad=True)
    for base in (z, x):
        assert resilin.autograd.gradcheck(lambda b: b ** (1.5 + 0.5j), base)
        assert resilin.autograd.gradgradcheck(lambda b: b ** (1.5 + 0.5j), base)


@pytest.mark.parametrize("switch", [resilin.no_grad, resilin.inference_mode])
def test_a_decorated_generator_has_its_mode_whenever_it_runs_and_its_caller_never(switch: Any) -> None:
    seen: list[bool] = []

    @switch()
    def numbers() -> Any:
        try:
            given = yield resilin.is_grad_enabled()
            seen.append(given)
            yield resilin.is_grad_enabled()
        except KeyError:
            yield resilin.is_grad_enabled()
        finally:
            seen.append(resilin.is_grad_enabled())

    assert inspect.isgeneratorfunction(numbers)
    running = numbers()
    assert next(running) is False
    assert resilin.is_grad_enabled()
    assert running.send(True) is False
    assert running.throw(KeyError()) is False
    running.close()
    assert seen == [True, False]
    assert resilin.is_grad_enabled()


def test_nothing_is_recorded_in_inference_mode_whatever_is_asked_for_inside() -> None:
    x = _x()
    with resilin.inference_mode():
        with resilin.enable_grad():
            assert not (x * 2).requires_grad
        with resilin.inference_mode(False):
            assert (x * 2).requires_grad
        resilin.set_grad_enabled(True)
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


@pytest.mark.parametrize("flag", ["x", 5, 1.0])
def test_flags_of_autograd_are_bools(flag: Any) -> None:
    for call in (
        lambda: resilin.tensor([1.0], requires_grad=flag),
        lambda: resilin.ones(2, requires_grad=flag),
        lambda: resilin.ones(2).requires_grad_(flag),
        lambda: resilin.set_grad_enabled(flag),
        lambda: resilin.autograd.set_detect_anomaly(flag),
    ):
        with pytest.raises(TypeError, match=f"must be bool, not {type(flag).__name__}"):
            call()
    with pytest.raises(RuntimeError, match="requires_grad must be a bool"):
        resilin.ones(2).requires_grad = flag
    assert resilin.is_grad_enabled()


def test_requires_grad_of_a_computed_tensor_cannot_be_changed() -> None:
    with pytest.raises(RuntimeError, match="only change requires_grad flags of leaf variables"):
        (_x() * 2).requires_grad_(False)


def test_what_set_multithreading_enabled_said_can_be_asked() -> None:
    assert resilin.autograd.is_multithreading_enabled()
    with resilin.autograd.set_multithreading_enabled(False):
        assert not resilin.autograd.is_multithreading_enabled()
    assert resilin.autograd.is_multithreading_enabled()


def test_nodes_show_what_they_saved() -> None:
    x, y = _x(), _x()
    node = (x * y).grad_fn
    assert node._saved_self is x
    assert node._saved_other is y
    result = x.exp()
    assert result.grad_fn._saved_result.tolist() == result.tolist()
    assert not hasattr(node, "_saved_result")
    result.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        _ = result.grad_fn._saved_result


def test_the_node_of_a_function_has_what_its_context_has() -> None:
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            ctx.kept = 3
            return x * 2

    x = _x()
    node = Double.apply(x).grad_fn
    assert node.saved_tensors[0] is x
    assert node.kept == 3
    assert not hasattr(node, "never_kept")


def test_the_trace_of_anomaly_mode_ends_with_the_line_of_the_user() -> None:
    with resilin.autograd.detect_anomaly():
        y = (_x() - 3).sqrt() * 0
        with pytest.raises(RuntimeError) as caught:
            y.sum().backward()
    assert caught.value.__notes__[0].rstrip().endswith("y = (_x() - 3).sqrt() * 0")


def test_a_function_may_be_applied_to_inference_tensors_where_nothing_is_recorded() -> None:
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Any:
            ctx.save_for_backward(*tensors)
            return tensors[0] * 2

    with resilin.inference_mode():
        x = resilin.ones(2)
        assert Double.apply(x).tolist() == [2, 2]
    assert Double.apply(x).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        Double.apply(_x(), x)


def test_an_instance_of_a_function_cannot_be_called() -> None:
    with pytest.raises(RuntimeError, match=r"use Function\.apply"):
        Function()(resilin.ones(2))


def test_inference_tensors_have_no_version() -> None:
    with resilin.inference_mode():
        x = resilin.ones(2)
    with pytest.raises(RuntimeError, match="do not track version counter"):
        _ = x._version
    assert checkpoint.checkpoint(lambda a, b: (a * b.clone()).exp(), _x(), x, use_reentrant=False).shape == (2,)


def test_a_pack_hook_must_not_write_into_what_it_is_given() -> None:
    x = _x().clone()
    hooks = resilin.autograd.graph.saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t)
    with hooks, pytest.raises(RuntimeError, match="pack hook is modifying its input"):
        x.exp()


def test_a_checkpoint_takes_the_context_function_that_does_nothing() -> None:
    x = _x()
    with checkpoint.set_checkpoint_debug_enabled(True):
        y = checkpoint.checkpoint(lambda a: a**3, x, use_reentrant=False, context_fn=checkpoint.noop_context_fn)
    y.sum().backward()
    assert x.grad.tolist() == [3, 12]


def test_tensors_tell_what_they_are_views_of_and_which_hooks_they_have() -> None:
    x = _x()
    assert x._base is None
    assert not x._is_view()
    assert x[:1]._base is x
    assert x[:1]._is_view()
    assert x._backward_hooks is None
    assert x._post_accumulate_grad_hooks is None
    x.register_hook(lambda g: None)
    x.register_post_accumulate_grad_hook(lambda leaf: None)
    assert len(x._backward_hooks) == len(x._post_accumulate_grad_hooks) == 1
    assert x.grad_dtype == resilin.float32
    with pytest.raises(RuntimeError, match="leaf"):
        _ = (x * 2).grad_dtype


class _Two(Function):
    """Two outputs, whose backward has to do without one of the gradients."""

    absent: Any = None

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @classmethod
    def backward(cls, ctx: Any, a: Any, b: Any) -> Any:  # type: ignore[override]
        if cls.absent is not None and (a is None or b is None):
            return (a if b is None else b) * cls.absent
        return a * 2 + b * 3


def test_gradcheck_finds_functions_that_cannot_do_without_the_gradient_of_an_output() -> None:
    class Wrong(_Two):
        absent = 7

    x = resilin.ones(2, dtype=resilin.float64, requires_grad=True)
    for function, message in ((_Two, "handle undefined output grads"), (Wrong, "other gradients than zeros")):
        with pytest.raises(GradcheckError, match=message):
            resilin.autograd.gradcheck(function.apply, x)
        assert resilin.autograd.gradcheck(function.apply, x, check_undefined_grad=False)


def test_gradcheck_refuses_inputs_that_it_cannot_vary() -> None:
    stretched = resilin.ones(1, dtype=resilin.float64).expand(3).requires_grad_()
    with pytest.raises(RuntimeError, match="stride 0"):
        resilin.autograd.gradcheck(lambda x: x * 2, stretched)
    for inputs in (5, (5, resilin.ones(2))):
        with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
            resilin.autograd.gradcheck(lambda *x: x, inputs)


def test_grad_takes_pytorchs_arguments_by_position() -> None:
    x, unused = _x(), _x()
    found = resilin.autograd.grad(x.sum(), (x, unused), None, None, False, True, True)
    assert found[1] is None
    np.testing.assert_array_equal(found[0].numpy(), [1, 1])


def test_grad_warns_that_it_ignores_only_inputs() -> None:
    x = _x()
    with pytest.warns(FutureWarning, match="only_inputs is ignored"):
        resilin.autograd.grad(x.sum(), x, only_inputs=False)


def test_backward_takes_gradients_under_their_old_name_with_a_warning() -> None:
    x = _x()
    with pytest.warns(FutureWarning, match="give grad_tensors"):
        resilin.autograd.backward([x * 2], grad_variables=[resilin.tensor([1.0, 3.0])])
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), [2, 6])
    with pytest.raises(RuntimeError, match="got both"):
        resilin.autograd.backward([x * 2], [resilin.ones(2)], grad_variables=[resilin.ones(2)])


def test_a_function_may_call_its_backward_vjp_but_not_have_both() -> None:
    class Times(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 7

        @staticmethod
        def vjp(ctx: Any, g: Any) -> Any:
            return g * 7

    class Both(Times):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    x = _x()
    Times.apply(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), [7, 7])
    with pytest.raises(RuntimeError, match="both 'backward' and 'vjp'"):
        Both.apply(x).sum().backward()
