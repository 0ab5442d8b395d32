"""Finds out what memory that is in use belongs to: parameters, their gradients, the state of optimizers."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from resilin.core.tensor import Parameter, Tensor
from resilin.optim import Optimizer


class Category(Enum):
    """What memory is for."""

    INPUT = 1
    TEMPORARY = 2
    ACTIVATION = 3
    GRADIENT = 4
    AUTOGRAD_DETAIL = 5
    PARAMETER = 6
    OPTIMIZER_STATE = 7


@dataclass(frozen=True)
class Owned:
    """Memory from `address` on that a tensor shows."""

    address: int
    nbytes: int
    category: Category


def find() -> list[Owned]:
    """Return what the live parameters and optimizers of this process own on the CPU, each address once, by address.

    Looks at every object that Python's collector knows: milliseconds for a program of usual size.
    """
    found: dict[int, Owned] = {}
    for one in gc.get_objects():
        kind = type(one)  # not isinstance: objects may pretend to be of a class, and load something to do so
        if issubclass(kind, Parameter):
            shown = [(one, Category.PARAMETER), (one.grad, Category.GRADIENT)]
        elif issubclass(kind, Optimizer):
            shown = [(tensor, Category.OPTIMIZER_STATE) for tensor in _tensors(one.state)]
        else:
            continue
        for tensor, category in shown:
            if tensor is not None and tensor.device.type == "cpu" and tensor.numel():
                owned = Owned(tensor.data_ptr(), tensor.numel() * tensor.element_size(), category)
                found.setdefault(owned.address, owned)
    return sorted(found.values(), key=lambda owned: owned.address)


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)
