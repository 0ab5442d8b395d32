"""CyclicLR: up and down again and again, with momentum going the other way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from resilin.errors import UsageError
from resilin.optim.lr_scheduler.base import LRScheduler, per_group, set_rate, state_of
from resilin.optim.lr_scheduler.cycle import set_momentum
from resilin.optim.optimizer import Optimizer, check_state_dict

_MODES = ("triangular", "triangular2", "exp_range")


class CyclicLR(LRScheduler):
    """Cyclical rates between `base_lr` and `max_lr` (Smith, 2017), stepped after every batch.

    step_size_up, step_size_down:  steps of the rising and of the falling half (the same when not given).
    mode:            "triangular", "triangular2" (half the height each cycle), "exp_range" (height * gamma ** step).
    scale_fn:        a height of one's own, a function of the cycle's number or of the step (scale_mode "cycle" or
                     "iterations"); mode is ignored then.
    cycle_momentum:  momentum (or the first beta) goes from max_momentum to base_momentum and back.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"CyclicLR: expected an Optimizer, got {type(optimizer).__name__}")
        if scale_fn is None and mode not in _MODES:
            raise UsageError(f"CyclicLR: mode must be one of {', '.join(_MODES)} (or give scale_fn), got {mode!r}")
        base_lrs = per_group("CyclicLR", "base_lr", optimizer, base_lr)
        self.max_lrs = per_group("CyclicLR", "max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        self.mode = mode
        self.gamma = gamma
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self._scale_fn_custom = scale_fn
        self.cycle_momentum = cycle_momentum
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, base_lrs, strict=True):
                set_rate(group, rate)
        if cycle_momentum:
            self._prepare_momentum(optimizer, base_momentum, max_momentum, fresh=last_epoch == -1)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def _prepare_momentum(
        self, optimizer: Optimizer, base: float | Sequence[float], top: float | Sequence[float], fresh: bool
    ) -> None:
        if not {"momentum", "betas"} & optimizer.defaults.keys():
            raise UsageError("CyclicLR: cycle_momentum=True needs an optimizer with momentum or betas")
        self.base_momentums = per_group("CyclicLR", "base_momentum", optimizer, base)
        self.max_momentums = per_group("CyclicLR", "max_momentum", optimizer, top)
        if fresh:
            for group, low, high in zip(optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True):
                group["base_momentum"], group["max_momentum"] = low, high
                set_momentum(group, high)

    def scale_fn(self, x: float) -> float:
        """The height of a cycle, as a factor, at its number or at a step (see the class)."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return float(1 / 2.0 ** (x - 1) if self.mode == "triangular2" else self.gamma**x)

    def get_lr(self) -> list[float]:
        """See the class. Sets the momentum of each group too."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        share = 1.0 + self.last_epoch / self.total_size - cycle
        height = share / self.step_ratio if share <= self.step_ratio else (share - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            bounds = zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True)
            for group, low, high in bounds:
                set_momentum(group, high - (high - low) * height)
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Without a scale_fn of one's own; of a callable object, its attributes."""
        return {**super().state_dict(), "_scale_fn_custom": state_of(self._scale_fn_custom)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep this scheduler's own scale_fn; take over the attributes of a callable object."""
        check_state_dict(self, state_dict)
        attributes = state_dict["_scale_fn_custom"]
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "_scale_fn_custom"})
        if attributes is not None and self._scale_fn_custom is not None:
            self._scale_fn_custom.__dict__.update(attributes)
