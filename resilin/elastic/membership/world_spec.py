"""Describe a generation to one worker: its place, its world, its peers' endpoints. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resilin.elastic import control, failure
from resilin.elastic.failure import Failure
from resilin.elastic.membership import queries
from resilin.elastic.membership.view import View
from resilin.elastic.records import Generation, GenerationMember, Slot
from resilin.elastic.spawn.environment import WorkerPlace


def place(generation: Generation, member: GenerationMember) -> WorkerPlace:
    """Return where `member` stands. Its local rank is its slot: it stays the same in every world."""
    return WorkerPlace(
        rank=member.rank,
        local_rank=member.slot,
        world_size=len(generation.members),
        local_world_size=sum(m.node == member.node for m in generation.members),
        node_rank=generation.nodes.index(member.node),
        node_count=len(generation.nodes),
        generation=generation.number,
        restarts_used=generation.restarts_used,
        master_addr=generation.master_addr,
        master_port=generation.master_port,
    )


def provisional_place(current: Generation, node_id: str, slot: int, workers: int) -> WorkerPlace:
    """Return what a worker that joins later finds in its environment; its real place comes with its first world."""
    nodes = current.nodes
    return WorkerPlace(
        rank=len(current.members),
        local_rank=slot,
        world_size=len(current.members) + 1,
        local_world_size=workers,
        node_rank=nodes.index(node_id) if node_id in nodes else len(nodes),
        node_count=len({*nodes, node_id}),
        generation=current.number,
        restarts_used=current.restarts_used,
        master_addr=current.master_addr,
        master_port=current.master_port,
    )


def slot(view: View, member: GenerationMember) -> Slot:
    """The slot of a worker whose node is there."""
    node = view.node(member.node)
    assert node is not None, "the node of a worker that is seen is seen"
    return node.slots[member.slot]


def endpoints(view: View, generation: Generation) -> tuple[str, ...] | None:
    """The endpoints of all members in rank order; None while one is not known, or when a smaller world is to come."""
    if 0 < queries.largest_world(view) < len(generation.members):
        return None
    found = []
    for member in generation.members:
        node = view.node(member.node)
        slot = node.slots[member.slot] if node is not None else None
        if slot is None or slot.incarnation != member.incarnation or not slot.endpoint:
            return None
        found.append(slot.endpoint)
    return tuple(found)


def world(view: View, generation: Generation, member: GenerationMember, known: tuple[str, ...]) -> control.World:
    """The message that makes `member` part of `generation`; `known` are the endpoints in rank order."""
    own = place(generation, member)
    hosts = {seen.node.id: seen.node.host for seen in view.nodes}
    return control.World(
        number=generation.number,
        rank=own.rank,
        world_size=own.world_size,
        local_rank=own.local_rank,
        local_world_size=own.local_world_size,
        node_rank=own.node_rank,
        node_count=own.node_count,
        endpoints=known,
        members=tuple(
            control.Member(rank=m.rank, node=m.node, slot=m.slot, incarnation=m.incarnation, host=hosts.get(m.node, ""))
            for m in generation.members
        ),
        reason=generation.reason,
    )


def first_cause(failures: Sequence[Failure]) -> Failure | None:
    """The first one that was not caused by another's end; the first one if all were; None without any."""
    return min(failures, key=lambda each: each.follows, default=None)


def unexplained(view: View) -> bool:
    """Return whether only failures are known that follow from another one's, and somebody runs who may be that one."""
    current, first = view.generation, first_failure(view)
    if current is None or first is None or not (failure.follows(first) or first.get("missed")):
        return False
    return any(view.node(m.node) is not None and slot(view, m).alive for m in current.members)


def first_failure(view: View) -> Mapping[str, Any] | None:
    """The first cause, as the records of the nodes have it that current members failed on."""
    first = first_cause([Failure.from_json(body) for body in queries.failures(view)])
    return first.to_json() if first is not None else None
