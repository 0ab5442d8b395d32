"""LRScheduler: sets the learning rate of an optimizer's groups, epoch by epoch, as torch.optim.lr_scheduler does."""

from __future__ import annotations

import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from resilin.core.public import error_context
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageKeyError
from resilin.optim.optimizer import Group, Optimizer, check_state_dict


class LRScheduler:
    """Base of schedulers: subclasses define `get_lr()`, one rate per group, from `last_epoch` and the current rates.

    Rates are computed from the groups' current ones wherever PyTorch does so, so that schedulers can be chained.
    last_epoch: -1 starts; a resumed run gives the last epoch done (groups must hold "initial_lr" then).
    """

    _is_initial = False  # during the first step, which the constructor makes: rates start, they do not change yet

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(type(self).__name__, optimizer)
        self.optimizer = optimizer
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", float(group["lr"]))
            elif "initial_lr" not in group:
                raise UsageKeyError(
                    f"{type(self).__name__}: last_epoch={last_epoch} resumes, but param_groups[{number}] has no "
                    "'initial_lr'; load the optimizer's state first"
                )
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._step_count = 0
        self._last_lr: list[float] = [float(group["lr"]) for group in optimizer.param_groups]
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        self.step()
        self._is_initial = False

    def get_lr(self) -> list[float]:
        """The rate of each group at `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__} must define get_lr()")

    def get_last_lr(self) -> list[float]:
        """The rate of each group as this scheduler set it last."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to `epoch`, and set the rates.

        Warns when the optimizer has made no step yet: the first rate would be left out.
        """
        if self._step_count == 1 and not self.optimizer._opt_called and "step" not in vars(self.optimizer):
            warnings.warn(
                f"{type(self).__name__}.step() was called before the first step of its optimizer, so that the first "
                "rate is never used; call optimizer.step() first",
                UserWarning,
                stacklevel=2,
            )
        self._step_count += 1
        if epoch is not None:
            warn_of_epoch()
        self._go_to(epoch)

    def _go_to(self, epoch: int | None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set(self.get_lr() if epoch is None else self._closed_form())

    def _closed_form(self) -> list[float]:
        """The rates at `last_epoch` whatever they are now; schedulers that have a formula for it override this."""
        return self.get_lr()

    def _set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            set_rate(group, rate)
        self._last_lr = list(rates)

    def undo_step(self) -> None:
        """Count one epoch back, without changing rates: another scheduler decides when this one starts."""
        self.last_epoch -= 1

    def _current(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave (the optimizer keeps its own state). TypeError for anything but a dict."""
        check_state_dict(self, state_dict)
        self.__dict__.update(state_dict)


def warn_of_epoch() -> None:
    """Warn, as PyTorch does, of an explicit epoch, which takes the closed form of a schedule where there is one."""
    warnings.warn(
        "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible. Please "
        "use `scheduler.step()` to step the scheduler: with an epoch the closed form is used where there is one",
        UserWarning,
        stacklevel=error_context.level_of_user(),
    )


def check_optimizer(where: str, optimizer: Any) -> None:
    """TypeError unless it is one."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{where}: expected an Optimizer, got {type(optimizer).__name__}")


def set_rate(group: Group, rate: float) -> None:
    """Set the rate of a group; a rate given as a tensor stays that tensor."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def per_group(where: str, name: str, optimizer: Optimizer, value: float | Sequence[float]) -> list[float]:
    """One value per group, from one for all or from a list. UsageError for a list of another length."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, Sequence):
        return [value] * groups
    if len(value) != groups:
        raise UsageError(f"{where}: {name} has {len(value)} values for {groups} parameter groups")
    return list(value)


def state_of(fn: Any) -> dict[str, Any] | None:
    """What is saved of a user's function: the attributes of a callable object, nothing of a plain function."""
    return None if fn is None or isinstance(fn, types.FunctionType) else dict(fn.__dict__)
