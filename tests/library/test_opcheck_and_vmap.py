"""`opcheck` and `register_vmap`: what PyTorch 2.13 says of the same operators."""

from collections.abc import Sequence

import numpy as np
import pytest

import resilin as torch
from resilin import Tensor
from resilin.library import Library, custom_op, opcheck, register_vmap, registry
from resilin.library.checking import OpCheckError


@pytest.fixture(autouse=True)
def _forget_operators():
    before = dict(registry.OPERATORS)
    yield
    registry.forget([name for name in registry.OPERATORS if name not in before])


@pytest.fixture
def scaled():
    @custom_op("ours::scaled", mutates_args=())
    def scaled(x: Tensor, a: float) -> Tensor:
        return torch.from_numpy(x.detach().numpy() * a)

    @scaled.register_fake
    def _(x, a):
        return torch.empty_like(x)

    def setup_context(ctx, inputs, output):
        ctx.a = inputs[1]

    scaled.register_autograd(lambda ctx, grad: (grad * ctx.a, None), setup_context=setup_context)
    return scaled


def outcomes(op, *args, **options):
    return opcheck(op, args, raise_exception=False, **options)


def test_an_operator_that_has_everything_passes_all_tests(scaled):
    for x in (torch.randn(3), torch.randn(1, 10, requires_grad=True)):
        found = opcheck(scaled, (x, 3.0))
        assert set(found.values()) == {"SUCCESS"}
        assert list(found) == [
            "test_schema",
            "test_autograd_registration",
            "test_faketensor",
            "test_aot_dispatch_dynamic",
        ]
    assert opcheck(torch.ops.ours.scaled.default, (x, 3.0), test_utils="test_schema") == {"test_schema": "SUCCESS"}


def test_a_write_that_the_schema_does_not_name_fails():
    @custom_op("ours::writes", mutates_args=())
    def writes(x: Tensor) -> Tensor:
        x.numpy()[...] = 7
        return x.clone()

    with pytest.raises(OpCheckError, match="test_schema failed with Argument x is not defined as mutable but was"):
        opcheck(writes, (torch.ones(3),))
    x = torch.ones(3)
    assert isinstance(outcomes(writes, x, test_utils=("test_schema",))["test_schema"], RuntimeError)
    assert x.tolist() == [1.0, 1.0, 1.0]  # copies were given

    @custom_op("ours::fills", mutates_args={"x"})
    def fills(x: Tensor) -> None:
        x.numpy()[...] = 7

    assert outcomes(fills, torch.ones(3), test_utils=["test_schema"]) == {"test_schema": "SUCCESS"}


def test_results_that_share_memory_fail():
    library = Library("theirs", "FRAGMENT")
    library.define("views(Tensor x) -> Tensor")
    library.define("marked(Tensor(a) x) -> Tensor(a)")
    library.define("twins(Tensor x) -> (Tensor, Tensor)")
    library.impl("views", lambda x: x.view(-1), "CPU")
    library.impl("marked", lambda x: x.view(-1), "CPU")
    library.impl("twins", lambda x: (y := x.clone(), y), "CPU")
    x = torch.ones(2, 2)
    found = [outcomes(op, x, test_utils="test_schema")["test_schema"] for op in
             (torch.ops.theirs.views, torch.ops.theirs.marked, torch.ops.theirs.twins)]  # fmt: skip
    said = [str(one) for one in found]
    assert said == [
        "Argument x is not defined to alias output but was aliasing",
        "SUCCESS",
        "Outputs 0 and 1 alias unexpectedly",
    ]


def test_a_kernel_that_records_a_graph_fails():
    library = Library("theirs", "FRAGMENT")
    library.define("recorded(Tensor x) -> Tensor")
    library.impl("recorded", lambda x: x * 2, "CPU")
    with pytest.raises(OpCheckError, match="requires_grad=True but the operator does not have an autograd kernel"):
        opcheck(torch.ops.theirs.recorded, (torch.ones(2, requires_grad=True),))
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: x * 2, "CompositeImplicitAutograd")
    assert set(opcheck(torch.ops.theirs.composite, (torch.ones(2, requires_grad=True),)).values()) == {"SUCCESS"}


