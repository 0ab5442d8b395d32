"""Operators of programs: schemas, kernels by device, gradients, and `ops.NAMESPACE.NAME`. Facts are PyTorch 2.13's."""

from collections.abc import Sequence

import numpy as np
import pytest

import resilin as torch
from resilin import Tensor
from resilin.autograd import gradcheck
from resilin.library import Library, custom_op, define, impl, infer_schema, register_autograd, registry


@pytest.fixture(autouse=True)
def _forget_operators():
    before = dict(registry.OPERATORS)
    yield
    registry.forget([name for name in registry.OPERATORS if name not in before])


@pytest.fixture
def scaled_sin():
    @custom_op("ours::scaled_sin", mutates_args=())
    def scaled_sin(x: Tensor, a: float = 1.0) -> Tensor:
        """Sine by numpy."""
        return torch.from_numpy(np.sin(x.detach().numpy()) * a)

    return scaled_sin


def with_gradient(op):
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.a, ctx.needs = inputs[1], ctx.needs_input_grad

    def backward(ctx, grad):
        assert ctx.needs == ctx.needs_input_grad == (True, False)
        return grad * ctx.saved_tensors[0].cos() * ctx.a, None

    op.register_autograd(backward, setup_context=setup_context)
    return op


def test_a_custom_op_runs_its_function_by_both_names(scaled_sin):
    x = torch.tensor([0.5, 1.0])
    assert torch.allclose(scaled_sin(x, a=2.0), x.sin() * 2)
    assert torch.allclose(torch.ops.ours.scaled_sin(x), x.sin())
    assert torch.allclose(torch.ops.ours.scaled_sin.default(x, 3.0), x.sin() * 3)
    assert (scaled_sin.__doc__, scaled_sin._qualname) == ("Sine by numpy.", "ours::scaled_sin")
    assert "scaled_sin" in dir(torch.ops.ours)


def test_its_formula_makes_its_gradient(scaled_sin):
    with_gradient(scaled_sin)
    x = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: scaled_sin(x, 2.0), (x,))
    assert not scaled_sin(x.detach()).requires_grad
    with torch.no_grad():
        assert not scaled_sin(x).requires_grad


def test_without_a_formula_backward_says_so(scaled_sin):
    y = scaled_sin(torch.ones(2, requires_grad=True))
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=r"ours::scaled_sin but no autograd formula"):
        y.sum().backward()


def test_lists_of_tensors_go_in_and_out():
    @custom_op("ours::powers", mutates_args=())
    def powers(xs: Sequence[Tensor], n: int, *, shift: float = 0.0) -> list[Tensor]:
        return [x**n + shift for x in xs]

    def setup_context(ctx, inputs, keyword_only_inputs, output):
        ctx.save_for_backward(*inputs[0])
        ctx.n = inputs[1]
        assert keyword_only_inputs == {"shift": 1.0}

    def backward(ctx, grads):
        assert ctx.needs_input_grad == ([True, False], False)
        return [g * ctx.n * x ** (ctx.n - 1) for g, x in zip(grads, ctx.saved_tensors, strict=True)], None

    powers.register_autograd(backward, setup_context=setup_context)
    x = torch.tensor([2.0], requires_grad=True)
    made = powers([x, torch.tensor([3.0])], 3, shift=1.0)
    assert [y.item() for y in made] == [9.0, 28.0]
    (made[0] * 2).sum().backward()
    assert x.grad.tolist() == [24.0]


def test_several_results_each_have_a_gradient():
    @custom_op("ours::both", mutates_args=())
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    both.register_autograd(lambda ctx, a, b: a * 2 + b * 3)
    x = torch.ones(2, requires_grad=True)
    a, b = both(x)
    (a + b * 10).sum().backward()
    assert x.grad.tolist() == [32.0, 32.0]


def test_a_gradient_too_few_is_refused(scaled_sin):
    scaled_sin.register_autograd(lambda ctx, grad: grad)
    with pytest.raises(RuntimeError, match="return 2 gradients"):
        scaled_sin(torch.ones(1, requires_grad=True)).sum().backward()


def test_what_is_written_to_is_counted_and_has_no_formula():
    @custom_op("ours::fill", mutates_args={"x"})
    def fill(x: Tensor, value: float) -> None:
        x.numpy()[...] = value

    x = torch.zeros(2)
    assert fill(x, 3.0) is None
    assert (x.tolist(), x._version) == ([3.0, 3.0], 1)
    with pytest.raises(RuntimeError, match="non-functional operator"):
        fill.register_autograd(lambda ctx, grad: None)


