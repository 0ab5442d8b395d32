"""The processes of a job on this machine: asked of its agents, and never one that is not below them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from resilin.errors import ResilinError
from resilin.launcher import jobs, local, status


@dataclass(frozen=True, kw_only=True)
class Process:
    """A worker that runs."""

    pid: int
    rank: int
    agent: int
    """The process of its agent."""


def workers(agents: Collection[int]) -> list[Process]:
    """The members of the current generation on nodes whose agents have the process numbers `agents`."""
    found = []
    for client in local.agents():
        with contextlib.closing(client):
            if client.pid in agents:
                with contextlib.suppress(ResilinError):  # it ends just now, or has not registered yet
                    found += _workers(client)
    return found


def _workers(client: local.AgentClient) -> list[Process]:
    job = jobs.read(client, client.job)
    ranks = status.ranks(job)
    return [
        Process(pid=slot.pid, rank=rank, agent=client.pid)
        for node in job.nodes
        if node.id == client.node
        for slot in node.slots
        if slot.pid and (rank := ranks.get((node.id, slot.index, slot.incarnation))) is not None
    ]


@contextlib.contextmanager
def held(worker: Process) -> Iterator[int | None]:
    """A pidfd of the worker; None when there is no such process below its agent any more."""
    try:
        descriptor = os.pidfd_open(worker.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield (
            descriptor if worker.agent in (worker.pid, *_ancestors(worker.pid)) else None
        )  # looked at while the number is ours
    finally:
        os.close(descriptor)


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError, IndexError, ValueError):  # one of them has ended
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            found.append(pid)
    return found
