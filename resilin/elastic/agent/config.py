"""Hold what an agent is given at its start, and what it gives back at its end."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import SupportsInt

from resilin.elastic.agent.reachability_probe import Connect, connects
from resilin.elastic.agent.streams import Plan
from resilin.elastic.failure import Failure
from resilin.elastic.membership.node_quarantine import Rules
from resilin.elastic.membership.view import Config
from resilin.elastic.rendezvous import store_executor
from resilin.elastic.spawn import environment
from resilin.elastic.spawn.program import Program
from resilin.errors import ResilinError


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """One node's part of a job."""

    job: environment.JobEnvironment
    membership: Config
    program: Program
    plan: Plan
    node_id: str
    host: str
    address: str
    master_port: SupportsInt
    """`MasterPort` where it is held and another one may be taken."""
    workers: int
    """Processes on this node."""
    inherited: Mapping[str, str]
    """The environment that workers start from."""
    rank_hint: int = -1
    shutdown_timeout_s: float = 30.0
    """Between asking a worker to end and killing it."""
    join_timeout_s: float = 600.0
    """How long to wait for enough nodes."""
    outage_timeout_s: float = 60.0
    """How long to wait for a store that went away while a change of the world is needed. Training needs no store."""
    hang_timeout_s: float | None = None
    """Seconds without a step after which who holds the others up is ended; 0: learned (`pace`); None: never."""
    compare_ranks: bool = False
    """Whether to look now and then which rank is slower than the others (`stragglers`)."""
    exclusion: Rules = field(default_factory=Rules)
    """When this node is taken out for a while, because its workers keep failing."""
    lease_ttl_s: float = 5.0
    """A node that is silent for this long is gone."""
    signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    store_in_process: bool = False
    caller: store_executor.Caller | None = None
    """How calls reach a store that is elsewhere; None: by a thread of its own."""
    connect: Connect = connects
    """How this node tries whether another one's workers can be reached."""
    meeting: str = ""
    """Where nodes meet; for people."""
    hosted: bool = False
    """Whether the store is in the memory of one node's agent, or of one process, and goes with it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Record how the job ended on this node. `code` is the exit code of `elastic-run`."""

    code: int
    reason: str
    failure: Failure | None = None
    error: ResilinError | None = None
    title: str = "job failed"
    """What stands before the failure."""
