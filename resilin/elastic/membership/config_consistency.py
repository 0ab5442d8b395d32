"""Compare what all nodes of a job should have been started with alike; say where they were not. No clock, no I/O.

Only what decisions look at counts: the node that leads decides by its own, so the job would change with its leader.
Each node compares itself with that one, and that one with all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from resilin.elastic.membership.view import Config, View
from resilin.elastic.records import Node

_FLAGS = (
    "--max-restarts",
    "--max-step-failures",
    "--rdzv-conf last_call_timeout=",
    "--rdzv-conf join_timeout=",
    "--rdzv-conf lease_ttl=",
)


def of(config: Config, *, join_timeout_s: float, lease_ttl_s: float) -> tuple[str, ...]:
    """A node's own terms, as its record has them: short, because there may be thousands."""
    numbers = (config.max_restarts, config.max_step_failures, config.last_call_s, join_timeout_s, lease_ttl_s)
    return tuple(f"{number:g}" for number in numbers)


class SharedConfig:
    """Of one node, `node_id`. `say` takes lines for people."""

    def __init__(self, node_id: str, say: Callable[[str], None]) -> None:
        self._node_id = node_id
        self._say = say
        self._told: set[tuple[str, str]] = set()

    def look(self, view: View) -> None:
        """Say in what other nodes differ, once of each."""
        leader, own = view.node(view.leader() or ""), view.node(self._node_id)
        if leader is None or own is None:
            return
        for seen in view.nodes if leader is own else ():
            self._compare(leader, seen.node)
        if leader is not own:
            self._compare(leader, own)

    def _compare(self, leader: Node, other: Node) -> None:
        if (leader.id, other.id) in self._told or not leader.terms or not other.terms:
            return
        self._told.add((leader.id, other.id))
        different = [(one, two) for one, two in zip(_told(leader), _told(other), strict=False) if one != two]
        if different:
            ours, theirs = (", ".join(texts) for texts in zip(*different, strict=True))
            self._say(
                f"nodes of this job were started differently: node {leader.id} with {ours}, node {other.id} with "
                f"{theirs}; the first one leads, so its values count, and another's when it is gone: start all alike"
            )


def _told(node: Node) -> Iterator[str]:
    low, high = node.min_nodes, node.max_nodes
    yield f"--nnodes {low if low == high else f'{low}:{high}'}"
    for flag, value in zip(_FLAGS, node.terms, strict=False):  # of another version: what both know
        yield f"{flag}{'' if flag.endswith('=') else ' '}{value}"
