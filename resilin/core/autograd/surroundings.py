"""Carry what a thread has told the engine to threads that compute for it, and say when they cannot take it over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from resilin.core import device
from resilin.core.autograd import checkpoint, forward_ad
from resilin.core.autograd.grad_mode import mode
from resilin.core.batching.levels import running_here
from resilin.core.public import dispatch
from resilin.core.state import write_log

_MODES = ("grad", "inference", "anomaly", "check_nan", "multithreading")


def bound_to_thread() -> bool:
    """Return whether something of this thread alone is told of each operation, in the order in which they happen:
    a checkpoint, hooks on saved tensors, vmap, forward mode, a mode that takes over calls."""
    told = mode.frame is not None or write_log.kept_here() or running_here()
    return told or forward_ad.is_active() or dispatch.is_changed()


def carried() -> Callable[[], Any]:
    """Return what makes a context in which another thread computes as this one does now: recorded or not, by default
    on the same device, with the same surroundings of checkpoints. Random numbers are the caller's business."""
    modes = {name: getattr(mode, name) for name in _MODES}
    chosen, around = device.default_device(), checkpoint.surroundings()  # autocast is among the latter

    @contextmanager
    def entered() -> Iterator[None]:
        before = {name: getattr(mode, name) for name in _MODES}
        vars(mode).update(modes)
        try:
            with chosen, checkpoint.around(*around):
                yield
        finally:
            vars(mode).update(before)

    return entered
