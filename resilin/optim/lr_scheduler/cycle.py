"""OneCycleLR: up and down once, with momentum going the other way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resilin.errors import UsageError
from resilin.optim.lr_scheduler.base import LRScheduler, check_optimizer, per_group
from resilin.optim.optimizer import Group, Optimizer


class OneCycleLR(LRScheduler):
    """The 1cycle policy (Smith and Topin, 2018), stepped after every batch.

    max_lr:             the peak, one or one per group; from max_lr / div_factor, to that / final_div_factor.
    total_steps:        steps of the cycle; or epochs * steps_per_epoch.
    pct_start:          share of the steps that rise. anneal_strategy: "cos" or "linear".
    cycle_momentum:     momentum (or the first beta) goes from max_momentum to base_momentum and back.
    three_phase:        fall to the start rate first (as long as the rise), then to the end.
    Raises: UsageError from step() when it is called more than total_steps times, the one in the constructor left out.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        self.total_steps = _total(total_steps, epochs, steps_per_epoch)
        if not 0 <= pct_start <= 1:
            raise UsageError(f"OneCycleLR: pct_start must be between 0 and 1, got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise UsageError(f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        self.anneal_strategy = anneal_strategy
        self.cycle_momentum = cycle_momentum
        self._phases = _phases(self.total_steps, pct_start, three_phase)
        if last_epoch == -1:
            _prepare(optimizer, max_lr, div_factor, final_div_factor)
            if cycle_momentum:
                _prepare_momentum(optimizer, base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class. Sets the momentum of each group too."""
        if self.last_epoch > self.total_steps:  # the step after the last is let pass, as in PyTorch: loops make it
            raise UsageError(f"OneCycleLR: step {self.last_epoch} of a cycle of {self.total_steps} steps")
        rates = []
        for group in self.optimizer.param_groups:
            start, phase = 0.0, self._phases[0]
            for phase in self._phases:
                if self.last_epoch <= phase[0]:
                    break
                start = phase[0]
            else:
                start = self._phases[-2][0]
            end, lr_from, lr_to, momentum_from, momentum_to = phase
            share = (self.last_epoch - start) / (end - start)
            rates.append(self._anneal(group[lr_from], group[lr_to], share))
            if self.cycle_momentum:
                set_momentum(group, self._anneal(group[momentum_from], group[momentum_to], share))
        return rates

    def _anneal(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)


_Phase = tuple[float, str, str, str, str]  # last step; rate from, to; momentum from, to


def _phases(total_steps: int, pct_start: float, three_phase: bool) -> list[_Phase]:
    rise = float(pct_start * total_steps) - 1
    up: _Phase = (rise, "initial_lr", "max_lr", "max_momentum", "base_momentum")
    if not three_phase:
        return [up, (total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum")]
    return [
        up,
        (float(2 * pct_start * total_steps) - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
        (total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
    ]


def _total(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is None and epochs is not None and steps_per_epoch is not None:
        total_steps = epochs * steps_per_epoch
    if total_steps is None or total_steps <= 0:
        raise UsageError("OneCycleLR: give total_steps, or epochs and steps_per_epoch, each above 0")
    return total_steps


def _prepare(optimizer: Optimizer, max_lr: float | Sequence[float], div: float, final_div: float) -> None:
    check_optimizer("OneCycleLR", optimizer)
    for group, peak in zip(optimizer.param_groups, per_group("OneCycleLR", "max_lr", optimizer, max_lr), strict=True):
        group["initial_lr"] = peak / div
        group["max_lr"] = peak
        group["min_lr"] = group["initial_lr"] / final_div


def _prepare_momentum(optimizer: Optimizer, base: float | Sequence[float], top: float | Sequence[float]) -> None:
    if not {"momentum", "betas"} & optimizer.defaults.keys():
        raise UsageError("OneCycleLR: cycle_momentum=True needs an optimizer with momentum or betas")
    bases = per_group("OneCycleLR", "base_momentum", optimizer, base)
    tops = per_group("OneCycleLR", "max_momentum", optimizer, top)
    for group, low, high in zip(optimizer.param_groups, bases, tops, strict=True):
        group["base_momentum"], group["max_momentum"] = low, high
        set_momentum(group, high)


def set_momentum(group: Group, value: float) -> None:
    """Set the momentum of a group, or its first beta."""
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value
