"""Transforms of functions: how they compose, what they refuse, what stays in the graph."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import autograd, func, nn
from resilin.core.autograd import vmap as vmap_module
from resilin.core.batching.active import ACTIVE

X = resilin.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], dtype=resilin.float64)


@pytest.fixture
def never_looped(monkeypatch: Any) -> None:
    """Running the mapped function sample by sample is a failure."""

    def fail(self: Any) -> Any:
        raise AssertionError(f"{self.name} went sample by sample")

    monkeypatch.setattr(vmap_module._Mapped, "_one_by_one", fail)


@pytest.mark.usefixtures("never_looped")
def test_gradients_per_sample_of_a_network_come_from_one_pass() -> None:
    resilin.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 5))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    images, classes = resilin.randn(4, 1, 8, 8), resilin.tensor([0, 4, 2, 2])

    def loss(parameters: Any, image: Any, label: Any) -> Any:
        scores = func.functional_call(model, parameters, (image[None],))
        return nn.functional.cross_entropy(scores, label[None])

    found = func.vmap(func.grad(loss), in_dims=(None, 0, 0))(parameters, images, classes)
    for i in range(4):
        single = func.grad(loss)(parameters, images[i], classes[i])
        for name, gradient in single.items():
            np.testing.assert_allclose(found[name][i].numpy(), gradient.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("never_looped")
def test_an_ensemble_runs_as_one_module() -> None:
    resilin.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).double() for _ in range(3)]
    parameters, buffers = func.stack_module_state(models)
    assert all(p.requires_grad and p.is_leaf for p in parameters.values())
    found = func.vmap(lambda p, b: func.functional_call(models[0], (p, b), (X,)))(parameters, buffers)
    for i, model in enumerate(models):
        np.testing.assert_allclose(found[i].detach().numpy(), model(X).detach().numpy(), rtol=1e-12)
    found.sum().backward()
    assert parameters["0.weight"].grad.shape == (3, 4, 3)


@pytest.mark.parametrize("transform", [func.grad, func.jacrev, func.jacfwd])
def test_what_a_transform_gives_can_be_differentiated_by_who_asked(transform: Any) -> None:
    w = X[0].clone().requires_grad_()
    found = transform(lambda x: (x * w).sum() ** 2)(X[1])
    found.sum().backward()
    expected = resilin.autograd.grad((2 * (X[1] * w).sum() * w).sum(), w)[0]
    np.testing.assert_allclose(w.grad.numpy(), expected.numpy())
    with resilin.no_grad():
        assert not transform(lambda x: (x * w).sum() ** 2)(X[1]).requires_grad


def test_two_levels_of_derivatives_are_not_confused() -> None:
    inner_depends_on_outer = func.grad(lambda x: x * func.grad(lambda y: x * y)(resilin.tensor(3.0)))
    assert inner_depends_on_outer(resilin.tensor(5.0)).item() == 10.0
    constant = func.grad(lambda x: x * func.grad(lambda y: x + y)(resilin.tensor(3.0)))
    assert constant(resilin.tensor(5.0)).item() == 1.0


def test_gradients_flow_through_a_vmapped_function_to_what_all_samples_share() -> None:
    w = X[0].clone().requires_grad_()
    func.vmap(lambda x: (x * w).sin().sum())(X).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), (X * (X * w).cos()).sum(0).detach().numpy())


def test_a_vmapped_function_writes_in_place_where_memory_is_its_own() -> None:
    def shifted(x: Any) -> Any:
        made = resilin.zeros_like(x)
        made[1:] = x[:-1]
        made.add_(1).mul_(x)
        return made

    expected = resilin.stack([shifted(x) for x in X])
    assert resilin.equal(func.vmap(shifted)(X), expected)
    shared = resilin.zeros(3, dtype=resilin.float64)
    with pytest.raises(RuntimeError, match="shared by all samples"):
        func.vmap(lambda x: shared.add_(x))(X)
    assert shared.tolist() == [0.0, 0.0, 0.0]


def test_samples_draw_alike_or_each_for_itself_or_not_at_all() -> None:
    ones = resilin.ones(8, 50)
    drop = nn.functional.dropout
    with pytest.raises(RuntimeError, match="randomness error mode"):
        func.vmap(drop)(ones)
    same = func.vmap(drop, randomness="same")(ones)
    assert all(resilin.equal(row, same[0]) for row in same)
    different = func.vmap(drop, randomness="different")(ones)
    assert not any(resilin.equal(row, different[0]) for row in different[1:])
    chunked = func.vmap(drop, randomness="same", chunk_size=3)(ones)
    assert all(resilin.equal(row, chunked[0]) for row in chunked)
    with pytest.raises(RuntimeError, match="'error', 'different', or 'same'"):
        func.vmap(drop, randomness="often")


def test_a_function_without_rules_goes_sample_by_sample() -> None:
    found = func.vmap(lambda x: resilin.sort(x).values.unique() * 1.0)(X)
    assert resilin.equal(found, resilin.sort(X).values)
    nested = func.vmap(func.vmap(lambda x: x.reshape(1).sort().values))(X)
    assert resilin.equal(nested, X[..., None])


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: func.vmap(lambda x: x.item())(X[0]), RuntimeError, r"item\(\)"),
        (lambda: func.vmap(lambda x: x if x.sum() > 0 else -x)(X), RuntimeError, "truth value"),
        (lambda: func.vmap(lambda x: x.numpy())(X), RuntimeError, "cannot leave the function"),
        (lambda: func.vmap(lambda x: 3)(X), ValueError, "must only return Tensors, got type int"),
        (lambda: func.vmap(lambda x: x, in_dims=2)(X), ValueError, "-2 <= in_dim < 2"),
        (lambda: func.vmap(lambda x: x, in_dims=(0, 0))(X), ValueError, "structure"),
        (lambda: func.vmap(lambda x, y: x)(X, X[0]), ValueError, "same size in the mapped dimension"),
        (lambda: func.vmap(lambda x: x, in_dims=None)(X), ValueError, "at least one input must be mapped"),
        (lambda: func.vmap(lambda x: x, in_dims="0")(X), ValueError, "expected `in_dims` to be int or a tuple"),
        (lambda: func.vmap(lambda x: x)(), ValueError, "got no inputs"),
        (lambda: func.vmap(lambda x: x)(3), ValueError, "non-Tensor arguments"),
        (lambda: func.vmap(lambda x: x, out_dims=4)(X), IndexError, "Dimension out of range"),
        (lambda: func.vmap(lambda x: x, out_dims=None)(X), ValueError, "BatchedTensor when out_dim is None"),
        (lambda: func.vmap(lambda x: x, out_dims=0.5)(X), ValueError, "must be an int, None or a nested structure"),
        (lambda: func.vmap(lambda x: x, chunk_size=0), ValueError, "greater than 0"),
        (lambda: func.vmap(lambda x: x[x > 0.3])(X), RuntimeError, "different shapes"),
        (lambda: func.vmap(lambda x: x + resilin.ones(5))(X), RuntimeError, "cannot be broadcast"),
        (lambda: func.vmap(lambda x: x.backward())(X), RuntimeError, "not supported"),
        (lambda: func.grad(lambda x: x)(X), RuntimeError, "scalar tensor, got 2 dims"),
        (lambda: func.grad(lambda x: 3.0)(X), RuntimeError, "return a Tensor, got float"),
        (lambda: func.grad(lambda x: x.sum())(resilin.tensor([1])), RuntimeError, "floating point or complex"),
        (lambda: func.grad(lambda x: x.sum(), argnums=1)(X), RuntimeError, "argnum=1, but only 1 positional"),
        (lambda: func.grad(lambda x: x.sum(), argnums=())(X), RuntimeError, "non-empty"),
        (lambda: func.grad(lambda x: x.sum(), has_aux=True)(X), RuntimeError, "has_aux is True"),
        (lambda: func.vjp(lambda x: x, X)[1]((X, X)), RuntimeError, "structure"),
        (lambda: func.vjp(lambda x: x, X)[1](X[0]), RuntimeError, r"shape \(3,\), output has \(2, 3\)"),
        (lambda: func.jvp(lambda x: x, X, X), RuntimeError, "primals to be a tuple"),
        (lambda: func.jvp(lambda x: x, (X,), (X[0],)), RuntimeError, "its primal has"),
        (lambda: func.jvp(lambda x: X, (X,), (X,), strict=True), RuntimeError, "strict=True"),
        (lambda: func.jacrev(lambda x: 3)(X), RuntimeError, "Tensors only"),
        (lambda: func.stack_module_state([]), RuntimeError, "at least one model"),
        (lambda: func.stack_module_state([nn.ReLU(), nn.Tanh()]), RuntimeError, "same class"),
    ],
)
def test_a_mistake_is_said_at_the_call(make: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        make()
    assert ACTIVE == []  # no vmap is left running


def test_a_tensor_that_outlives_its_vmap_is_named() -> None:
    kept: list[Any] = []
    func.vmap(lambda x: (kept.append(x), x)[1])(X)
    with pytest.raises(RuntimeError, match="escaped"):
        kept[0] + 1


def test_empty_batches_and_empty_tensors_keep_their_shapes() -> None:
    empty = resilin.zeros(0, 3)
    assert func.vmap(lambda x: x.sum() * 2)(empty).shape == (0,)
    assert func.jacrev(lambda x: x * 2)(resilin.zeros(0)).shape == (0, 0)
    assert func.jacfwd(lambda x: x.sum())(resilin.zeros(0)).shape == (0,)
    dots = func.vmap(lambda x, y: (x * y).sum(), in_dims=(0, None))
    assert dots(resilin.ones(2, 0), resilin.ones(0)).tolist() == [0, 0]


def test_batch_normalization_can_forget_its_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    with pytest.raises(RuntimeError, match="shared by all samples"):
        func.vmap(model)(resilin.randn(2, 4, 3))
    assert func.replace_all_batch_norm_modules_(model) is model
    assert model[0].running_mean is None
    parameters = dict(model.named_parameters())
    found = func.vmap(lambda x: func.functional_call(model, parameters, (x,)))(resilin.randn(2, 4, 3))
    assert found.shape == (2, 4, 1)


INDICES = resilin.tensor([[2, 0], [1, 1], [0, 2]])
CHOSEN = {
    "a row": lambda i: X[:, i[0]],
    "rows": lambda i: X[:, i],
    "part of rows": lambda i: X.T[i, 1:],
    "gather": lambda i: X.gather(1, i[None]),
    "index_select": lambda i: X.index_select(1, i),
    "take_along_dim": lambda i: resilin.take_along_dim(X, i[None], 1),
    "embedding": lambda i: nn.functional.embedding(i, X.T),
    "where": lambda i: resilin.where(i > 0, X[:, :2], 0.0),
    "masked_fill": lambda i: X[:, :2].masked_fill(i == 1, 5.0),
    "cross_entropy": lambda i: nn.functional.cross_entropy(X, i),
    "scatter": lambda i: X.scatter(1, i[None], 7.0),
    "index_add": lambda i: X.index_add(1, i, X[:, :2]),
    "written": lambda i: resilin.zeros_like(i) + (~(i > 0) & (i < 2)),
    "sorted": lambda i: i.sort(descending=True).indices + i.topk(1).values,
}


@pytest.mark.usefixtures("never_looped")
@pytest.mark.parametrize("name", sorted(CHOSEN))
def test_indices_that_differ_by_sample_choose_from_what_is_shared(name: str) -> None:
    expected = resilin.stack([CHOSEN[name](i) for i in INDICES])
    assert resilin.allclose(func.vmap(CHOSEN[name])(INDICES).double(), expected.double())
    assert resilin.allclose(func.vmap(CHOSEN[name], in_dims=1, out_dims=-1)(INDICES.T), expected.movedim(0, -1))


def test_vmaps_of_several_threads_do_not_meet() -> None:
    found: list[bool] = []

    def run(number: int) -> None:
        x = resilin.full((20, 4), float(number))
        for _ in range(10):
            found.append(bool((func.vmap(func.grad(lambda a: (a**2).sum()))(x) == 2 * number).all()))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 40


def test_a_function_that_catches_all_exceptions_does_not_hide_what_vmap_needs() -> None:
    def careful(x: Any) -> Any:
        try:
            return x.unique() * 1
        except Exception:  # noqa: BLE001 - what the test is about
            return x * 0

    assert resilin.equal(func.vmap(careful)(X), resilin.sort(X).values)


def test_transforms_go_through_checkpoints() -> None:
    def f(x: Any) -> Any:
        return autograd.checkpoint(lambda a: a.sin().exp(), x).sum()

    for transform in (func.grad, func.hessian):
        plain = transform(lambda x: x.sin().exp().sum())
        assert resilin.allclose(transform(f)(X[0]), plain(X[0]))
        assert resilin.allclose(func.vmap(transform(f))(X), func.vmap(plain)(X))


@pytest.mark.usefixtures("never_looped")
def test_dropout_of_each_sample_is_drawn_at_once() -> None:
    resilin.manual_seed(0)
    w = resilin.ones(50)
    found = func.vmap(
        func.grad(lambda w, x: nn.functional.dropout(x * w).sum()), in_dims=(None, 0), randomness="different"
    )(w, resilin.ones(8, 50))
    assert set(found.reshape(-1).tolist()) == {0.0, 2.0}
    assert not any(resilin.equal(row, found[0]) for row in found[1:])
    rows = func.vmap(lambda x: nn.functional.dropout1d(x), randomness="different")(resilin.ones(4, 2, 30, 2))
    assert resilin.equal(rows[..., 0], rows[..., 1])
    assert not resilin.equal(rows[0], rows[1])


@pytest.mark.parametrize("driver", [None, "gels", "gelsd", "gelss", "gelsy"])
def test_least_squares_of_a_batch_have_the_residuals_of_each_sample(driver: Any) -> None:
    resilin.manual_seed(0)
    a, b = resilin.randn(3, 5, 2, dtype=resilin.float64), resilin.randn(3, 5, 4, dtype=resilin.float64)
    found = func.vmap(lambda a, b: tuple(resilin.linalg.lstsq(a, b, driver=driver)[:2]))(a, b)
    expected = [resilin.linalg.lstsq(a[i], b[i], driver=driver) for i in range(3)]
    for part, number in zip(found, range(2), strict=True):
        np.testing.assert_allclose(part.numpy(), np.stack([one[number].numpy() for one in expected]))
