"""Wait for what can only be asked whether it is done: MPI's requests, events of a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable

from resilin._base.clock import SYSTEM, Deadline
from resilin.distributed.backends.base import Aborted

SPIN_S = 50e-6  # a wake costs about this much: waiting longer than it awake gains nothing
_PAUSE_PART, _PAUSE_MAX_S = 0.1, 2e-3  # sleeps add at most a tenth to a wait, and cost little when it is long


def poll(done: Callable[[], bool], stop: threading.Event, deadline: Deadline, spin_s: float = 0.0) -> bool:
    """Ask until `done()`; False at the deadline. Aborted once `stop` is set."""
    started = SYSTEM.monotonic()
    while not done():
        if stop.is_set():
            raise Aborted
        if deadline.passed():
            return False
        waited = SYSTEM.monotonic() - started
        if waited >= spin_s:
            stop.wait(min(max(waited * _PAUSE_PART, SPIN_S), _PAUSE_MAX_S))
    return True
