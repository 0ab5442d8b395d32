"""Schedulers whose rate comes from functions of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from resilin.errors import UsageError
from resilin.optim.lr_scheduler.base import LRScheduler, check_optimizer, state_of
from resilin.optim.optimizer import Optimizer, check_state_dict


class _OfFunctions(LRScheduler):
    """What schedulers of a user's functions share: one function, or one per group."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(type(self).__name__, optimizer)
        groups = len(optimizer.param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, list | tuple) else [lr_lambda] * groups
        for fn in self.lr_lambdas:
            if not callable(fn):
                raise TypeError(f"{type(self).__name__}: lr_lambda must be a function, got {type(fn).__name__}")
        if len(self.lr_lambdas) != groups:
            raise UsageError(f"{type(self).__name__}: {len(self.lr_lambdas)} functions for {groups} parameter groups")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Without the functions; of callable objects, their attributes."""
        state = super().state_dict()
        state["lr_lambdas"] = [state_of(fn) for fn in self.lr_lambdas]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep this scheduler's own functions; take over the attributes of callable objects."""
        check_state_dict(self, state_dict)
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "lr_lambdas"})
        for fn, attributes in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if attributes is not None:
                fn.__dict__.update(attributes)


class LambdaLR(_OfFunctions):
    """The initial rate times `lr_lambda(epoch)`; one function, or one per group."""

    def get_lr(self) -> list[float]:
        """See the class."""
        return [base * fn(self.last_epoch) for base, fn in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class MultiplicativeLR(_OfFunctions):
    """The current rate times `lr_lambda(epoch)`, from epoch 1 on; one function, or one per group."""

    def get_lr(self) -> list[float]:
        """See the class."""
        if self._is_initial:
            return self._current()
        return [rate * fn(self.last_epoch) for rate, fn in zip(self._current(), self.lr_lambdas, strict=True)]
