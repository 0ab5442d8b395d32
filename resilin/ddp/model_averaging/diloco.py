"""DiLoCo (Douillard et al. 2023): ranks train alone for many steps; an outer optimizer takes the mean of their ways.

every step          optim.step() on the rank's own gradients, nothing is sent
every `period`-th   outer gradient = anchor - mean over ranks of the parameters
                    anchor <- outer step (Nesterov);  parameters <- anchor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core.argument_checks import whole
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Tensor, wrap
from resilin.ddp.model_averaging.agreeing import VALUES_WHY, WHY, Agreement, checksums_of, named_options
from resilin.ddp.model_averaging.saved import count_of, outer_of
from resilin.ddp.model_averaging.utils import average_parameters
from resilin.ddp.model_averaging.wrapping import WrappingOptimizer
from resilin.ddp.traffic import Traffic
from resilin.distributed.agreement.checksum import checksum
from resilin.errors import UsageError, UsageTypeError
from resilin.optim import SGD
from resilin.optim.optimizer import Group, Optimizer, check_state_dict

_LOAD = "DiLoCoOptimizer.load_state_dict"


def nesterov(params: list[Tensor]) -> Optimizer:
    """The paper's outer optimizer."""
    return SGD(params, lr=0.7, momentum=0.9, nesterov=True)


class DiLoCoOptimizer(WrappingOptimizer):
    """Steps `optim` on this rank alone and, every `period` steps, the parameters of all ranks with an outer optimizer.

    optim:          the inner optimizer (AdamW in the paper). Its state stays with the rank.
    period:         inner steps between two outer ones (500 in the paper).
    outer:          makes the outer optimizer of a list of tensors; default: SGD(lr=0.7, momentum=0.9, nesterov=True).
    process_group:  None: the default group at each outer step.

    Gradients must not be averaged: use the bare module, or DistributedDataParallel with `noop_hook`. Parameters must be
    equal on all ranks when this is made: DistributedDataParallel makes them so, bare modules need the same seed, or
    `dist.broadcast`. After an outer step all ranks have the same parameters, to the bit; `synchronized`
    says so. Bytes: the parameters', once in `period` steps; `traffic` counts them. Needs memory for two more copies of
    the parameters (anchor, momentum) and, while it averages, one more.

    The first step in each world compares period, outer options and the anchors, by a checksum; each outer step period
    and options again: CollectiveMismatch on all ranks names what differs, and no outer step is made.

    A new world goes on from the last outer step, if the state is committed there: register it in
    `elastic.State(snapshot=True, ...)` and call `commit()` when `synchronized`; what ranks did since is done again, and
    a lost rank's part of it is lost. Inner optimizers' states differ between ranks: a newcomer gets the survivors',
    piece by piece from several of them.
    """

    def __init__(
        self,
        optim: Optimizer,
        period: int,
        outer: Callable[[list[Tensor]], Optimizer] = nesterov,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(optim)
        period = whole("DiLoCoOptimizer: period", period, least=1)
        if not callable(outer):
            raise UsageTypeError(
                "DiLoCoOptimizer: outer must be a function of a list of tensors that returns an Optimizer, got "
                f"{outer!r:.80}"
            )
        self.period, self.process_group = period, process_group
        self.traffic = Traffic()
        self.inner_steps = 0
        self._loaded: int | None = None  # inner steps of a state that was loaded since ranks have compared theirs
        self._agreement = Agreement("DiLoCoOptimizer")
        self._anchor = [_copy(param) for param in self._params()]
        self.outer = outer(self._anchor)
        if not isinstance(self.outer, Optimizer):
            raise UsageTypeError(
                f"DiLoCoOptimizer: outer must return an Optimizer of the tensors it is given, got {self.outer!r:.80}"
            )

    @property
    def synchronized(self) -> bool:
        """Whether the last step was an outer one: all ranks have the same parameters."""
        return self.inner_steps % self.period == 0

    def add_param_group(self, param_group: Group) -> None:
        """Refused: the outer optimizer has the parameters that there were at the start."""
        raise UsageError("DiLoCoOptimizer: parameters cannot be added later; make a new one with all of them")

    def _params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    def _after_step(self) -> None:
        group = self.process_group or dist.default_group()
        if self._agreement.reach(group, self._facts, self._begins_with):
            self._loaded = None
        self.inner_steps += 1
        if self.synchronized:
            self._agreement.ask(group, self._changed, WHY if self._loaded is None else VALUES_WHY)
            self._loaded = None
            self._outer_step()

    def _facts(self) -> dict[str, Any]:
        return {
            "period": self.period,
            "inner steps since the last outer one": self.inner_steps % self.period,
            "outer optimizer": type(self.outer).__name__,
            **named_options(self.outer.param_groups, " of the outer optimizer"),
        }

    def _begins_with(self) -> dict[str, int]:
        """What must be equal on all ranks when they begin: the anchor, and what the outer optimizer remembers."""
        found = checksums_of(self.param_groups, self._anchor)
        for number, anchor in enumerate(self._anchor):
            for name, value in self.outer.state.get(anchor, {}).items():
                if isinstance(value, Tensor):
                    found[f"the checksum of the outer optimizer's {name} of parameter {number}"] = checksum(value)
        return found

    def _changed(self) -> dict[str, Any]:
        """What may be another than in the outer step before: nothing beside the parameters, but after a load."""
        if self._loaded is None:
            return {**self._facts(), "the outer state": "that of the last outer step"}
        since = f"loaded since the last outer step, at inner step {self._loaded}"
        return {**self._facts(), "the outer state": since, **self._begins_with()}

    def _outer_step(self) -> None:
        params = self._params()
        average_parameters(params, self.process_group or dist.default_group(), self.traffic)
        with no_grad():
            for param, anchor in zip(params, self._anchor, strict=True):
                anchor._grad = anchor - param
            self.outer.step()
            self.outer.zero_grad()
            for param, anchor in zip(params, self._anchor, strict=True):
                param._array[...] = anchor._array
                param._bump()

    def state_dict(self) -> dict[str, Any]:
        """That of `optim`, with "outer": its state, the anchor, and the number of inner steps."""
        outer = {"optimizer": self.outer.state_dict(), "anchor": list(self._anchor), "inner_steps": self.inner_steps}
        return {**self.optim.state_dict(), "outer": outer}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over both, or nothing. UsageError when the state is not one of DiLoCo, or of other parameters."""
        self.check_loadable(state_dict)
        outer = state_dict["outer"]
        self.optim.load_state_dict(_inner(state_dict))
        self.outer.load_state_dict(outer["optimizer"])
        with no_grad():
            for anchor, saved in zip(self._anchor, outer["anchor"], strict=True):
                anchor.copy_(saved if isinstance(saved, Tensor) else Tensor._wrap(np.asarray(saved)))
        self.inner_steps = count_of(_LOAD, outer, "inner_steps")
        self._loaded = self.inner_steps

    def check_loadable(self, state_dict: Mapping[str, Any]) -> None:
        """What `load_state_dict` raises for a state that does not fit, before anything is changed.

        For its tensors anything that has a shape will do.
        """
        check_state_dict(self, state_dict)
        outer = outer_of(_LOAD, state_dict, self._anchor)
        count_of(_LOAD, outer, "inner_steps")
        self.outer.check_loadable(outer["optimizer"])
        self.optim.check_loadable(_inner(state_dict))


def _inner(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state_dict.items() if name != "outer"}


def _copy(param: Tensor) -> Tensor:
    made = wrap(param._array.copy(), param._dev)
    made.requires_grad_(True)
    return made
