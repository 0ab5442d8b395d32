"""The state of stages as that of the module that was cut: whole on all ranks, or sliced; and in from either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.checkpoint import sliced as slices
from resilin.checkpoint.sliced import Sliced
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Parameter, Tensor
from resilin.distributed.group.process_group import ProcessGroup
from resilin.errors import UsageError
from resilin.nn import Module
from resilin.nn.modules import extra_state
from resilin.nn.modules.state import IncompatibleKeys
from resilin.pipeline.elastic_placement import ElasticPlacement


class Names:
    """All tensors of all stages, by their names in the module that was cut, each once, and the stages that use them."""

    def __init__(self, modules: Sequence[Module]) -> None:
        if any(extra_state.extra_states(module) for module in modules):
            raise UsageError(
                "ElasticPipeline: a module has get_extra_state(), which only the rank that has its stage knows; keep "
                "such state outside of the modules and register it in elastic.State"
            )
        self._modules = list(modules)
        self.parameters: list[Parameter] = []
        self.buffers: list[Tensor] = []
        stages_of: dict[int, set[int]] = {}
        for number, module in enumerate(modules):
            for found, tensors in (
                (self.parameters, module.named_parameters()),
                (self.buffers, module.named_buffers()),
            ):
                for _, tensor in tensors:
                    if id(tensor) not in stages_of:
                        found.append(tensor)  # type: ignore[arg-type]
                    stages_of.setdefault(id(tensor), set()).add(number)
        self._stages_of = {key: frozenset(stages) for key, stages in stages_of.items()}
        self.users = [self._stages_of[id(tensor)] for tensor in (*self.parameters, *self.buffers)]

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield each parameter once."""
        seen: set[int] = set()
        for module in self._modules:
            for name, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield name, parameter

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each buffer once."""
        seen: set[int] = set()
        for module in self._modules:
            for name, buffer in module.named_buffers():
                if id(buffer) not in seen:
                    seen.add(id(buffer))
                    yield name, buffer

    def state(self) -> Iterator[tuple[str, Tensor, frozenset[int]]]:
        """Yield what a state dict has: its names, also several of one tensor, and the stages that have it."""
        for module in self._modules:
            for name, tensor in module.state_dict(keep_vars=True).items():
                yield name, tensor, self._stages_of[id(tensor)]


def _holder(stages: frozenset[int], placement: ElasticPlacement) -> int:
    """The rank that speaks for a tensor."""
    return placement.holders(min(stages))[0]


def whole(names: Names, placement: ElasticPlacement, group: ProcessGroup | None) -> dict[str, Any]:
    """Copies of all tensors on all ranks. Collective."""
    found: dict[str, Any] = {}
    copies: dict[int, Tensor] = {}
    for name, tensor, stages in names.state():
        if id(tensor) not in copies:
            copies[id(tensor)] = one = Tensor._wrap(np.array(tensor._array))
            if group is not None and group.size() > 1:
                dist.broadcast(one, group_src=_holder(stages, placement), group=group)
        found[name] = copies[id(tensor)]
    return found


def sliced(names: Names, mine: Sequence[int]) -> dict[str, Any]:
    """The tensors of the stages `mine`, also where other ranks have them, too, and empty slices of all others."""
    here = frozenset(mine)
    return {name: cut(tensor, tensor, bool(stages & here)) for name, tensor, stages in names.state()}


def cut(value: Tensor, like: Tensor, here: bool) -> Sliced:
    """A tensor as a slice of itself: all of it, or nothing."""
    with no_grad():
        flat = value.detach().reshape(-1)
        return Sliced(like.shape, like.dtype, 0 if here else like.numel(), flat if here else flat[:0])


def check(names: Names, state: Mapping[str, Any], strict: bool) -> IncompatibleKeys:
    """UsageError for names (strict) and shapes that do not fit."""
    expected = {name: tensor for name, tensor, _ in names.state()}
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    wrong = [
        f"{name}: {list(value.shape)} in the state, {list(expected[name].shape)} here"
        for name, value in state.items()
        if name in expected and tuple(value.shape) != tuple(expected[name].shape)
    ]
    if wrong or (strict and (missing or unexpected)):
        raise UsageError(
            f"ElasticPipeline.load_state_dict: missing {missing}, unexpected {unexpected}, of other shapes {wrong}"
        )
    return IncompatibleKeys(missing, unexpected)


def load(names: Names, mine: Sequence[int], state: Mapping[str, Any]) -> None:
    """Copy what the stages `mine` have into their tensors."""
    here = frozenset(mine)
    for name, tensor, stages in names.state():
        if name in state and stages & here:
            with no_grad():
                value = slices.part(state[name], 0, tensor.numel())
                tensor.copy_(value.reshape(tensor.shape))
