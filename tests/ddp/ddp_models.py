"""What several tests of DistributedDataParallel share: a small model, batches, and gradients of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin import nn
from resilin.core.tensor import Tensor

IN, HIDDEN, OUT, BATCH = 6, 8, 3, 4

Loss = Callable[[nn.Module, Tensor], Tensor]


def tensor(array: Any) -> Tensor:
    return Tensor._wrap(np.asarray(array, np.float32))


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUT))


def copies(module: nn.Module, count: int) -> list[Any]:
    """`count` modules that start equal; `module` itself is left alone."""
    return [copy.deepcopy(module) for _ in range(count)]


def batches(count: int, seed: int = 0) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [tensor(rng.standard_normal((BATCH, IN))) for _ in range(count)]


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) ** 2).mean()


def gradients(model: nn.Module) -> list[np.ndarray | None]:
    return [None if param.grad is None else param.grad.numpy().copy() for param in model.parameters()]


def values(model: nn.Module) -> list[np.ndarray]:
    return [each.detach().numpy().copy() for each in model.state_dict().values()]


def mean_gradients(model: nn.Module, inputs: Sequence[Tensor], loss: Loss = loss_of) -> list[np.ndarray | None]:
    """Of the mean loss over all ranks' batches, in one process."""
    (alone,) = copies(model, 1)
    alone.zero_grad()
    for x in inputs:
        (loss(alone, x) / len(inputs)).backward()
    return gradients(alone)


def assert_close(got: Sequence[Any], expected: Sequence[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def assert_same_bits(results: Sequence[Sequence[np.ndarray]]) -> None:
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))
