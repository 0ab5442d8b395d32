"""What a view says of a job's members: what became of them, who is waited for, what has been counted. Pure.

Questions alone: `membership` answers what follows from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from resilin.elastic import failure
from resilin.elastic.deciding import poison
from resilin.elastic.deciding.view import Config, Fate, View
from resilin.elastic.records import Generation, GenerationMember, Node, Slot


def fate(view: View, member: GenerationMember) -> Fate:
    """What became of one member of the current generation."""
    node = view.node(member.node)
    if node is None:
        return "lost"
    slot = node.slots[member.slot]
    if slot.incarnation > member.incarnation:
        return "stopped" if slot.stopped >= member.incarnation else "failed"
    if slot.incarnation < member.incarnation:
        return "unstarted"
    number = view.generation.number if view.generation is not None else 0
    if slot.state == "done" and slot.done_in and (slot.done_in < number or 0 < number <= slot.over):
        return "ready"  # done in a world that is over: it has not been given the next one yet
    return "stopped" if slot.state == "idle" else slot.state


def recovers_in_place(view: View) -> bool:
    """Whether a surviving member said hello: then survivors keep running."""
    if view.generation is None:
        return False
    alive = ("unstarted", "running", "ready", "done")
    return any(slot_of(view, m).endpoint for m in view.generation.members if fate(view, m) in alive)


def largest_world(view: View) -> int:
    """The most workers that the program has work for, as those that said hello told; 0: any number."""
    slots = (slot for seen in view.nodes for slot in seen.node.slots)
    return min((slot.limit for slot in slots if slot.endpoint and slot.limit > 0), default=0)


def standing_by(view: View) -> tuple[GenerationMember, ...]:
    """Workers that have no place, because the world is as large as it may be. Their rank is -1.

    A member that is gone leaves a place, which stays open while the store is away.
    """
    current = view.generation
    if current is None:
        return ()
    here = sum(fate(view, m) in ("unstarted", "running", "ready", "done") for m in current.members)
    if not 0 < largest_world(view) <= here:
        return ()
    newest = incarnations(current)
    return tuple(
        member_of(seen.node, slot)
        for seen in view.nodes
        for slot in seen.node.slots
        if slot.alive and slot.incarnation > newest.get((seen.node.id, slot.index), 0)
    )


def awaited(view: View) -> tuple[GenerationMember, ...]:
    """Members that the others wait for: those of a program that recovers in place that have not said hello yet."""
    current = view.generation
    if current is None or view.closed is not None or not recovers_in_place(view):
        return ()
    most = largest_world(view)
    here = sum(fate(view, m) in ("ready", "done") and bool(slot_of(view, m).endpoint) for m in current.members)
    if 0 < most <= here:  # a world of those that are here is as large as it may be
        return ()
    return tuple(m for m in current.members if fate(view, m) in ("unstarted", "running"))


def invited(view: View, config: Config) -> tuple[str, ...]:
    """Nodes outside the generation that should start workers now: the program recovers in place and has room."""
    current = view.generation
    if current is None or not recovers_in_place(view):
        return ()
    staying = [seen.node for seen in view.nodes if not seen.node.leaving]
    spent = not may_replace(view, config)  # then a node whose workers have all failed has no part in the job any more
    known = frozenset(current.nodes)  # a set: there may be thousands
    members = [n for n in staying if n.id in known]
    members = [n for n in members if not spent or any(slot.state != "failed" for slot in n.slots)]
    others = [n.id for n in staying if n.id not in known]
    return tuple(others[: max(0, config.max_nodes - len(members))])


def may_replace(view: View, config: Config) -> bool:
    """Whether the failures seen in `view`, not yet counted by a generation, are still within the job's restarts."""
    if view.generation is None:
        return False
    failed = sum(fate(view, member) == "failed" for member in view.generation.members)
    return restarts_used(view) + failed <= config.max_restarts


def failed_by_itself(view: View) -> bool:
    """Whether a member of the current generation failed by its own doing."""
    members = view.generation.members if view.generation is not None else ()
    return any(fate(view, m) == "failed" and slot_of(view, m).fault == "own" for m in members)


def ends_alone(view: View, node_id: str) -> bool:
    """Whether this node can end a job that has succeeded without a store: all members, and so all state, are its own.

    While another node takes part, it may have been told of a generation that this one has not heard of.
    """
    others = any(seen.node.id != node_id and not seen.node.leaving for seen in view.nodes)
    return not others and view.generation is not None and all(m.node == node_id for m in view.generation.members)


