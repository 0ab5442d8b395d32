"""Run a partition again in backward instead of keeping its results, and tell modules which run they are in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from resilin.core.autograd import checkpoint as core


class _Phase(threading.local):
    checkpointing = False
    recomputing = False


_phase = _Phase()


def is_checkpointing() -> bool:
    """Return whether the forward that is running in this thread keeps nothing, because backward runs it again."""
    return _phase.checkpointing


def is_recomputing() -> bool:
    """Return whether backward is running a forward again in this thread.

    A module that counts its calls, or keeps statistics that are no tensors, leaves them alone then.
    """
    return _phase.recomputing


@contextmanager
def _phase_of(checkpointing: bool, recomputing: bool) -> Iterator[None]:
    before = _phase.checkpointing, _phase.recomputing
    _phase.checkpointing, _phase.recomputing = checkpointing, recomputing
    try:
        yield
    finally:
        _phase.checkpointing, _phase.recomputing = before


def _phases() -> tuple[Any, Any]:
    return _phase_of(True, False), _phase_of(False, True)


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, whose intermediate results backward makes again, with the same random numbers.

    Where nothing is recorded it is called plainly: there is no backward to keep anything for.
    """
    return core.checkpoint(function, *args, use_reentrant=False, context_fn=_phases)
