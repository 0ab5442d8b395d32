"""Take one registered object through commit, rollback and transfer. No collective, no thread.

Every object is seen as *guarded* tensors (large, changed by `optimizer.step()` alone, never copied at a commit) and
one *small* tree (everything else, copied at every commit):

    nn.Module        guarded: parameters             small: buffers, extra state
    optim.Optimizer  guarded: state tensors          small: param_groups, step numbers, the layout of the state
    divided state    guarded: nothing                small: options; slices travel apart (`divided`)
    anything else    guarded: nothing                small: its state_dict(), tensors in it included
"""

from __future__ import annotations

import copy
import math
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from resilin._base import host
from resilin._base.text import shown
from resilin.core import dtype as dtypes
from resilin.core import host_copies
from resilin.core.tensor import Tensor
from resilin.distributed.api.reconfigurable import divided
from resilin.elastic.worker.sharded_part import DividedPart
from resilin.elastic.worker.trees import frozen, join, shape_of, split, text_of, thawed
from resilin.errors import StateError, UsageError
from resilin.nn import Module
from resilin.nn.modules import extra_state

Layout = tuple[tuple[str, tuple[int, ...], str], ...]  # (name, shape, dtype) of guarded tensors, in their order


class Part(Protocol):
    """One object of a `State`.

    saved: what checkpoints take: the object, or what knows its divided state.
    """

    name: str
    saved: Any

    def capture(self) -> tuple[Any, list[Tensor]]:
        """The small tree, a copy that later changes of the object do not touch, and the guarded tensors, live.

        Their order is equal on all ranks.
        """

    def layout(self) -> Layout:
        """Return what the guarded tensors look like."""

    def restore(self, small: Any) -> None:
        """Take `small` back. The guarded tensors are the ones of the commit that `small` was captured at."""

    def accept(self, layout: Layout) -> list[Tensor]:
        """Tensors to be filled with another rank's guarded ones, laid out as there. StateError: they do not fit."""

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """Become equal to the rank that captured `small`; `tensors`, from `accept`, are filled."""

    def drop_gradients(self) -> None:
        """Forget gradients: those of a step that was interrupted must not count in the step that redoes it."""


def part_of(name: str, thing: Any) -> Part:
    """The part for `thing`. UsageError when it has no state_dict and load_state_dict, or is divided among ranks for
    good."""
    if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
        raise UsageError(
            f"State: {name!r} is a {type(thing).__name__}, which has no state_dict() and load_state_dict()"
        )
    whole = divided(thing)
    if whole is not None:
        return DividedPart(name, whole)
    if hasattr(thing, "sharded_state_dict"):
        raise UsageError(
            f"State: {name!r} is a {type(thing).__name__} whose state is divided among the ranks, and that cannot be "
            "divided anew while training goes on. Leave it out, save it with checkpoint.save, and load the last "
            "checkpoint where the function that elastic.run calls begins; or divide it with resilin.zero, whose state "
            "lives on in every world"
        )
    if isinstance(thing, Module):
        return ModulePart(name, thing)
    if hasattr(thing, "param_groups") and hasattr(thing, "state"):
        return OptimizerPart(name, thing)
    return ObjectPart(name, thing)


class ModulePart:
    """An nn.Module: parameters in place, buffers copied (always: who wrote them through a numpy array is not known)."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.saved = name, module
        self._module = module
        self._parameters: dict[str, Tensor] = dict(module.named_parameters())

    def capture(self) -> tuple[Any, list[Tensor]]:
        """Copies of the buffers and of what `get_extra_state` gives; the parameters, in the order of registration."""
        named = dict(self._module.named_buffers())
        buffers = dict(zip(named, host_copies.copies(list(named.values())), strict=True))
        extra = {name: frozen(state) for name, state in extra_state.extra_states(self._module).items()}
        return {"buffers": buffers, "extra": extra}, list(self._parameters.values())

    def layout(self) -> Layout:
        """The parameters'."""
        return tuple((name, *shape_of(tensor)) for name, tensor in self._parameters.items())

    def restore(self, small: Any) -> None:
        """Write the buffers back, in place, and the extra state."""
        extra = {name: thawed(state) for name, state in small["extra"].items()}
        extra_state.write(self._module, small["buffers"], extra, self.name)

    def accept(self, layout: Layout) -> list[Tensor]:
        """The own parameters, which must have the names, shapes and dtypes of the source's."""
        mine = self.layout()
        for here, there in zip_longest(mine, layout):
            if here != there:
                raise StateError(
                    f"{self.name}: parameter {(here or there)[0]!r} is {text_of(here)} here and {text_of(there)} at "
                    "the source; all ranks must build the same model"
                )
        return list(self._parameters.values())

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """The parameters are filled; the buffers follow."""
        for tensor in tensors:
            tensor._bump()
        self.restore(small)

    def drop_gradients(self) -> None:
        """The parameters'."""
        for param in self._parameters.values():
            param._grad = None


class OptimizerPart:
    """An optimizer: state tensors in place (a newcomer has none yet and makes them), options copied."""

    def __init__(self, name: str, optimizer: Any) -> None:
        self.name, self.saved = name, optimizer
        self._optimizer = optimizer

    def capture(self) -> tuple[Any, list[Tensor]]:
        """state_dict() with holes for the tensors, and the tensors."""
        return split(self._optimizer.state_dict())

    def layout(self) -> Layout:
        """The state's."""
        return tuple((str(number), *shape_of(tensor)) for number, tensor in enumerate(self.capture()[1]))

    def restore(self, small: Any) -> None:
        """Options only: what else is small changes together with the tensors."""
        for group, saved in zip(self._optimizer.param_groups, small["param_groups"], strict=True):
            group.update({name: copy.copy(value) for name, value in saved.items() if name != "params"})

    def accept(self, layout: Layout) -> list[Tensor]:
        """New tensors in the layout of the source's state, which must fit into this host's memory."""
        taken, most = 0, host.memory_bytes()
        tensors = []
        for name, shape, dtype in layout:
            try:
                kind = dtypes.by_name(dtype).np
            except TypeError as error:
                raise StateError(f"{self.name}: tensor {name!r:.80} of the source's state: {error}") from None
            taken += math.prod(shape) * kind.itemsize
            if min(shape, default=0) < 0 or taken > most:
                raise StateError(
                    f"{self.name}: the source's state has a tensor {name!r:.80} of shape {shown(shape)}, {taken} bytes "
                    f"with those before it; this host has {most} bytes of memory"
                )
            tensors.append(Tensor._wrap(np.empty(shape, kind)))
        return tensors

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """Load the filled tensors with everything else."""
        self._optimizer.load_state_dict(join(small, tensors))

    def drop_gradients(self) -> None:
        """Those of all that it updates: modules may not be registered."""
        for group in self._optimizer.param_groups:
            for param in group["params"]:
                param._grad = None


class ObjectPart:
    """Anything with state_dict and load_state_dict: a scheduler, a sampler, a loss scaler, an average of weights."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name, self.saved = name, thing
        self._thing = thing

    def capture(self) -> tuple[Any, list[Tensor]]:
        """A deep copy of state_dict(); nothing is guarded."""
        return frozen(self._thing.state_dict()), []

    def layout(self) -> Layout:
        """Empty."""
        return ()

    def restore(self, small: Any) -> None:
        """load_state_dict of a copy, so that the commit stays as it was."""
        self._thing.load_state_dict(thawed(small))

    def accept(self, layout: Layout) -> list[Tensor]:
        """Nothing to fill."""
        return []

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """Same as restore."""
        self.restore(small)

    def drop_gradients(self) -> None:
        """It has none."""
