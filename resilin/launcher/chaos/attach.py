"""Disturbs a job that runs already: what can be done to its processes of this machine from outside."""

from __future__ import annotations

import contextlib
import signal

from resilin._base.clock import SYSTEM
from resilin.elastic.chaos.schedule import KINDS, Fault, Schedule
from resilin.errors import RendezvousError, UsageError
from resilin.launcher import exit_codes, local, output
from resilin.launcher.chaos import processes
from resilin.launcher.chaos.run import SIGNALS


def run(job: str, faults: Schedule) -> int:
    """Carry out `faults`, each `after_s` after now; 0 when all have found their process."""
    for number, fault in enumerate(faults.faults):
        if fault.at or fault.to not in ("worker", "agent") or not KINDS[fault.do].outside:
            raise UsageError(f"--attach, fault {number}: expected a signal to a worker or an agent with `after_s`")
    agents = _agents(job)
    start = SYSTEM.monotonic()
    missed = 0
    for fault in sorted(faults.faults, key=lambda one: one.after_s):
        SYSTEM.sleep(max(0.0, start + fault.after_s - SYSTEM.monotonic()))
        said = _hit(fault, agents)
        missed += said is None
        output.show(f"{fault}: {said or 'no such process'}")
    return exit_codes.FAILED if missed else exit_codes.OK


def _agents(job: str) -> list[int]:
    """Processes of the agents of `job` on this machine, in the order of their names."""
    found = []
    for client in local.agents():
        with contextlib.closing(client):
            if client.job == job:
                found.append((client.node, client.pid))
    if not found:
        raise RendezvousError(f"no elastic-run of this user runs a job {job!r} on this machine")
    return [pid for _, pid in sorted(found)]


def _hit(fault: Fault, agents: list[int]) -> str | None:
    """What was done; None when there was nobody to do it to."""
    number = SIGNALS[fault.do]
    if fault.to == "agent":
        found = [processes.Process(pid=pid, rank=0, agent=pid) for pid in agents[fault.node : fault.node + 1]]
    else:
        found = [one for one in processes.workers(agents) if one.rank == fault.rank]
    for one in found:
        with processes.held(one) as descriptor:
            if descriptor is not None:
                signal.pidfd_send_signal(descriptor, number)
                return f"{signal.Signals(number).name} to process {one.pid}"
    return None
