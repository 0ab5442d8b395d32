"""Planned faults: what happens to which rank, in which call, at which point of it.

faults = FaultPlan().kill(rank=2, at="all_reduce", call=3)                        # its fourth all_reduce never starts
faults = FaultPlan().freeze(rank=0, at="broadcast", phase="data", nth=1)          # stuck after the second piece
outcome = run_ranks(4, train_steps, faults=faults)
assert faults.all_fired()

Ranks may be threads (`run_ranks`), or processes, where `signal` makes a death or a stop real:

with FaultPlan().signal(1, SIGKILL, at="all_reduce", phase="agreed").watching(dist.get_rank()):
    train_steps()
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from resilin._base.clock import SYSTEM
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire import call_phases
from resilin.distributed.wire.frames import Kind
from resilin.errors import UsageError

CALLS = (
    *(kind.name.lower() for kind in Kind if kind is not Kind.P2P),
    "send",
    "recv",
    "connect",
    "reconfigure",
    "close",
)
"""What a fault can be planned in. Object collectives, coalesced calls and new groups are made of these."""
PHASES = ("start", "arrived", "agreeing", "agreed", "data", "moved", "end")
"""Points of a call, see `call_phases`; "agreeing" is data of the agreement. Each way of moving bytes has some of them.

Collectives: shared memory: start, arrived, agreed, data, moved, arrived (nth=1), end; sockets: start, agreeing, agreed,
data, end; several hosts: of both. send, recv: start, data (sockets), moved, end (send). connect and reconfigure: start,
agreed (all are connected), data (memory was shared with one peer more), end. close: start.
"""
_FREEZE_S = 60.0  # a freeze ends by itself after this


class Killed(BaseException):
    """Ends a rank that a plan kills; nothing that catches Exception stops it."""


@dataclass
class _Fault:
    rank: int
    at: str
    call: int
    phase: str
    nth: int
    strike: Callable[[list[ProcessGroup]], None]
    """Told of the rank's groups, oldest first."""
    fired_at: float | None = None


@dataclass
class FaultPlan:
    """Faults by rank, kind of call, number of that call on that rank and phase of it (both from 0). Thread-safe.

    `at` is one of CALLS, `phase` one of PHASES, `nth` the how-manieth time that the call comes to this phase.
    """

    _faults: list[_Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thawed: threading.Event = field(default_factory=threading.Event)

    def kill(self, rank: int, at: str, call: int = 0, phase: str = "start", nth: int = 0) -> FaultPlan:
        """`rank`, a thread, dies: the connections of its groups close without a goodbye."""
        return self._add(rank, at, call, phase, nth, _die)

    def fail(
        self,
        rank: int,
        at: str,
        call: int = 0,
        error: BaseException | None = None,
        phase: str = "start",
        nth: int = 0,
    ) -> FaultPlan:
        """`rank` raises `error`, as an interrupt or a bug would."""

        def strike(groups: list[ProcessGroup]) -> None:
            raise error or RuntimeError("planned fault")

        return self._add(rank, at, call, phase, nth, strike)

    def delay(
        self, rank: int, at: str, call: int = 0, seconds: float = 0.1, phase: str = "start", nth: int = 0
    ) -> FaultPlan:
        """`rank` goes on late."""
        return self._add(rank, at, call, phase, nth, lambda groups: SYSTEM.sleep(seconds))

    def freeze(self, rank: int, at: str, call: int = 0, phase: str = "start", nth: int = 0) -> FaultPlan:
        """`rank` goes on after `thaw()`, a minute later at the latest. Its other threads run on."""
        return self._add(rank, at, call, phase, nth, lambda groups: self._frozen())

    def abort(self, rank: int, at: str, call: int = 0, phase: str = "start", nth: int = 0) -> FaultPlan:
        """`rank` calls `abort()` of the group it last used."""
        return self._add(rank, at, call, phase, nth, lambda groups: groups[-1].abort())

    def close(self, rank: int, at: str, call: int = 0, phase: str = "start", nth: int = 0) -> FaultPlan:
        """`rank` calls `close()` of the group it last used, as a signal handler in the middle of the call would."""
        return self._add(rank, at, call, phase, nth, lambda groups: groups[-1].close())

    def signal(self, rank: int, number: int, at: str, call: int = 0, phase: str = "start", nth: int = 0) -> FaultPlan:
        """`rank`, a process, sends itself signal `number`: SIGKILL, SIGSTOP."""
        return self._add(rank, at, call, phase, nth, lambda groups: os.kill(os.getpid(), number))

    def thaw(self) -> None:
        """Let ranks that are or will be frozen go on."""
        self._thawed.set()

    def all_fired(self) -> bool:
        """Whether every planned fault has happened."""
        with self._lock:
            return all(fault.fired_at is not None for fault in self._faults)

    def fired_at(self) -> float | None:
        """When the last fault struck (CLOCK_MONOTONIC seconds); None before the first."""
        with self._lock:
            return max((fault.fired_at for fault in self._faults if fault.fired_at is not None), default=None)

    @contextmanager
    def watching(self, rank: int) -> Iterator[None]:
        """Let the plan strike this thread, which is `rank`, and what it leaves to the worker threads of its groups."""
        with call_phases.listening(_Rank(self, rank).hear):
            yield

    def _add(
        self, rank: int, at: str, call: int, phase: str, nth: int, strike: Callable[[list[ProcessGroup]], None]
    ) -> FaultPlan:
        if at not in CALLS:
            raise UsageError(f"FaultPlan: at={at!r}: expected one of {', '.join(CALLS)}")
        if phase not in PHASES:
            raise UsageError(f"FaultPlan: phase={phase!r}: expected one of {', '.join(PHASES)}")
        self._faults.append(_Fault(rank, at, call, phase, nth, strike))
        return self

    def _frozen(self) -> None:
        self._thawed.wait(_FREEZE_S)

    def _reached(self, rank: int, at: str, call: int, phase: str, nth: int, groups: list[ProcessGroup]) -> None:
        for fault in self._faults:
            if (fault.rank, fault.at, fault.call, fault.phase, fault.nth) == (rank, at, call, phase, nth):
                with self._lock:
                    fault.fired_at = SYSTEM.monotonic()
                fault.strike(groups)


class _Rank:
    """Counts the calls of one rank and their phases."""

    def __init__(self, plan: FaultPlan, rank: int) -> None:
        self._plan = plan
        self._rank = rank
        self._lock = threading.Lock()
        self._groups: list[ProcessGroup] = []  # guarded by _lock: used so far, the last used last
        self._calls: Counter[str] = Counter()  # guarded by _lock
        self._current = threading.local()  # what, call, seen: of the call that this thread is in

    def hear(self, phase: str, what: str, group: Any) -> None:
        """As `call_phases.Listener`."""
        now = self._current
        with self._lock:
            if group is not None:
                self._groups = [each for each in self._groups if each is not group] + [group]
            groups = list(self._groups)
            if phase == "start":
                now.what, now.call, now.seen = what, self._calls[what], Counter()
                self._calls[what] += 1
        if not hasattr(now, "what"):
            return
        if phase == "data" and now.what in _AGREEING and not now.seen["agreed"]:
            phase = "agreeing"
        nth = now.seen[phase]
        now.seen[phase] += 1
        self._plan._reached(self._rank, now.what, now.call, phase, nth, groups)


_AGREEING = frozenset(kind.name.lower() for kind in Kind)


def _die(groups: list[ProcessGroup]) -> None:
    for group in groups:
        group.vanish()
    raise Killed
