"""What the tests of hooks share: a model whose gradients are given, and ranks that run a hook on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilin import nn
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.testing.ranks import run_ranks

SHAPES = ((20, 30), (30,), (12, 3, 5), (7, 2), (), (0, 4))  # matrices, a kernel, vectors, a scalar, nothing

Gradients = Sequence[np.ndarray]


class Given(nn.Module):
    """Its gradients are what `forward` is given."""

    def __init__(self, shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: Any = np.float32) -> None:
        super().__init__()
        self.params = nn.ParameterList(nn.Parameter(Tensor._wrap(np.zeros(shape, dtype))) for shape in shapes)

    def forward(self, gradients: Gradients) -> Tensor:
        total = None
        for param, gradient in zip(self.params, gradients, strict=True):
            term = (param * Tensor._wrap(gradient)).sum()
            total = term if total is None else total + term.to(total.dtype)
        assert total is not None
        return total


@dataclass
class Ran:
    """What one rank saw: gradients after each step, the hook's state, and the wrapper's stats."""

    steps: list[list[np.ndarray]]
    state: Any
    stats: dict[str, Any]


def gradients_of(
    step: int, rank: int, shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: Any = np.float32
) -> Gradients:
    """Random gradients, a function of (step, rank)."""
    rng = np.random.default_rng([step, rank])
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def run_hook(
    world: int,
    hook: Callable[..., Any],
    make_state: Callable[[], Any] = lambda: None,
    *,
    steps: int = 3,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: Any = np.float32,
    given: Callable[..., Gradients] = gradients_of,
    **options: Any,
) -> list[Ran]:
    """Run `steps` backward passes of `Given` with the hook on `world` ranks. `options` are DDP's."""

    def work(rank: int) -> Ran:
        state = make_state()
        model = DDP(Given(shapes, dtype), **options)
        model.register_comm_hook(state, hook)
        seen = []
        for step in range(steps):
            model.zero_grad()
            model(given(step, rank, shapes, dtype)).backward()
            seen.append([param.grad.numpy().copy() for param in model.parameters()])
        return Ran(seen, state, dict(model.stats()))

    return run_ranks(world, work).results()


def means(world: int, step: int, shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: Any = np.float32) -> Gradients:
    """The ranks' mean gradients."""
    every = [gradients_of(step, rank, shapes, dtype) for rank in range(world)]
    return [np.mean([each[number] for each in every], axis=0) for number in range(len(shapes))]


def assert_same_bits(runs: Sequence[Ran]) -> None:
    """Every rank has the gradients of rank 0."""
    for other in runs[1:]:
        for mine, theirs in zip(runs[0].steps, other.steps, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                assert a.tobytes() == b.tobytes()
