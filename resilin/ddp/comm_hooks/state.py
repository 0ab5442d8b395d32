"""What a hook remembers from step to step, how it is saved, and what becomes of it when a step is undone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core import argument_checks
from resilin.core.tensor import Tensor
from resilin.ddp import errors
from resilin.ddp.comm_hooks.exchange import Array, Group, check_group
from resilin.ddp.grad_bucket import GradBucket, Hook
from resilin.distributed.agreement import compare
from resilin.errors import UsageError, UsageTypeError


def remembers(kind: type[HookState]) -> Callable[[Hook], Hook]:
    """Marks a hook whose state must be a `kind`: another one is refused when the hook is registered, or runs."""

    def mark(hook: Hook) -> Hook:
        def check(name: str, state: Any) -> None:
            if not isinstance(state, kind):
                raise UsageTypeError(f"{name} needs a {kind.__name__} as its state, got {type(state).__name__}")

        @functools.wraps(hook)
        def checked(state: Any, bucket: GradBucket) -> Any:
            check(errors.hook_name(hook), state)
            return hook(state, bucket)

        errors.set_state_check(checked, check)
        return checked

    return mark


class HookState:
    """Base of hooks' states. `iter` counts the steps (backward passes that reduced) that have begun to end.

    `state_dict()` is what all ranks have in common: register the state in `elastic.State`, and newcomers go on where
    the others are. Residuals of error feedback belong to one rank: `state_dict(local=True)` holds them, too, for a
    checkpoint of each rank; pickling keeps everything but the process group, as in PyTorch.
    """

    def __init__(self, process_group: Group) -> None:
        check_group(f"{type(self).__name__}: process_group", process_group)
        self.process_group = process_group
        self.iter = 0

    def _flag(self, name: str, value: Any) -> bool:
        """The option `name`, see `plain.flag`; so `_whole` and `_real`."""
        return argument_checks.flag(f"{type(self).__name__}: {name}", value)

    def _whole(self, name: str, value: Any, least: int = 0) -> int:
        return argument_checks.whole(f"{type(self).__name__}: {name}", value, least)

    def _real(self, name: str, value: Any, least: float = 0) -> float:
        return argument_checks.real(f"{type(self).__name__}: {name}", value, least)

    def count(self, bucket: GradBucket) -> None:
        """Count a step at its last bucket: after this the hook must not ask for `iter` any more."""
        if bucket.is_last():
            self.iter += 1

    def state_dict(self, local: bool = False) -> dict[str, Any]:
        """What is equal on all ranks; with `local` also what belongs to this rank. Tensors in it are copies."""
        return {"iter": self.iter}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from `state_dict`, or go back to it. UsageError when it is of another kind of state."""
        if not isinstance(state_dict, Mapping) or set(state_dict) - {"residuals"} != set(self.state_dict()):
            raise UsageError(
                f"{type(self).__name__}.load_state_dict: expected the entries {sorted(self.state_dict())}, got "
                f"{sorted(state_dict) if isinstance(state_dict, Mapping) else type(state_dict).__name__}"
            )
        self.iter = int(state_dict["iter"])

    def _unsaved(self) -> tuple[str, ...]:
        """Attributes that mean nothing in another process."""
        return ("process_group",)

    def _options(self) -> tuple[str, ...]:
        """Attributes that all ranks must have alike: numbers."""
        return ()

    def phase(self) -> int:
        """What of `iter` all ranks must have alike."""
        return self.iter

    def agree(self, group: dist.ProcessGroup) -> None:
        """Return when all ranks of `group` have called this. CollectiveMismatch, on all, when their options differ."""
        kind = type(self).__name__
        options = {name: _plain(getattr(self, name)) for name in self._options()} | {"iter": self.phase()}
        why = "ranks would not end with the same gradients, so all must give the same"
        compare.agree(compare.Facts(kind, [("", {"state": kind, **options})], why), group)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._unsaved()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.process_group = None  # the default group
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} iter={self.iter}>"


class FeedbackState(HookState):
    """State of a hook that adds to each gradient what compression left out of the former ones.

    Residuals are local. When the world changes, those of survivors stay, a newcomer starts with none, and what a lost
    rank had not sent yet is lost. A step that is undone (`load_state_dict` of an earlier `iter`) takes the residuals
    that it had left with it: these buckets start with none.
    """

    def __init__(self, process_group: Group, use_error_feedback: bool) -> None:
        super().__init__(process_group)
        self.use_error_feedback = self._flag("use_error_feedback", use_error_feedback)
        self._residuals: dict[int, tuple[int, Array]] = {}  # by bucket: (the step that left it, what it left)

    def _options(self) -> tuple[str, ...]:
        return ("use_error_feedback",)

    def add_residual(self, bucket: GradBucket, flat: Array) -> None:
        """Add what earlier steps left out of the bucket to `flat`, in place."""
        kept = self._residuals.get(bucket.index()) if self.use_error_feedback else None
        if kept is None:
            return
        if kept[1].size != flat.size:
            raise UsageError(
                f"{type(self).__name__}: bucket {bucket.index()} needs a residual of {flat.size} numbers, there is one "
                f"of {kept[1].size}: it was saved for another model or another bucket_cap_mb; load it without "
                "residuals: state_dict() instead of state_dict(local=True); or another model uses this state, too: "
                "give each its own"
            )
        flat += kept[1]

    def keep(self, index: int, step: int, residual: Array) -> None:
        """Remember what step number `step` left out of bucket `index`; what is not finite is forgotten."""
        if self.use_error_feedback:
            if np.isfinite(residual).all():
                self._residuals[index] = (step, residual)
            else:  # one overflow must not spoil all later steps
                self._residuals.pop(index, None)

    @property
    def error_dict(self) -> dict[int, Tensor]:
        """The residual of each bucket, flat, by the bucket's index."""
        return {index: Tensor._wrap(residual) for index, (_, residual) in sorted(self._residuals.items())}

    def state_dict(self, local: bool = False) -> dict[str, Any]:
        """As HookState's; with `local` there are "residuals": (step, tensor) by bucket."""
        common = super().state_dict()
        if not local:
            return common
        kept = {index: (step, Tensor._wrap(each.copy())) for index, (step, each) in sorted(self._residuals.items())}
        return {**common, "residuals": kept}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over "residuals" where there are any; else keep those of steps before the loaded `iter`."""
        super().load_state_dict(state_dict)
        if "residuals" in state_dict:
            self._residuals = {
                int(index): (int(step), np.array(tensor._array))
                for index, (step, tensor) in state_dict["residuals"].items()
            }
        self._residuals = {index: kept for index, kept in self._residuals.items() if kept[0] < self.iter}


def _plain(value: Any) -> Any:
    """Numpy's numbers as Python's, which say the same on all ranks."""
    return value.item() if isinstance(value, np.generic) else value