def judgement(view: View, config: Config) -> poison.Judgement:
    """What failures at one and the same step come to."""
    staying = [seen.node.id for seen in view.nodes if not seen.node.leaving]
    current = view.generation
    return poison.judge(current, failures(view), staying, config) if current is not None else poison.Judgement()


def restarts_used(view: View) -> int:
    """What the current generation has counted, and since then the failures of workers that never became members."""
    current = view.generation
    if current is None:
        return 0
    counted = dict(current.unjoined)
    return current.restarts_used + sum(max(0, s.node.unjoined - counted.get(s.node.id, 0)) for s in view.nodes)


def unresponsive(view: View) -> tuple[GenerationMember, ...]:
    """Members to be killed, because others of the generation waited for them in vain as long as their group allows.

    A member that reports others is alive and answers, so those that are named and silent come first, and of these the
    ones named by most. Where all that are named have reported (each side waited for the other), one is chosen: named by
    most, and of the highest rank. So somebody is always left, and every node chooses the same.
    """
    current = view.generation
    if current is None:
        return ()
    alive = {m.rank: m for m in current.members if fate(view, m) in ("unstarted", "running", "ready", "done")}
    reports = {rank: slot.missed for rank, m in alive.items() if (slot := slot_of(view, m)).missed_in == current.number}
    named = Counter(rank for teller, missed in reports.items() for rank in set(missed) - {teller} if rank in alive)
    silent = {rank: count for rank, count in named.items() if rank not in reports}
    candidates = silent or named
    chosen = [rank for rank in sorted(candidates) if candidates[rank] == max(candidates.values())]
    return tuple(alive[rank] for rank in (chosen if silent else chosen[-1:]))


def complaint(view: View, member: GenerationMember) -> str:
    """What the error of the lowest rank that waited for `member` in vain said."""
    current = view.generation
    members = current.members if current is not None else ()
    slots = [slot_of(view, m) for m in members if view.node(m.node) is not None]
    told = [slot for slot in slots if current is not None and slot.missed_in == current.number]
    return next((slot.missed_at for slot in told if member.rank in slot.missed), "")


# --------------------------------------------------------------------------------------------- records


def incarnations(generation: Generation | None) -> dict[tuple[str, int], int]:
    """By node and slot, the incarnation that is a member."""
    members = generation.members if generation is not None else ()
    return {(m.node, m.slot): m.incarnation for m in members}


def member_of(node: Node, slot: Slot) -> GenerationMember:
    """The worker in a slot as a member that has no rank yet."""
    return GenerationMember(node=node.id, slot=slot.index, incarnation=slot.incarnation, rank=-1)


def slot_of(view: View, member: GenerationMember) -> Slot:
    """The slot of a member whose node is there."""
    node = view.node(member.node)
    assert node is not None
    return node.slots[member.slot]


def failures(view: View) -> list[Mapping[str, Any]]:
    """What nodes told of the current generation's failures, one for each node that had any.

    Where all of them only missed somebody, and who is not there any more has ended well: that is the cause, and stands
    first.
    """
    current = view.generation
    if current is None:
        return []
    fates = {m: fate(view, m) for m in current.members}
    nodes = {m.node for m, value in fates.items() if value == "failed"}
    told = [seen.node.failure for seen in view.nodes if seen.node.id in nodes and seen.node.failure is not None]
    gone = [m for m, value in fates.items() if value in ("done", "lost", "left", "stopped")]
    well = [m for m in gone if fates[m] == "done" and slot_of(view, m).ended]
    if not well or len(well) < len(gone) or not told or not all(map(failure.follows, told)):
        return told
    return [_ended_early(view, current, well, told[0]), *told]


def _ended_early(
    view: View, current: Generation, members: Sequence[GenerationMember], missed: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The end of workers with code 0 that others waited for, as a failure: of the lowest rank."""
    member = members[0]
    node, slot = view.node(member.node), slot_of(view, member)
    assert node is not None
    said = str(missed.get("message", "")).strip().partition("\n")[0].partition(". ")[0]  # without the advice
    others = ", ".join(str(m.rank) for m in members[1:])
    also = f"; rank{'s' if len(members) > 2 else ''} {others} had ended, too" if others else ""
    return failure.Failure(
        rank=member.rank,
        local_rank=member.slot,
        node=node.id,
        host=node.host,
        pid=slot.ended,
        generation=current.number,
        code=0,
        missed=failure.shorten(f"{missed.get('type')} of rank {missed.get('rank')}: {said}{also}", failure.LINE_CHARS),
    ).to_json()
