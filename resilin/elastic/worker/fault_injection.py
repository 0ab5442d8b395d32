"""Meet the moments of a worker's own step, and do to the worker itself what the schedule says is due.

Nothing here runs unless the variable RESILIN_CHAOS names a folder; then `@elastic.run` arms the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import stat
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from resilin._base import env, fault_points
from resilin._base.clock import SYSTEM
from resilin.distributed.wire import call_phases
from resilin.elastic.chaos import records, schedule
from resilin.elastic.chaos.records import Fired, Result
from resilin.elastic.chaos.schedule import Fault
from resilin.elastic.worker import session
from resilin.elastic.worker.state import State

EXIT_STATUS = 23
_FOREVER_S = 3600  # who holds the lock, or waits, is killed long before
_RENDEZVOUS = ("connect", "reconfigure")


@contextlib.contextmanager
def armed(state: State | None) -> Iterator[None]:
    """Within the block faults strike where the schedule says; at its end, what `state` is goes to the folder."""
    where = env.get(records.FOLDER)
    if where is None:
        yield
        return
    folder = Path(where)
    striker = FaultInjector(folder, lambda: state.step + 1 if state is not None else 1)
    fault_points.listen(striker.reached)
    try:
        with call_phases.listening(striker.phase):
            yield
    finally:
        fault_points.listen(None)
    if state is not None:
        records.write_result(folder, _result(state, striker.moments))


def _result(state: State, moments: Mapping[str, Sequence[int]]) -> Result:
    sampler = next(iter(state._samplers), None)
    return Result(
        pid=os.getpid(),
        rank=session.world().rank,
        fingerprint=state._sealed or state.fingerprint(),
        step=state.step,
        position=sampler.position if sampler is not None else 0,
        moments={name: list(steps) for name, steps in moments.items()},
    )


class FaultInjector:
    """Counts the moments of this process and carries out the faults that are due. Called from any thread."""

    def __init__(self, folder: Path, step: Callable[[], int]) -> None:
        self._folder = folder
        self._step = step
        self._node = env.get_int(records.NODE, 0) or 0
        self._faults = list(enumerate(schedule.load(folder / records.SCHEDULE).faults))
        self.moments: dict[str, deque[int]] = {}  # by name: the steps at which it came last
        self._seen: Counter[int] = Counter()  # by fault: how often its moment came since its step
        self._call = threading.local()  # what: the kind of the call that this thread is in

    def phase(self, phase: str, what: str, group: Any) -> None:
        """Note where a call has got to (`call_phases.Listener`)."""
        if phase == "start":
            self._call.what = what
        kind = getattr(self._call, "what", "close")
        if kind != "close":
            self.reached("rendezvous" if kind in _RENDEZVOUS else "collective")

    def reached(self, moment: str) -> None:
        """Do what is due at `moment` (`fault_points.heard`)."""
        rank, step = session.rank_at_work(), self._step()
        self.moments.setdefault(moment, deque(maxlen=records.LAST_TIMES)).append(step)
        for number, fault in self._faults:
            if (fault.at, fault.rank) == (moment, rank) and step >= fault.step:
                nth = self._seen[number]
                self._seen[number] += 1
                if nth == fault.nth:
                    self._strike(number, fault, step)

    def _strike(self, number: int, fault: Fault, step: int) -> None:
        world = session.world()
        met = Fired(
            fault=number,
            pid=os.getpid(),
            rank=session.rank_at_work(),
            node=self._node,
            generation=world.generation,
            step=step,
            mono=SYSTEM.monotonic(),
        )
        if records.claim(self._folder, met) and fault.to == "worker":  # others are hit by whoever started the job
            _SUFFER[fault.do](number)


def _raise(number: int) -> None:
    raise RuntimeError(f"chaos fault {number}")


def _signal(number: int) -> Callable[[int], None]:
    return lambda _: os.kill(os.getpid(), number)


def _write_nowhere(_: int) -> None:
    ctypes.memset(0, 0, 1)


def _hold_gil(_: int) -> None:
    """Start a thread that keeps the interpreter's lock: none of the others runs again."""
    sleep = ctypes.PyDLL(None).sleep  # functions of a PyDLL are called without letting the lock go
    threading.Thread(target=sleep, args=(_FOREVER_S,), daemon=True).start()


def _fill_disk(_: int) -> None:
    """Every regular file that is open for writing alone answers ENOSPC from now on."""
    full = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the one of the listing itself is closed by now
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            if descriptor > 2 and is_file and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                os.dup2(full, descriptor, inheritable=False)
    os.close(full)


_SUFFER: dict[str, Callable[[int], None]] = {
    "raise": _raise,
    "exit": lambda _: os._exit(EXIT_STATUS),
    "kill": _signal(signal.SIGKILL),
    "segfault": _write_nowhere,
    "abort": lambda _: os.abort(),
    "disk-full": _fill_disk,
    "stop": _signal(signal.SIGSTOP),
    "hold-gil": _hold_gil,
    "hang": lambda _: SYSTEM.sleep(_FOREVER_S),
    "term": _signal(signal.SIGTERM),
}
