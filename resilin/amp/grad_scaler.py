"""`GradScaler`: names, semantics and the state dict of torch.amp.GradScaler."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np

from resilin.amp import arguments
from resilin.core import shard_metadata
from resilin.core.argument_checks import flag
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.kernels.cuda import unscale
from resilin.core.state.write_log import before_write
from resilin.core.tensor import Tensor, wrap
from resilin.errors import ResilinError, UsageError


class SteppedOptimizer(Protocol):
    """What a scaler needs of an optimizer."""

    param_groups: list[dict[str, Any]]

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Update the parameters."""


class _Stage(Enum):
    READY = auto()
    UNSCALED = auto()
    STEPPED = auto()


class _Progress:
    """How far an optimizer is in the step between two calls of `update`."""

    def __init__(self) -> None:
        self.stage = _Stage.READY
        self.overflowed = False


class GradScaler:
    """Multiplies the loss so that gradients of half precision do not vanish, and leaves out steps that overflow.

        for x, y in loader:
            optimizer.zero_grad()
            scaler.scale(loss_fn(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()

    device:           accepted; a scaler works wherever gradients are, so it is not disabled without a GPU.
    init_scale:       the first factor.
    growth_factor:    what it is multiplied by after `growth_interval` steps in a row without overflow.
    backoff_factor:   what it is multiplied by after one with.
    enabled:          False: `scale` returns its argument, `step` is the optimizer's, the others do nothing.

    All ranks take the same decision where their gradients are equal, after the backward of DistributedDataParallel, and
    where the optimizer is divided among them (ZeroRedundancyOptimizer): then `unscale_` is a collective.
    Raises UsageError for factors without a meaning, UsageTypeError for arguments that are no numbers or flags.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        name = type(self).__name__
        self._enabled = flag(f"{name}: enabled", enabled)
        self._scale = arguments.scale(name, "init_scale", init_scale)
        self._growth_factor = arguments.growth_factor(name, growth_factor)
        self._backoff_factor = arguments.backoff_factor(name, backoff_factor)
        self._growth_interval = arguments.count(name, "growth_interval", growth_interval, least=1)
        self._growth_tracker = 0  # good steps in a row
        self._progress: weakref.WeakKeyDictionary[Any, _Progress] = weakref.WeakKeyDictionary()  # by optimizer

    # ------------------------------------------------------------------ a step

    def scale(self, outputs: Any) -> Any:
        """`outputs` (a tensor, or tensors in lists, tuples and the like) times the factor.

        The factor is a float32 tensor of 0 dimensions, so that a loss of half precision becomes float32 and does not
        overflow by it.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * wrap(outputs._dev.xp.full((), self._scale, np.float32), outputs._dev)
        if isinstance(outputs, Iterable) and not isinstance(outputs, str | bytes):
            scaled = [self.scale(each) for each in outputs]
            return type(outputs)(scaled) if isinstance(outputs, list | tuple) else iter(scaled)
        raise UsageError(f"GradScaler.scale: expected tensors, or an iterable of them, got {type(outputs).__name__}")

    def unscale_(self, optimizer: SteppedOptimizer) -> None:
        """Divide the gradients of `optimizer` by the factor, in place, to look at them or clip them before `step`.

        UsageError when that was done since the last `update`, for gradients of float16, of which small ones would
        vanish again: keep parameters in float32, and for an optimizer that updates inside backward (ZeRO with
        overlap_with_ddp=True), which has seen them multiplied.
        """
        if not self._enabled:
            return
        progress = self._progress_of("unscale_", optimizer)
        if progress.stage is _Stage.UNSCALED:
            raise UsageError("unscale_() has already been called on this optimizer since the last update()")
        if progress.stage is _Stage.STEPPED:
            raise UsageError("unscale_() is being called after step(): call it before, or update() first")
        self._check_waiting(optimizer)
        self._check_whole(optimizer)
        gradients = list(_gradients(optimizer))
        if any(gradient._array.dtype == np.float16 for gradient in gradients):
            raise UsageError(
                "GradScaler: the gradients are of float16, so dividing them by the scale would make small ones zero; "
                "keep the parameters in float32 (DistributedDataParallel has mixed_precision=...)"
            )
        progress.overflowed = self._agreed(optimizer, _unscale(gradients, 1 / self._scale), bool(gradients))
        progress.stage = _Stage.UNSCALED

    def _check_waiting(self, optimizer: SteppedOptimizer) -> None:
        """UsageError for an optimizer that does not wait for `step`: its `check_scalable()` says so."""
        check_scalable: Callable[[], None] | None = getattr(optimizer, "check_scalable", None)
        if check_scalable is not None:
            check_scalable()

    def _check_whole(self, optimizer: SteppedOptimizer) -> None:
        """UsageError for gradients of which other ranks have the rest."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        why = "so a rank would leave out a step that the others do; use zero.ShardedGradScaler"
        shard_metadata.refuse("GradScaler", enumerate(params), why)
        shard_metadata.refuse_divided("GradScaler", enumerate(params), why)

    def _agreed(self, optimizer: SteppedOptimizer, overflowed: bool, gradients: bool) -> bool:
        """Whether the step is left out, from what this rank found in its `gradients`, if it has any.

        An optimizer that is divided among ranks has an `on_any_rank(*said, scaler=...)`: of each, whether any rank
        says so. All its ranks step, or none; CollectiveMismatch where the numbers of their scalers differ.
        """
        on_any_rank: Callable[..., Sequence[bool]] | None = getattr(optimizer, "on_any_rank", None)
        if on_any_rank is not None:
            overflowed, gradients = on_any_rank(overflowed, gradients, scaler=self.state_dict())
        if not gradients:
            raise ResilinError(
                "GradScaler: no parameter of the optimizer has a gradient; call step() and unscale_() after backward()"
            )
        return overflowed

    def step(self, optimizer: SteppedOptimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(*args, **kwargs)`, unless a gradient is not finite; then None, and nothing is updated.

        Unscales the gradients if `unscale_` has not. UsageError for a closure, and when it was called since the last
        `update`.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or "closure" in kwargs:
            raise UsageError("GradScaler.step: a closure would compute gradients that nobody unscales; pass none")
        progress = self._progress_of("step", optimizer)
        if progress.stage is _Stage.STEPPED:
            raise UsageError("step() has already been called since the last update()")
        if progress.stage is _Stage.READY:
            self.unscale_(optimizer)
        result = None
        if progress.overflowed:
            self._skip(optimizer)
        else:
            result = optimizer.step(*args, **kwargs)
        progress.stage = _Stage.STEPPED
        return result

    def _skip(self, optimizer: SteppedOptimizer) -> None:
        """Tell an optimizer whose steps others wait for that there is none: it has a `skip_step()`."""
        skip_step: Callable[[], None] | None = getattr(optimizer, "skip_step", None)
        if skip_step is not None:
            skip_step()

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Make the factor fit what the optimizers that were unscaled have found, or set it to `new_scale`."""
        if not self._enabled:
            return
        found = [each for each in self._progress.values() if each.stage is not _Stage.READY]
        if new_scale is not None:
            self._scale = arguments.scale("GradScaler.update", "new_scale", new_scale)
        elif not found:
            raise ResilinError("GradScaler.update: no optimizer was unscaled or stepped since the last update()")
        elif any(each.overflowed for each in found):
            self._scale, self._growth_tracker = self._scale * self._backoff_factor, 0
        else:
            self._grow()
        self._progress.clear()

    def _grow(self) -> None:
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            grown = self._scale * self._growth_factor
            self._scale = grown if grown <= float(np.finfo(np.float32).max) else self._scale
            self._growth_tracker = 0

    def _progress_of(self, asked: str, optimizer: SteppedOptimizer) -> _Progress:
        arguments.optimizer(f"{type(self).__name__}.{asked}", optimizer)
        return self._progress.setdefault(optimizer, _Progress())

    # ------------------------------------------------------------------ its numbers

    def get_scale(self) -> float:
        """The factor; 1 when disabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """See the class."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """See the class; 1: the scale does not grow."""
        self._growth_factor = arguments.growth_factor("GradScaler.set_growth_factor", new_factor, fixed=True)

    def get_backoff_factor(self) -> float:
        """See the class."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """See the class; 1: an overflow leaves the scale as it is."""
        self._backoff_factor = arguments.backoff_factor("GradScaler.set_backoff_factor", new_factor, fixed=True)

    def get_growth_interval(self) -> int:
        """See the class."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """See the class."""
        where = "GradScaler.set_growth_interval"
        self._growth_interval = arguments.count(where, "growth_interval", new_interval, least=1)

    def is_enabled(self) -> bool:
        """Whether it scales."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's entries, all numbers; empty when disabled. Take it after `update`."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from `state_dict`; what was unscaled and not updated is forgotten. Nothing when disabled.

        UsageError for entries that are missing or have no meaning (UsageTypeError: that are no numbers); then nothing
        is taken over.
        """
        if not self._enabled:
            return
        where = "GradScaler.load_state_dict"
        arguments.mapping(where, "state_dict", state_dict)
        if not state_dict:
            raise ResilinError("GradScaler.load_state_dict: the state is empty: that of a scaler that was disabled")
        if missing := sorted(set(self.state_dict()) - set(state_dict)):
            raise UsageError(f"GradScaler.load_state_dict: missing {missing}, got {sorted(state_dict)}")
        scale = arguments.scale(where, "scale", state_dict["scale"])
        growth = arguments.growth_factor(where, state_dict["growth_factor"], fixed=True)
        backoff = arguments.backoff_factor(where, state_dict["backoff_factor"], fixed=True)
        interval = arguments.count(where, "growth_interval", state_dict["growth_interval"], least=1)
        self._growth_tracker = arguments.count(where, "_growth_tracker", state_dict["_growth_tracker"], least=0)
        self._scale, self._growth_factor, self._backoff_factor, self._growth_interval = scale, growth, backoff, interval
        self._progress.clear()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} scale={self.get_scale():g}{'' if self._enabled else ' disabled'}>"

    def __getstate__(self) -> dict[str, Any]:
        if self._progress:
            raise ResilinError("GradScaler: pickle it after update(), not within a step")
        return {name: value for name, value in self.__dict__.items() if name != "_progress"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._progress = weakref.WeakKeyDictionary()


def _gradients(optimizer: SteppedOptimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                yield param.grad


def _unscale(gradients: Iterable[Tensor], factor: float) -> bool:
    """Multiply each by `factor`, in place. Whether any element was not finite."""
    overflowed = False
    by_kernel: dict[int, tuple[Any, list[Any]]] = {}  # of devices that have one, by namespace
    with no_grad(), np.errstate(all="ignore"):
        for gradient in gradients:
            xp, array = gradient._dev.xp, gradient._array
            if hasattr(xp, "launch") and unscale.is_taken(array):
                before_write(gradient)
                by_kernel.setdefault(id(xp), (xp, []))[1].append(array)
                gradient._bump()
                continue
            overflowed = overflowed or not bool(xp.isfinite(array).all())
            gradient.mul_(factor)
    for xp, arrays in by_kernel.values():
        overflowed = unscale.unscale(xp, arrays, factor) or overflowed
    return overflowed