def test_a_missing_or_wrong_fake_kernel_fails(scaled):
    @custom_op("ours::without", mutates_args=())
    def without(x: Tensor) -> Tensor:
        return x.clone()

    with pytest.raises(OpCheckError, match="no fake impl registered for ours::without"):
        opcheck(without, (torch.ones(2),))
    without.register_fake(lambda x: x.new_empty(3))
    found = outcomes(without, torch.ones(2))
    assert "by the fake impl resilin.float32 of shape (3,)" in str(found["test_faketensor"])
    assert found["test_schema"] == "SUCCESS"


def test_an_operator_or_gradient_that_is_another_each_time_fails(scaled):
    calls = []
    scaled.register_autograd(lambda ctx, grad: (grad * len(calls), calls.append(0)))
    found = outcomes(scaled, torch.ones(2, requires_grad=True), 2.0)
    assert "gradients of two equal calls differ" in str(found["test_aot_dispatch_dynamic"])


def test_wrong_arguments_of_opcheck_are_refused(scaled):
    x = torch.ones(1)
    for wrong, match in (
        (lambda: opcheck(scaled, (x, 1.0), rtol=1), "must specify both"),
        (lambda: opcheck(scaled, (x, 1.0), test_utils="test_nothing"), "subset"),
        (lambda: opcheck(torch.sin, (x,)), "op must be"),
    ):
        with pytest.raises(ValueError, match=match):
            wrong()


def test_a_vmap_function_gets_the_batch_and_says_where_the_samples_are():
    seen = []

    @custom_op("ours::product", mutates_args=())
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() * y.detach().numpy())

    @register_vmap("ours::product")
    def of_batch(info, in_dims, x, y):
        seen.append((info.batch_size, info.randomness, in_dims))
        x = x.movedim(in_dims[0], -1) if in_dims[0] is not None else x.unsqueeze(-1)
        y = y.movedim(in_dims[1], -1) if in_dims[1] is not None else y.unsqueeze(-1)
        return (x * y).movedim(-1, 0), 0

    x, y = torch.randn(3, 5), torch.randn(3)
    assert torch.equal(torch.vmap(product, in_dims=(1, None))(x, y), (x * y[:, None]).t())
    assert torch.equal(torch.vmap(product, in_dims=(0, 0))(x, x), x * x)
    assert seen == [(5, "error", (0, None)), (3, "error", (0, 0))]
    nested = torch.vmap(torch.vmap(product, in_dims=(0, None)), in_dims=(0, None))(x, torch.tensor(2.0))
    assert torch.equal(nested, x * 2)


def test_several_results_lists_and_gradients_go_through_a_vmap_function():
    @custom_op("ours::cubes", mutates_args=())
    def cubes(xs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        arrays = [x.detach().numpy() for x in xs]
        return torch.from_numpy(arrays[0] ** 3), torch.from_numpy(3 * arrays[1] ** 2)

    @cubes.register_vmap
    def of_batch(info, in_dims, xs):
        assert in_dims == ([0, None],)
        return (xs[0] ** 3, 3 * xs[1] ** 2), (0, None)

    x, y = torch.randn(4, 2), torch.randn(2)
    made, shared = torch.vmap(lambda x: cubes([x, y]), out_dims=(0, None))(x)
    assert torch.allclose(made, x**3)
    assert torch.allclose(shared, 3 * y**2)
    gradients = torch.vmap(torch.func.grad(lambda x: cubes([x, y])[0].sum()))(x)
    assert torch.allclose(gradients, 3 * x**2)


def test_without_a_vmap_function_samples_go_one_by_one():
    sizes = []

    @custom_op("ours::sizes", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        sizes.append(tuple(x.shape))
        return torch.from_numpy(np.asarray(x.detach().numpy() * 2))

    assert torch.vmap(doubled)(torch.ones(2, 3)).tolist() == [[2.0] * 3] * 2
    assert set(sizes) == {(3,)}


def test_a_vmap_function_that_says_no_dimensions_is_refused(scaled):
    scaled.register_vmap(lambda info, in_dims, x, a: x * a)
    with pytest.raises(RuntimeError, match=r"ours::scaled's vmap function: expected a tuple \(output, out_dims\)"):
        torch.vmap(lambda x: scaled(x, 2.0))(torch.ones(2, 3))

    @custom_op("ours::keyword", mutates_args=())
    def keyword(*, x: Tensor) -> Tensor:
        return x.clone()

    with pytest.raises(NotImplementedError, match="kwarg-only Tensor args"):
        keyword.register_vmap(lambda info, in_dims: None)
