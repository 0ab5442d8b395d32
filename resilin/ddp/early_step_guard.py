"""Optimizers that step before a step's last shard: there are no gradients yet, so they would update nothing.

A hook before every optimizer's step asks the modules whose gradients are still to come.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any, Protocol

from resilin.optim import Optimizer
from resilin.optim.optimizer import register_optimizer_step_pre_hook


class Step(Protocol):
    """A step in fixed shards."""

    @property
    def trains(self) -> Collection[int]:
        """ids of the parameters."""

    def check_complete(self, what: str) -> None:
        """UsageError, on all ranks, for `what` before the gradients are there."""


_under_way: weakref.WeakValueDictionary[int, Step] = weakref.WeakValueDictionary()  # by id


def begun(step: Step) -> None:
    """Its gradients are still to come."""
    _under_way[id(step)] = step


def ended(step: Step) -> None:
    """They are there, or will not come."""
    _under_way.pop(id(step), None)


def _before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not _under_way:
        return
    params = {id(param) for group in optimizer.param_groups for param in group["params"]}
    for known in _under_way.valuerefs():
        step = known()
        if step is not None and not params.isdisjoint(step.trains):
            step.check_complete(f"{type(optimizer).__name__}.step")


register_optimizer_step_pre_hook(_before)
