"""Runs one job under one schedule: starts its nodes, does from outside what workers cannot do to themselves, collects.

    run_job ──> elastic-run (one per node, RESILIN_CHAOS=<folder>) ──> workers: strike at their own moments,
       │                                                                        leave <folder>/fired-<n>.json
       ├── looks into the folder: faults of agents, the store and the link follow at once
       └── faults with `after_s`: signals to the job's own processes, found through its agents

Only processes of the job are ever touched: agents are children of this process, workers descendants of an agent, and
both are held by a pidfd, so that a number that is used again is not hit.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from resilin._base import env
from resilin._base.clock import SYSTEM
from resilin.elastic import ledger
from resilin.elastic.chaos import records
from resilin.elastic.chaos.judge import Run
from resilin.elastic.chaos.records import Fired
from resilin.elastic.chaos.schedule import Fault, Schedule
from resilin.errors import StateError
from resilin.launcher.chaos import processes
from resilin.launcher.chaos.infrastructure import Breakable

_POLL_S = 0.005  # what workers leave in the folder is looked for so often
_GRACE_S = 10.0  # between asking agents to end and killing them, when a job is given up
SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "term": signal.SIGTERM,
    "segfault": signal.SIGSEGV,
    "abort": signal.SIGABRT,
}


@dataclass(frozen=True, kw_only=True)
class ChaosJob:
    """What is disturbed."""

    command: tuple[str, ...]
    """What stands behind `elastic-run`, on each node; {folder} in it is the folder of the run."""
    nodes: int = 1
    enter: tuple[tuple[str, ...], ...] = ()
    """Words before the command of each node, such as those that enter a namespace."""
    store: Breakable | None = None
    link: Breakable | None = None
    endpoint: tuple[str, int] | None = None
    """Where the first node serves the store of all, on this machine; None: no node does."""
    variables: tuple[tuple[str, str], ...] = ()
    """For the environment, beside this process's own."""


@dataclass
class _Node:
    """One node: its agent, the agents before it, and the file that all of them write to."""

    number: int
    output: Path
    process: subprocess.Popen[bytes] | None = None
    pids: list[int] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None


def run_job(job: ChaosJob, schedule: Schedule, folder: Path, limit_s: float) -> Run:
    """Run `job` under `schedule` in the empty `folder`; after `limit_s` seconds it is ended."""
    return _Running(job, schedule, folder).run(limit_s)


