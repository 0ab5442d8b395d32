"""Planned faults for ranks that are threads: what happens to which rank, at which call.

faults = FaultPlan().kill(rank=2, at="all_reduce", call=3)      # its fourth all_reduce is never started
outcome = run_ranks(4, train_steps, faults=faults)
assert faults.all_fired()
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from resilin._base.clock import SYSTEM
from resilin.dist.backends.base import Call
from resilin.dist.group import ProcessGroup
from resilin.dist.message import Kind


class Killed(BaseException):
    """Ends a rank that a plan kills; nothing that catches Exception stops it."""


@dataclass
class _Fault:
    rank: int
    kind: Kind
    call: int
    action: str
    value: float | BaseException | None = None
    fired: bool = False


@dataclass
class FaultPlan:
    """Faults by rank, collective and number of the call of that collective on that rank (from 0). Thread-safe."""

    _faults: list[_Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def kill(self, rank: int, at: str, call: int = 0) -> FaultPlan:
        """`rank` dies as it starts the call: its connections close without a goodbye."""
        self._faults.append(_Fault(rank, Kind[at.upper()], call, "kill"))
        return self

    def fail(self, rank: int, at: str, call: int = 0, error: BaseException | None = None) -> FaultPlan:
        """`rank` raises `error` as it starts the call."""
        self._faults.append(_Fault(rank, Kind[at.upper()], call, "fail", error or RuntimeError("planned fault")))
        return self

    def delay(self, rank: int, at: str, call: int = 0, seconds: float = 0.1) -> FaultPlan:
        """`rank` starts the call late."""
        self._faults.append(_Fault(rank, Kind[at.upper()], call, "delay", seconds))
        return self

    def all_fired(self) -> bool:
        """Whether every planned fault has happened."""
        with self._lock:
            return all(fault.fired for fault in self._faults)

    def watch(self, rank: int, group: ProcessGroup) -> None:
        """Let the plan strike `rank` in `group`."""
        counts: Counter[Kind] = Counter()

        def strike(call: Call) -> None:
            number = counts[call.kind]
            counts[call.kind] += 1
            for fault in self._faults:
                if (fault.rank, fault.kind, fault.call) == (rank, call.kind, number):
                    self._fire(fault, group)

        group.on_call = strike

    def _fire(self, fault: _Fault, group: ProcessGroup) -> None:
        with self._lock:
            fault.fired = True
        if fault.action == "kill":
            group.vanish()
            raise Killed
        if isinstance(fault.value, BaseException):
            raise fault.value
        SYSTEM.sleep(float(fault.value or 0.0))
