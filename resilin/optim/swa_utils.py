"""Averages of a model's parameters over its training (SWA, EMA); names and semantics of torch.optim.swa_utils."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn import Module
from resilin.nn.modules.normalization import _BatchNorm
from resilin.optim.lr_scheduler.base import LRScheduler, check_optimizer, per_group
from resilin.optim.optimizer import Optimizer

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

AverageFn = Callable[[Tensor, Tensor, Any], Tensor]
MultiAverageFn = Callable[[list[Tensor], list[Tensor], Any], None]


def _check_decay(decay: float) -> None:
    if not 0 <= decay <= 1:
        raise UsageError(f"EMA: decay must be between 0 and 1, got {decay}")


def get_ema_avg_fn(decay: float = 0.999) -> AverageFn:
    """A function of (average, current, number averaged) that returns decay * average + (1 - decay) * current."""
    _check_decay(decay)

    @rounded_once
    def ema_update(ema_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        with no_grad():
            return ema_param * decay + current_param * (1 - decay)

    return ema_update


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAverageFn:
    """The same over lists of tensors, in place."""
    _check_decay(decay)
    average = get_ema_avg_fn(decay)

    def ema_update(ema_params: list[Tensor], current_params: list[Tensor], num_averaged: Any) -> None:
        with no_grad():
            for ema, current in zip(ema_params, current_params, strict=True):
                if ema.is_floating_point() or ema.is_complex():
                    ema.lerp_(current, 1 - decay)
                else:
                    ema.copy_(average(ema, current, num_averaged))

    return ema_update


def get_swa_avg_fn() -> AverageFn:
    """A function of (average, current, number averaged) that returns the average with `current` added to it."""

    @rounded_once
    def swa_update(averaged_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        with no_grad():
            moved: Tensor = averaged_param + (current_param - averaged_param) / (num_averaged + 1)
            return moved

    return swa_update


def get_swa_multi_avg_fn() -> MultiAverageFn:
    """The same over lists of tensors, in place."""
    average = get_swa_avg_fn()

    def swa_update(averaged_params: list[Tensor], current_params: list[Tensor], num_averaged: Any) -> None:
        with no_grad():
            for averaged, current in zip(averaged_params, current_params, strict=True):
                averaged.copy_(average(averaged, current, num_averaged))

    return swa_update


def _count(device: Any) -> Tensor:
    count = Tensor._wrap(np.zeros((), np.int64))
    return count if device is None else count.to(device)


class AveragedModel(Module):
    """A copy of `model` whose parameters are averages over the calls of `update_parameters(model)`.

    device:        where the copy lives; that of `model` when not given.
    avg_fn:        function of (average, current, number averaged) that returns the new average of one tensor;
    multi_avg_fn:  function of two lists and that number, in place. At most one of them; equal weights without.
    use_buffers:   average the buffers too; otherwise they follow those of `model`.

    The functions are not part of state_dict(), which holds `module.*` and `n_averaged`, as PyTorch's.
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: AverageFn | None = None,
        multi_avg_fn: MultiAverageFn | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise UsageError("AveragedModel: give avg_fn or multi_avg_fn, not both")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", _count(device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged module gives."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the parameters of `model` into the average; the first call copies them."""
        averaged, current = self._averaged(self.module), self._averaged(model)
        if len(averaged) != len(current):
            raise UsageError(
                f"AveragedModel.update_parameters: the model has {len(current)} tensors to average, the average has "
                f"{len(averaged)}; pass the model it was made from"
            )
        with no_grad():
            current = [there.to(device=here.device) for here, there in zip(averaged, current, strict=True)]
            if self.n_averaged.item() == 0:
                for here, there in zip(averaged, current, strict=True):
                    here.copy_(there)
            else:
                self._average(averaged, current)
            if not self.use_buffers:
                for here, there in zip(self.module.buffers(), model.buffers(), strict=True):
                    here.detach().copy_(there.detach())
            self.n_averaged += 1

    def _averaged(self, model: Module) -> list[Tensor]:
        buffers: Iterable[Tensor] = model.buffers() if self.use_buffers else ()
        return [value.detach() for value in chain(model.parameters(), buffers)]

    def _average(self, averaged: list[Tensor], current: list[Tensor]) -> None:
        if self.multi_avg_fn is None:
            average = self.avg_fn or get_swa_avg_fn()
            for here, there in zip(averaged, current, strict=True):
                here.copy_(average(here, there, self.n_averaged.to(device=here.device)))
            return
        groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for here, there in zip(averaged, current, strict=True):
            heres, theres = groups.setdefault((str(here.device), here.dtype), ([], []))
            heres.append(here)
            theres.append(there)
        for heres, theres in groups.values():
            self.multi_avg_fn(heres, theres, self.n_averaged.to(device=heres[0].device))


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Make the running statistics of the BatchNorm layers of `model` anew: equal-weight means over `loader`.

    loader:  gives tensors, or lists or tuples whose first element is the model's input.
    device:  where inputs are sent first.
    The layers' momenta and the model's mode (train or eval) are as before at the end; without such layers the loader
    is not read.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not layers:
        return
    momenta, was_training = [layer.momentum for layer in layers], model.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    model.train()
    try:
        with no_grad():
            for batch in loader:
                inputs = batch[0] if isinstance(batch, list | tuple) else batch
                model(inputs if device is None else inputs.to(device))
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(was_training)


class SWALR(LRScheduler):
    """Goes from the current rate to `swa_lr` (one, or one per group) over `anneal_epochs` epochs, then stays there.

    anneal_strategy: "cos" or "linear".
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise UsageError(f"SWALR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise UsageError(f"SWALR: anneal_epochs must be an integer of 0 or more, got {anneal_epochs}")
        check_optimizer("SWALR", optimizer)
        for group, rate in zip(optimizer.param_groups, per_group("SWALR", "swa_lr", optimizer, swa_lr), strict=True):
            group["swa_lr"] = rate
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """See the class."""
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        targets = [group["swa_lr"] for group in self.optimizer.param_groups]
        if before == 1:
            return targets
        pairs = zip(self._current(), targets, strict=True)
        starts = [((rate - before * target) / (1 - before), target) for rate, target in pairs]
        return [target * now + start * (1 - now) for start, target in starts]

    def _share(self, step: int) -> float:
        """How much of the way is done at a step."""
        share = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * share)) / 2 if self._anneal_strategy == "cos" else share
