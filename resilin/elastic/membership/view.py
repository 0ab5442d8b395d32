"""Define what decisions about membership look at, and what they come to: the words of `membership`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from resilin.elastic.records import Closed, Generation, GenerationMember, Node, Wanted

Action = Literal["wait", "form", "stop", "reshape", "steady", "fail", "interrupt", "succeed", "closed"]
Fate = Literal["unstarted", "running", "ready", "done", "absent", "failed", "left", "stopped", "apart", "lost"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Set what a job allows. Equal on all nodes of a job."""

    min_nodes: int
    """Fewer nodes than this never form a generation."""
    max_nodes: int
    """Nodes beyond this wait as spares."""
    max_restarts: int
    """Failures that are answered with a new worker, counted over the whole job."""
    last_call_s: float = 0.5
    """Seconds without a new node before a world smaller than `max_nodes` forms, or before one that runs is enlarged."""
    rejoin_s: float = 0.0
    """Seconds that this node, which replaces one of a job that has begun, leaves to those who were in it to come back,
    before it begins the job anew in a store that knows none. Its own: it need not be equal on all nodes."""
    max_step_failures: int = 3
    """Failures at one step, in a row, that end the job; 0: any number."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A live node as the store shows it. `first_seen`: this agent's own monotonic clock, in seconds."""

    node: Node
    create_revision: int
    first_seen: float = 0.0
    apart: str = ""
    """Why it takes no part for now: a node that does cannot connect with it, or nobody takes part (`reachability`).
    Empty: it may."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything a decision may look at. `nodes` are ordered by create_revision, the oldest first."""

    nodes: tuple[Seen, ...] = ()
    generation: Generation | None = None
    closed: Closed | None = None
    wanted: Wanted | None = None
    """What people asked for; `sizing.adjusted` has already made the nodes so."""
    elected: str = ""
    """The id of the node that carries out what is decided; empty: none does, or it has not looked around yet."""

    def node(self, node_id: str) -> Node | None:
        """The live node with this id."""
        return self._by_id.get(node_id)

    def apart(self, node_id: str) -> str:
        """Why a live node takes no part for now, because another one cannot connect with it; empty: it may."""
        return self._apart.get(node_id, "")

    def leader(self) -> str | None:
        """The id of the node that carries out what is decided, if one does."""
        return self.elected or None

    @property
    def torn(self) -> bool:
        """Whether nobody goes on, because no nodes that reach one another have all of the divided state together."""
        return any(seen.apart for seen in self.nodes) and all(seen.node.leaving for seen in self.nodes)

    @cached_property
    def _by_id(self) -> dict[str, Node]:
        return {seen.node.id: seen.node for seen in self.nodes}

    @cached_property
    def _apart(self) -> dict[str, str]:
        return {seen.node.id: seen.apart for seen in self.nodes if seen.apart}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Say what to do and why. `until`: look again at this monotonic time, whatever happens."""

    action: Action
    reason: str
    until: float | None = None
    counted: int = 0  # failures that the next generation adds to its count
    boundary: Literal["now", "commit"] = "now"
    retried: int = 0  # see `Generation.retried`
    keep: tuple[GenerationMember, ...] = ()
    joined: tuple[GenerationMember, ...] = ()  # rank -1: not assigned yet
