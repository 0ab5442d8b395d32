"""Averages of parameters over all ranks, every so many steps."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import resilin.distributed as dist
from resilin.core.argument_checks import whole
from resilin.ddp.model_averaging import utils
from resilin.ddp.model_averaging.agreeing import Agreement, phase
from resilin.ddp.model_averaging.saved import count_of
from resilin.ddp.traffic import Traffic

_PERIOD_1 = (
    "{}: a period of 1 averages the parameters in every step, which carries as many bytes as averaging the gradients: "
    "use DistributedDataParallel alone"
)


class ModelAverager(ABC):
    """Base: counts steps in `step`, and in `traffic` what its collectives carried.

    `process_group`: None is the default group at each call. The step is all that it remembers: register it in
    `elastic.State`, or save its `state_dict()`.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self.process_group = process_group
        self.step = 0
        self.traffic = Traffic()

    @abstractmethod
    def average_parameters(self, params: Iterable[Any]) -> None:
        """Call it after each step of the optimizer: it averages when it is time. `params`: parameters or groups."""

    def state_dict(self) -> dict[str, Any]:
        """The number of steps so far."""
        return {"step": self.step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there. UsageError for a state without a whole number of steps."""
        self.step = count_of(f"{type(self).__name__}.load_state_dict", state_dict, "step")

    def _group(self) -> dist.ProcessGroup:
        return self.process_group or dist.default_group()


class PeriodicModelAverager(ModelAverager):
    """Averages parameters over `process_group` every `period` steps from step `warmup_steps` on.

    The first call in each world compares them, and where in its period it is: CollectiveMismatch on all ranks names
    what differs. With post_localSGD_hook, `warmup_steps` is its `start_localSGD_iter`. Parameters without a gradient
    are left out.
    """

    def __init__(self, period: int, warmup_steps: int = 0, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(process_group)
        self.warmup_steps = whole("PeriodicModelAverager: warmup_steps", warmup_steps)
        self.period = whole("PeriodicModelAverager: period, which counts steps,", period, least=1)
        if self.period == 1:
            warn_of_period_1("PeriodicModelAverager")
        self._agreement = Agreement("PeriodicModelAverager")

    def average_parameters(self, params: Iterable[Any]) -> None:
        """Average when it is time: at step `warmup_steps` and every `period` steps later."""
        self._agreement.reach(self._group(), self._facts)
        if self.step >= self.warmup_steps and (self.step - self.warmup_steps) % self.period == 0:
            utils.average_parameters_or_parameter_groups(params, self._group(), self.traffic)
        self.step += 1

    def _facts(self) -> dict[str, Any]:
        at = phase(self.step, self.warmup_steps, self.period)
        return {"period": self.period, "warmup_steps": self.warmup_steps, "place in the period": at}


def warn_of_period_1(name: str) -> None:
    """Averaging every time has no use."""
    warnings.warn(_PERIOD_1.format(name), stacklevel=3)