def test_a_result_that_is_an_input_is_refused():
    @custom_op("ours::same", mutates_args=())
    def same(x: Tensor) -> Tensor:
        return x.view(-1)

    with pytest.raises(RuntimeError, match="may not alias"):
        same(torch.ones(2))


def test_kernels_are_chosen_by_device_and_a_missing_one_says_what_there_is():
    @custom_op("ours::on_cuda", mutates_args=(), device_types="cuda")
    def on_cuda(x: Tensor) -> Tensor:
        return x.clone()

    with pytest.raises(NotImplementedError, match=r"'CPU' backend.*cuda"):
        on_cuda(torch.ones(1))
    on_cuda.register_kernel("cpu")(lambda x: x + 1)
    assert on_cuda(torch.ones(1)).tolist() == [2.0]
    with on_cuda.set_kernel_enabled("cpu", enabled=False), pytest.raises(NotImplementedError):
        on_cuda(torch.ones(1))


def test_wrong_arguments_name_the_schema(scaled_sin):
    with pytest.raises(RuntimeError, match=r"ours::scaled_sin\(Tensor x, float a=1.0\) -> Tensor.*'b'"):
        scaled_sin(torch.ones(1), b=3)


def test_a_librarys_operators_are_recorded_unless_they_have_a_formula():
    library = Library("theirs", "DEF")
    try:
        assert library.define("twice(Tensor x, float a=2.0) -> Tensor") == "twice"
        with pytest.raises(NotImplementedError, match="Could not run 'theirs::twice'"):
            torch.ops.theirs.twice(torch.ones(1))
        library.impl("twice", lambda x, a: x * a, "CPU")
        x = torch.ones(2, requires_grad=True)
        torch.ops.theirs.twice(x, 3.0).sum().backward()
        assert x.grad.tolist() == [3.0, 3.0]
        register_autograd("theirs::twice", lambda ctx, grad: (grad * 7, None))
        torch.ops.theirs.twice(x).sum().backward()
        assert x.grad.tolist() == [10.0, 10.0]

        @impl(library, "twice", "Autograd")
        def twice(x, a):
            return x * 100

        assert torch.ops.theirs.twice(x).tolist() == [100.0, 100.0]
        for wrong in (
            lambda: library.define("twice(Tensor x) -> Tensor"),
            lambda: library.impl("nothing", twice, "CPU"),
            lambda: library.impl("twice", twice, "CPU"),
            lambda: Library("theirs", "DEF"),
        ):
            with pytest.raises(RuntimeError):
                wrong()
    finally:
        library._destroy()
    with pytest.raises(AttributeError, match="'theirs' object has no attribute 'twice'"):
        torch.ops.theirs.twice  # noqa: B018


def test_define_and_impl_are_functions_too():
    define("more::plus", "(Tensor x, *, int n=1) -> Tensor")

    @impl("more::plus", "default")
    def plus(x, *, n):
        return x + n

    assert torch.ops.more.plus(torch.ones(1), n=2).tolist() == [3.0]
    assert plus(torch.ones(1), n=0).tolist() == [1.0]


def test_a_schema_is_made_of_annotations():
    def f(
        x: Tensor,
        y: Sequence[Tensor],
        z: Tensor | None,
        i: int,
        k: list[int],
        s: str = "a",
        b: bool = True,
        d: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    expected = (
        '(Tensor x, Tensor[] y, Tensor? z, SymInt i, SymInt[] k, str s="a", bool b=True, ScalarType? d=None) -> '
        "(Tensor, Tensor)"
    )
    assert infer_schema(f, mutates_args=()) == expected
    assert "Tensor(a0!) x" in infer_schema(f, mutates_args={"x"})
    with pytest.raises(ValueError, match="Parameter x must have a type annotation"):
        infer_schema(lambda x: x, mutates_args=())


def test_aten_is_what_resilin_has_of_it():
    x = torch.ones(2)
    assert torch.ops.aten.add.Tensor(x, x).tolist() == [2.0, 2.0]
    assert torch.ops.aten.relu.default(-x).tolist() == [0.0, 0.0]
    assert torch.ops.aten.mul(x, 3).tolist() == [3.0, 3.0]
    for missing in (lambda: torch.ops.aten.nothing, lambda: torch.ops.torchvision.nms, lambda: torch.ops.aten.add.out):
        with pytest.raises(AttributeError):
            missing()
    with pytest.raises(OSError, match="cannot be loaded"):
        torch.ops.load_library("lib.so")


def test_a_class_may_take_an_operators_call_over(scaled_sin):
    class Like:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func.__name__, len(args)

    assert scaled_sin(Like()) == ("ours.scaled_sin", 1)
