"""Schedulers made of schedulers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from resilin.errors import UsageError, UsageTypeError
from resilin.optim.lr_scheduler.base import LRScheduler, set_rate
from resilin.optim.lr_scheduler.plateau import ReduceLROnPlateau
from resilin.optim.optimizer import Optimizer, check_state_dict


class _Combined(LRScheduler):
    """What schedulers made of schedulers share."""

    _schedulers: list[LRScheduler]

    def _go_to(self, epoch: int | None) -> None:
        if epoch is not None:
            raise UsageError(f"{type(self).__name__} cannot be sent to an epoch: its parts have their own counts")
        self.step()

    def undo_step(self) -> None:
        """Count one epoch back in every part."""
        for scheduler in self._schedulers:
            scheduler.undo_step()

    def state_dict(self) -> dict[str, Any]:
        """The parts' states and the own count."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("optimizer", "_schedulers")}
        state["_schedulers"] = [scheduler.state_dict() for scheduler in self._schedulers]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, in the parts too."""
        check_state_dict(self, state_dict)
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_Combined):
    """One scheduler after another; the next takes over, from its start, at each of the epochs `milestones`."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        _check_parts("SequentialLR", optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise UsageError(
                f"SequentialLR: {len(schedulers)} schedulers need {len(schedulers) - 1} milestones, "
                f"got {len(milestones)}"
            )
        self._schedulers = list(schedulers)
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # each part set its own start rate when it was made: undo that, then let only the first one start
        for group in optimizer.param_groups:
            set_rate(group, group["initial_lr"])
        self.undo_step()
        self._schedulers[bisect_right(self._milestones, 0)]._initial_step()
        self._last_lr = self._current()

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch. UsageError for an explicit epoch: parts have their own count."""
        if epoch is not None:
            raise UsageError("SequentialLR.step takes no epoch")
        self.last_epoch += 1
        number = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[number]
        if number > 0 and self._milestones[number - 1] == self.last_epoch:
            scheduler._go_to(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Combined):
    """Several schedulers at once: each step steps all of them, in their order."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise UsageError("ChainedScheduler: at least one scheduler is needed")
        self.optimizer = optimizer or schedulers[0].optimizer
        _check_parts("ChainedScheduler", self.optimizer, schedulers)
        self._schedulers = list(schedulers)
        self._last_lr = self._current()

    def step(self, epoch: int | None = None) -> None:
        """Step every part. UsageError for an explicit epoch: parts have their own count."""
        if epoch is not None:
            raise UsageError("ChainedScheduler.step takes no epoch")
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._current()


def _check_parts(name: str, optimizer: Optimizer, schedulers: Sequence[LRScheduler]) -> None:
    if not schedulers:
        raise UsageError(f"{name}: at least one scheduler is needed")
    for number, scheduler in enumerate(schedulers):
        if not isinstance(scheduler, LRScheduler):
            raise UsageTypeError(f"{name}: scheduler {number} should be an LRScheduler, got {type(scheduler).__name__}")
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(f"{name}: scheduler {number} is a ReduceLROnPlateau, which needs a metric at each step")
        if scheduler.optimizer is not optimizer:
            raise UsageError(f"{name}: scheduler {number} belongs to another optimizer")
