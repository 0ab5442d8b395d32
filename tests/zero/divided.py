"""What the tests of divided optimizers share: odd parameters, gradients that are given, and runs of both kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.zero import ZeroRedundancyOptimizer

SHAPES = ((7, 5), (33,), (3, 4, 5), (), (1,), (0, 4), (64, 3))  # no size is a multiple of another
MATRICES = ((7, 5), (33, 2), (12, 9), (5, 5))

Parts = dict[str, tuple[type[optim.Optimizer], dict[str, Any]]]
CUT: Parts = {
    "ASGD": (optim.ASGD, {"lr": 0.05, "weight_decay": 0.01}),
    "Adadelta": (optim.Adadelta, {"weight_decay": 0.01}),
    "Adagrad": (optim.Adagrad, {"lr": 0.05, "initial_accumulator_value": 0.1}),
    "Adam": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (optim.AdamW, {"lr": 0.01}),
    "Adamax": (optim.Adamax, {}),
    "Lion": (optim.Lion, {}),
    "NAdam": (optim.NAdam, {"decoupled_weight_decay": True}),
    "RAdam": (optim.RAdam, {}),
    "RMSprop": (optim.RMSprop, {"centered": True, "momentum": 0.5}),
    "Rprop": (optim.Rprop, {}),
    "SGD": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "SGD without state": (optim.SGD, {"lr": 0.1}),
}
WHOLE: Parts = {
    "Adafactor": (optim.Adafactor, {}),
    "Muon": (optim.Muon, {}),
    "SparseAdam": (optim.SparseAdam, {}),
}
ALL = CUT | WHOLE


def parameters(shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: Any = np.float32) -> list[nn.Parameter]:
    """The same values in every call."""
    rng = np.random.default_rng(5)
    return [nn.Parameter(Tensor._wrap(_random(rng, shape, dtype))) for shape in shapes]


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    values = np.asarray(rng.standard_normal(shape))
    if np.dtype(dtype).kind == "c":
        values = values + 1j * np.asarray(rng.standard_normal(shape))
    return np.asarray(values.astype(dtype))


def give_gradients(params: Sequence[Any], step: int, without: Sequence[int] = ()) -> None:
    """A gradient for each parameter, a function of the step; None for those in `without`."""
    for number, param in enumerate(params):
        rng = np.random.default_rng([step, number])
        grad = _random(rng, tuple(param.shape), param._array.dtype)
        param.grad = None if number in without else Tensor._wrap(grad)


def shapes_for(name: str) -> tuple[tuple[int, ...], ...]:
    """Parameters that the optimizer takes."""
    return MATRICES if name == "Muon" else SHAPES


def train(params: Sequence[Any], optimizer: Any, steps: Sequence[int] = range(4)) -> None:
    """Some steps on given gradients."""
    for step in steps:
        give_gradients(params, step)
        optimizer.step()


def plain(name: str, steps: Sequence[int] = range(4)) -> tuple[list[bytes], dict[str, Any]]:
    """Parameters and state after `steps` of the undivided optimizer."""
    cls, options = ALL[name]
    params = parameters(shapes_for(name))
    optimizer = cls(params, **options)
    train(params, optimizer, steps)
    return bits(params), optimizer.state_dict()


def divided(name: str, **more: Any) -> tuple[list[nn.Parameter], ZeroRedundancyOptimizer]:
    """Parameters and the divided optimizer of one rank."""
    cls, options = ALL[name]
    params = parameters(shapes_for(name))
    return params, ZeroRedundancyOptimizer(params, cls, **options, **more)


def bits(params: Sequence[Any]) -> list[bytes]:
    """The parameters' bytes."""
    return [param.detach().numpy().tobytes() for param in params]


def flat_state(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state dict in a form that `==` compares to the bit."""
    state = {
        f"{number}.{name}": (tuple(value.shape), str(value.dtype), value.numpy().tobytes())
        if isinstance(value, Tensor)
        else value
        for number, entry in state_dict["state"].items()
        for name, value in entry.items()
    }
    return {"state": state, "groups": state_dict["param_groups"]}


def on_one(optimizer: ZeroRedundancyOptimizer, rank: int, to: int = 0) -> dict[str, Any] | None:
    """The consolidated state on rank `to`."""
    optimizer.consolidate_state_dict(to)
    return optimizer.state_dict() if rank == to else None
