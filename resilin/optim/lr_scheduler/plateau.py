"""ReduceLROnPlateau: lower the rate when a metric stops getting better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from resilin.errors import UsageError
from resilin.optim.lr_scheduler.base import LRScheduler, check_optimizer, set_rate, warn_of_epoch
from resilin.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """Multiply by `factor` when `step(metric)` saw no improvement for more than `patience` calls.

    mode:       "min" or "max": which metrics are better.
    threshold, threshold_mode: how much better counts, relative ("rel") or absolute ("abs").
    cooldown:   calls after a reduction during which bad ones do not count.
    min_lr:     lower bound, one or one per group. eps: smaller changes are not made.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise UsageError(f"ReduceLROnPlateau: factor must be below 1, got {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise UsageError(f"ReduceLROnPlateau: unknown mode {mode!r} or threshold_mode {threshold_mode!r}")
        check_optimizer("ReduceLROnPlateau", optimizer)
        groups = len(optimizer.param_groups)
        self.default_min_lr = None if isinstance(min_lr, Sequence) else min_lr  # also of groups that are added later
        self.min_lrs = list(min_lr) if isinstance(min_lr, Sequence) else [min_lr] * groups
        if len(self.min_lrs) != groups:
            raise UsageError(f"ReduceLROnPlateau: {len(self.min_lrs)} values of min_lr for {groups} parameter groups")
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.eps = eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = 0
        self.cooldown_counter = 0
        super().__init__(optimizer)

    def _initial_step(self) -> None:
        self.last_epoch = 0  # nothing to set before the first metric

    def get_lr(self) -> list[float]:
        """The current rates."""
        return self._current()

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Take note of the metric of an epoch, and reduce the rates when it is time."""
        value = float(metrics)
        if epoch is not None:
            warn_of_epoch()
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(value, self.best):
            self.best = value
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = self._current()

    def _reduce(self) -> None:
        groups = len(self.optimizer.param_groups)
        if len(self.min_lrs) != groups and self.default_min_lr is not None:
            self.min_lrs = [self.default_min_lr] * groups
        if len(self.min_lrs) != groups:
            raise UsageError(
                f"ReduceLROnPlateau: the optimizer has {groups} parameter groups, `min_lrs` {len(self.min_lrs)} "
                "values: append one to scheduler.min_lrs for each group that was added"
            )
        for group, low in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            rate = max(float(group["lr"]) * self.factor, low)
            if float(group["lr"]) - rate > self.eps:
                set_rate(group, rate)

    @property
    def in_cooldown(self) -> bool:
        """Whether a reduction was so recent that bad metrics do not count."""
        return self.cooldown_counter > 0

    def is_better(self, value: float, best: float) -> bool:
        """Whether `value` counts as an improvement over `best`."""
        sign = 1 if self.mode == "max" else -1
        margin = self.threshold * best if self.threshold_mode == "rel" and math.isfinite(best) else self.threshold
        if not math.isfinite(best):
            return value > best if self.mode == "max" else value < best
        return (value - (best + sign * margin)) * sign > 0
