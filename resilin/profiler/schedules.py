"""Decides what the profiler does in which step. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from enum import Enum


class ProfilerAction(Enum):
    """What the profiler does in a step. A schedule returns the first four."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3
    """Record; what was recorded since the warm-up is ready when the step ends."""
    DEVICE_STOPPED = 4
    """Of PyTorch's profiler, whose devices may stop recording early. It does not occur here."""


Schedule = Callable[[int], ProfilerAction]


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Schedule:
    """Return a schedule for `profile`: a function of the step's number.

    After `skip_first` steps come cycles of `wait` idle steps, `warmup` steps in which the profiler is on and what it
    sees is dropped, and `active` steps that are recorded. There are `repeat` cycles, 0: as many as there is time for.
    With `skip_first_wait` the first cycle begins with its warm-up.

    Raises AssertionError for a negative number, or when no step is active; warns when `warmup` is 0.
    """
    if active <= 0 or min(wait, warmup, repeat, skip_first) < 0:
        raise AssertionError(
            f"Invalid profiler schedule arguments. Got wait={wait} (need >= 0), warmup={warmup} (need >= 0), "
            f"active={active} (need > 0), repeat={repeat} (need >= 0), skip_first={skip_first} (need >= 0)."
        )
    if warmup == 0:
        warnings.warn("Profiler won't be using warmup, this can skew profiler results", stacklevel=2)
    length = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < 0:
            raise AssertionError(f"Step must be non-negative. Got {step}.")
        if step < skip_first:
            return ProfilerAction.NONE
        cycle, place = divmod(step - skip_first + (wait if skip_first_wait else 0), length)
        if (repeat and cycle >= repeat) or place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < length - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def always(step: int) -> ProfilerAction:
    """Record every step: what `profile` does without a schedule."""
    return ProfilerAction.RECORD
