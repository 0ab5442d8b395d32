"""`autograd.functional`: derivatives of simple functions against their formulas, strict mode, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.autograd import functional as AF

X = resilin.tensor([1.0, 2.0, 3.0], dtype=resilin.float64)
Y = resilin.tensor([0.5, -1.0, 2.0], dtype=resilin.float64)


def _cubes(x: Any) -> Any:
    return (x**3).sum()


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_both_strategies_give_the_jacobian_of_every_output_and_input(strategy: str) -> None:
    def both(x: Any, y: Any) -> Any:
        return x * y, (x * x).reshape(3, 1) + y[:2]

    found = AF.jacobian(both, (X, Y), vectorize=True, strategy=strategy)
    x, y = X.numpy(), Y.numpy()
    np.testing.assert_allclose(found[0][0].numpy(), np.diag(y))
    np.testing.assert_allclose(found[0][1].numpy(), np.diag(x))
    squares = np.zeros((3, 2, 3))
    squares[range(3), :, range(3)] = 2 * x[:, None]
    np.testing.assert_allclose(found[1][0].numpy(), squares)
    np.testing.assert_allclose(found[1][1].numpy(), np.broadcast_to(np.eye(3)[:2], (3, 2, 3)))


def test_a_jacobian_can_be_differentiated_again() -> None:
    x = X.clone().requires_grad_()
    AF.jacobian(lambda a: a**3, x, create_graph=True).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * X.numpy())


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_a_hessian_has_a_block_per_pair_of_inputs(strategy: str) -> None:
    found = AF.hessian(lambda x, y: (x * x * y).sum(), (X, Y), vectorize=True, outer_jacobian_strategy=strategy)
    np.testing.assert_allclose(found[0][0].numpy(), np.diag(2 * Y.numpy()))
    np.testing.assert_allclose(found[0][1].numpy(), np.diag(2 * X.numpy()))
    np.testing.assert_allclose(found[1][1].numpy(), np.zeros((3, 3)))


@pytest.mark.parametrize("product", [AF.vhp, AF.hvp])
def test_products_with_the_hessian(product: Any) -> None:
    value, found = product(_cubes, X, Y)
    assert value.item() == 36
    np.testing.assert_allclose(found.numpy(), 6 * X.numpy() * Y.numpy())


def test_products_with_the_jacobian_from_both_sides() -> None:
    matrix = resilin.arange(6.0, dtype=resilin.float64).reshape(2, 3)
    np.testing.assert_allclose(AF.jvp(lambda x: matrix @ x, X, Y)[1].numpy(), matrix.numpy() @ Y.numpy())
    np.testing.assert_allclose(AF.vjp(lambda x: matrix @ x, X, Y[:2])[1].numpy(), Y.numpy()[:2] @ matrix.numpy())


def test_an_output_that_depends_on_nothing_has_a_jacobian_of_zeros_unless_strict() -> None:
    assert AF.jacobian(lambda x: resilin.ones(2), X).tolist() == [[0.0] * 3] * 2
    with pytest.raises(RuntimeError, match=r"jacobian: output 0 .* does not require gradients"):
        AF.jacobian(lambda x: resilin.ones(2), X, strict=True)
    with pytest.raises(RuntimeError, match="vjp: the function is independent of input 1"):
        AF.vjp(lambda x, y: x.sum(), (X, Y), strict=True)
    with pytest.raises(RuntimeError, match="hessian: the derivative is independent of input 0"):
        AF.hessian(lambda x: x.sum(), X, strict=True)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: AF.jacobian(_cubes, [X]), TypeError, "jacobian: inputs must be a Tensor or a tuple .* got list"),
        (lambda: AF.jacobian(_cubes, (X, 1)), TypeError, "got int at position 1"),
        (lambda: AF.jacobian(lambda x: 3, X), TypeError, "the outputs of the function must be .* got int"),
        (lambda: AF.jacobian(_cubes, X, strategy="sideways"), ValueError, "strategy .* got 'sideways'"),
        (lambda: AF.jacobian(_cubes, X, strategy="forward-mode"), NotImplementedError, "vectorize=True"),
        (lambda: AF.jacobian(_cubes, X, strict=True, vectorize=True), RuntimeError, "not supported together"),
        (lambda: AF.hessian(lambda x: x, X), RuntimeError, r"hessian: .* single element, got shape \(3,\)"),
        (lambda: AF.hessian(lambda x: (x.sum(),), X), RuntimeError, "hessian: .* single Tensor"),
        (lambda: AF.hvp(_cubes, X), RuntimeError, "hvp: v can be None only where the function's input"),
        (lambda: AF.vhp(_cubes, X, Y[:2]), RuntimeError, r"vhp: v\[0\] has shape \(2,\), expected \(3,\)"),
        (lambda: AF.jvp(lambda a, b: a, (X, Y), X), RuntimeError, "jvp: v has 1 tensors, expected 2"),
    ],
)
def test_a_wrong_call_says_which_function_expected_what(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
