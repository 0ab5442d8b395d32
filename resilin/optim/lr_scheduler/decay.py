"""Schedulers whose rate is a function of the epoch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from resilin.errors import UsageError
from resilin.optim.lr_scheduler.base import LRScheduler
from resilin.optim.optimizer import Optimizer


class StepLR(LRScheduler):
    """Multiply by `gamma` every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class."""
        due = self.last_epoch != 0 and self.last_epoch % self.step_size == 0
        return [rate * self.gamma for rate in self._current()] if due else self._current()

    def _closed_form(self) -> list[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Multiply by `gamma` at each of the epochs `milestones` (twice where one is listed twice).

    `milestones` counts how often each epoch is listed, here and in the state, as in PyTorch.
    """

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class."""
        times = self.milestones[self.last_epoch]
        return [rate * self.gamma**times for rate in self._current()] if times else self._current()

    def _closed_form(self) -> list[float]:
        passed = sum(times for epoch, times in self.milestones.items() if epoch <= self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See LRScheduler. Files may give the counts as a plain dict."""
        super().load_state_dict(state_dict)
        self.milestones = Counter(self.milestones)


class ExponentialLR(LRScheduler):
    """Multiply by `gamma` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class."""
        return self._current() if self._is_initial else [rate * self.gamma for rate in self._current()]

    def _closed_form(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The initial rate times `factor` for `total_iters` epochs, then the initial rate."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise UsageError(f"ConstantLR: factor must be between 0 and 1, got {factor}")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class."""
        if self.last_epoch == 0:
            return [rate * self.factor for rate in self._current()]
        if self.last_epoch == self.total_iters:
            return [rate / self.factor for rate in self._current()]
        return self._current()

    def _closed_form(self) -> list[float]:
        factor = self.factor if self.last_epoch < self.total_iters else 1.0
        return [base * factor for base in self.base_lrs]


class LinearLR(LRScheduler):
    """The initial rate times a factor that goes from `start_factor` to `end_factor` over `total_iters` epochs."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise UsageError(f"LinearLR: start_factor must be above 0 and at most 1, got {start_factor}")
        if not 0 <= end_factor <= 1:
            raise UsageError(f"LinearLR: end_factor must be between 0 and 1, got {end_factor}")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class."""
        if self.last_epoch == 0:
            return [rate * self.start_factor for rate in self._current()]
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._current()
        rise = self.end_factor - self.start_factor
        factor = 1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise)
        return [rate * factor for rate in self._current()]

    def _closed_form(self) -> list[float]:
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        factor = self.start_factor + (self.end_factor - self.start_factor) * share
        return [base * factor for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """The initial rate times (1 - epoch / total_iters) ** power, which is 0 from `total_iters` on."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class."""
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._current()
        now, before = (1 - epoch / self.total_iters for epoch in (self.last_epoch, self.last_epoch - 1))
        return [rate * (now / before) ** self.power for rate in self._current()]

    def _closed_form(self) -> list[float]:
        left = 1 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the initial rate to `eta_min` over `T_max` epochs (Loshchilov and Hutter, 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class."""
        epoch, low = self.last_epoch, self.eta_min
        if self._is_initial:
            return self._current()
        if self._step_count == 1 and epoch > 0:
            return [low + (b - low) * (1 + math.cos(epoch * math.pi / self.T_max)) / 2 for b in self.base_lrs]
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [r + (b - low) * rise for b, r in zip(self.base_lrs, self._current(), strict=True)]
        ratio = (1 + math.cos(math.pi * epoch / self.T_max)) / (1 + math.cos(math.pi * (epoch - 1) / self.T_max))
        return [ratio * (rate - low) + low for rate in self._current()]

    def _closed_form(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the initial rate to `eta_min`, then again from the start (Loshchilov and Hutter, 2017).

    T_0:     epochs of the first half cosine; each next one takes T_mult times as many.
    step(epoch) takes fractions of an epoch too, for steps after every batch.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"CosineAnnealingWarmRestarts: {name} must be an integer above 0, got {value}")
        if not isinstance(eta_min, float | int):
            raise UsageError(f"CosineAnnealingWarmRestarts: eta_min must be a number, got {type(eta_min).__name__}")
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class."""
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go to the next epoch, or to `epoch` (0 or above), and set the rates."""
        if epoch is None and self.last_epoch >= 0:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            epoch = epoch or 0
            if epoch < 0:
                raise UsageError(f"CosineAnnealingWarmRestarts.step: epoch must not be negative, got {epoch}")
            self._place(epoch)
        self._step_count += 1
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())

    def _place(self, epoch: float) -> None:
        """Find the half cosine that `epoch` lies in, and where in it."""
        if epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            before = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**before - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**before