class _Running:
    def __init__(self, job: ChaosJob, schedule: Schedule, folder: Path) -> None:
        self._job = job
        self._schedule = schedule
        self._folder = folder
        self._nodes = [_Node(number, folder / f"node-{number}.log") for number in range(job.nodes)]
        self._start = SYSTEM.monotonic()
        self._done: set[int] = set()  # faults that were carried out, here or by a worker
        self._later: list[tuple[float, Callable[[], None]]] = []  # what ends a fault, and when
        self._broken: list[Breakable] = []
        (folder / records.SCHEDULE).write_text(schedule.to_json())

    def run(self, limit_s: float) -> Run:
        try:
            for node in self._nodes:
                self._begin(node)
                self._await_host(self._start + limit_s)
            while not self._over() and SYSTEM.monotonic() < self._start + limit_s:
                self._look()
                SYSTEM.sleep(_POLL_S)  # other processes' files cannot wake us
            codes = tuple(node.process.poll() if node.process is not None else None for node in self._nodes)
        finally:
            self._end()
        book = self._folder / "ledger"
        results = tuple(records.results(self._folder))
        counted = None
        torn: list[StateError] = []
        if book.exists():
            entries, torn = ledger.sift(str(book))
            counted = ledger.verify(entries, unfinished_last=any(one.position for one in results))
        return Run(
            schedule=self._schedule,
            codes=codes,
            said=tuple(node.output.read_text(errors="replace") for node in self._nodes),
            agents=tuple(tuple(node.pids) for node in self._nodes),
            fired=tuple(records.fired(self._folder)),
            results=results,
            counted=counted,
            seconds=SYSTEM.monotonic() - self._start,
            unreadable=tuple(map(str, torn)),
        )

    def _begin(self, node: _Node) -> None:
        """Start the agent of `node`; not when the job has ended on all others meanwhile."""
        if node.pids and any(other.ended and other.process.returncode == 0 for other in self._nodes if other.process):
            return
        variables = {
            records.FOLDER: str(self._folder),
            records.NODE: str(node.number),
            "RESILIN_LEDGER": str(self._folder / "ledger"),
            **dict(self._job.variables),
        }
        words = (word.replace("{folder}", str(self._folder)) for word in self._job.command)
        enter = self._job.enter[node.number] if self._job.enter else ()
        command = [*enter, sys.executable, "-m", "resilin.launcher.elastic_run", *words]
        with node.output.open("ab") as output:
            node.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env.snapshot(variables)
            )
        node.pids.append(node.process.pid)

    def _await_host(self, until: float) -> None:
        """Wait until the first node serves the store: else another one might."""
        while self._job.endpoint is not None and not self._nodes[0].ended and SYSTEM.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(self._job.endpoint, 1.0):
                return
            SYSTEM.sleep(_POLL_S)

    def _over(self) -> bool:
        return all(node.ended for node in self._nodes) and not self._later

    def _look(self) -> None:
        """Carry out what is due."""
        now = SYSTEM.monotonic()
        for _, undo in [one for one in self._later if one[0] <= now]:
            undo()
        self._later = [one for one in self._later if one[0] > now]
        met = {one.fault for one in records.fired(self._folder)}
        for number, fault in enumerate(self._schedule.faults):
            due = number in met if fault.at else now >= self._start + fault.after_s
            mine = not fault.at or fault.to != "worker"  # else the worker does it to itself
            if due and mine and number not in self._done and self._carry_out(number, fault):
                self._done.add(number)

    def _carry_out(self, number: int, fault: Fault) -> bool:
        """Whether `fault` has happened: a worker may not be there yet."""
        if fault.to == "worker":
            return self._hit_worker(number, fault)
        if fault.to in ("agent", "host"):
            self._hit_agent(self._nodes[fault.node if fault.to == "agent" else 0], number, fault)
            return True
        thing = self._job.store if fault.to == "store" else self._job.link
        if thing is None:
            raise ValueError(f"{fault}: this job has no {fault.to} that can fail")
        self._claim(number, fault)
        self._broken.append(thing)
        thing.fail(fault.do)
        self._at(fault.for_s, self._mend)
        return True

    def _mend(self) -> None:
        while self._broken:
            self._broken.pop().restore()

    def _hit_agent(self, node: _Node, number: int, fault: Fault) -> None:
        process = node.process
        if process is None or process.poll() is not None:
            return
        self._claim(number, fault, process.pid, node.number)
        process.send_signal(SIGNALS[fault.do])
        if fault.do == "stop":
            self._at(fault.for_s, lambda: process.send_signal(signal.SIGCONT))
        else:
            self._at(fault.for_s, lambda: self._again(node))

    def _again(self, node: _Node) -> None:
        """Start the next agent of `node` when the one before it has ended."""
        if node.ended:
            self._begin(node)
        else:
            self._at(_POLL_S, lambda: self._again(node))

    def _hit_worker(self, number: int, fault: Fault) -> bool:
        agents = {node.process.pid: node.number for node in self._nodes if node.process is not None and not node.ended}
        for worker in processes.workers(agents):
            if worker.rank == fault.rank:
                with processes.held(worker) as descriptor:
                    if descriptor is None:
                        return False
                    self._claim(number, fault, worker.pid, agents[worker.agent])
                    signal.pidfd_send_signal(descriptor, SIGNALS[fault.do])
                return True
        return False

    def _claim(self, number: int, fault: Fault, pid: int = 0, node: int = 0) -> None:
        """Record a fault that no worker has met at a moment of its own."""
        if not fault.at:
            now = SYSTEM.monotonic()
            records.claim(self._folder, Fired(fault=number, pid=pid, rank=fault.rank, node=node, mono=now))

    def _at(self, delay_s: float, what: Callable[[], None]) -> None:
        self._later.append((SYSTEM.monotonic() + delay_s, what))

    def _end(self) -> None:
        """Leave nothing running: what was stopped goes on, agents end their workers."""
        self._mend()
        for number in (signal.SIGCONT, signal.SIGTERM):
            for node in self._nodes:
                if node.process is not None and node.process.poll() is None:
                    node.process.send_signal(number)
        for node in self._nodes:
            if node.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.process.wait(_GRACE_S)
                node.process.kill()
                node.process.wait()
