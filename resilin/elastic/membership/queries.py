"""Answer questions about a view: what became of a job's members, who is waited for, what has been counted. Pure.

Questions alone: `membership` answers what follows from them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from resilin.elastic import failure
from resilin.elastic.membership import early_failures, repeated_failures
from resilin.elastic.membership.view import Config, Fate, View
from resilin.elastic.records import Generation, GenerationMember, Node, Slot

RETRIES = 1
"""How often those that waited for one another in vain form the same world anew before one of them is ended."""


def fate(view: View, member: GenerationMember) -> Fate:
    """Say what became of one member of the current generation."""
    node = view.node(member.node)
    if node is None:
        return "lost"
    slot = node.slots[member.slot]
    if slot.incarnation > member.incarnation:
        return "stopped" if slot.stopped >= member.incarnation else "failed"
    if slot.incarnation < member.incarnation:
        return "unstarted"
    number = view.generation.number if view.generation is not None else 0
    if view.apart(member.node) and slot.state in ("running", "ready"):
        return "apart"
    if slot.done_in and slot.state in ("done", "left"):
        if slot.done_in >= number and not 0 < number <= slot.over:
            return "done"
        return "ready" if slot.state == "done" else "left"  # that world is over: it waits for the next one, or has gone
    return "stopped" if slot.state == "idle" else slot.state


def recovers_in_place(view: View) -> bool:
    """Return whether a surviving member said hello, or somebody else has the state: then survivors keep running."""
    if view.generation is None:
        return False
    alive = ("unstarted", "running", "ready", "done")
    if any(slot_of(view, m).endpoint for m in view.generation.members if fate(view, m) in alive):
        return True
    return any(slot.has_state and slot.state == "ready" for seen in view.nodes for slot in seen.node.slots)


def largest_world(view: View) -> int:
    """The most workers that the program has work for, as those that said hello told; 0: any number."""
    slots = (slot for seen in view.nodes for slot in seen.node.slots)
    return min((slot.limit for slot in slots if slot.endpoint and slot.limit > 0), default=0)


def standing_by(view: View) -> tuple[GenerationMember, ...]:
    """Workers that have no place, because the world is as large as it may be. Their rank is -1.

    A member that is gone leaves a place, which stays open while the store is away. Those of nodes that others cannot
    reach have no place either.
    """
    current = view.generation
    if current is None:
        return ()
    apart = tuple(
        member_of(seen.node, slot) for seen in view.nodes if seen.apart for slot in seen.node.slots if slot.alive
    )
    here = sum(fate(view, m) in ("unstarted", "running", "ready", "done") for m in current.members)
    if not 0 < largest_world(view) <= here:
        return apart
    newest = incarnations(current)
    return apart + tuple(
        member_of(seen.node, slot)
        for seen in view.nodes
        if not seen.apart
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
    """Nodes outside the generation that should start workers now: the program recovers in place and has room.

    The oldest first; before these, where no member has the state, those with the newest.
    """
    current = view.generation
    if current is None or not recovers_in_place(view):
        return ()
    # a node has no part in the job any more when all its workers were asked to leave, and have, or have failed for good
    over = {"left"} if may_replace(view, config) else {"left", "failed"}
    nodes = [seen.node for seen in view.nodes if not seen.node.leaving]
    staying = [node for node in nodes if any(slot.state not in over for slot in node.slots)]
    known = frozenset(current.nodes)  # a set: there may be thousands
    members = [n for n in staying if n.id in known]
    others = [n for n in staying if n.id not in known]
    if not has_state(view, current.members):
        others.sort(key=_newest_state, reverse=True)
    return tuple(n.id for n in others[: max(0, config.max_nodes - len(members))])


def _newest_state(node: Node) -> float:
    """Order nodes by the state that their workers have: 0 of one that has none."""
    return max((s.left_out_after or math.inf for s in node.slots if s.has_state and s.alive), default=0.0)


def is_emptied(node: Node) -> bool:
    """Return whether all workers of a node were asked to leave, though the node was not: it has none to go on with."""
    return bool(node.slots) and all(slot.leaving or slot.state == "left" for slot in node.slots)


def may_replace(view: View, config: Config) -> bool:
    """Return whether the failures seen in `view`, not yet counted by a generation, are within the job's restarts."""
    if view.generation is None:
        return False
    failed = sum(fate(view, member) == "failed" for member in view.generation.members)
    return restarts_used(view) + failed <= config.max_restarts


def failed_by_itself(view: View) -> bool:
    """Return whether a member of the current generation failed by its own doing."""
    members = view.generation.members if view.generation is not None else ()
    return any(fate(view, m) == "failed" and slot_of(view, m).fault == "own" for m in members)


def ends_alone(view: View, node_id: str) -> bool:
    """Return whether this node can end a job that has succeeded without a store: all members, and so all state, are its
    own.

    While another node takes part, it may have been told of a generation that this one has not heard of.
    """
    others = any(seen.node.id != node_id and (seen.apart or not seen.node.leaving) for seen in view.nodes)
    return not others and view.generation is not None and all(m.node == node_id for m in view.generation.members)


def has_state(view: View, members: Sequence[GenerationMember]) -> bool:
    """Return whether any of `members` has the job's state."""
    slots = (slot_of(view, m) for m in members if view.node(m.node) is not None)
    return any(slot.has_state and slot.alive for slot in slots)


def who_stays(view: View, config: Config) -> tuple[bool, bool]:
    """Return whether any worker is there, or to come, that was not asked to leave; and whether one of them has the
    job's state.
    """
    there, replaced, called = False, may_replace(view, config), invited(view, config)
    for seen in view.nodes:
        if seen.node.leaving:
            continue
        for slot in seen.node.slots:
            alive = (slot.alive or slot.state == "done") and not slot.leaving
            if alive and slot.has_state:
                return True, True
            there |= alive or (slot.state == "failed" and replaced)
            there |= slot.state == "idle" and seen.node.id in called
    return there, False


def keepers(view: View, config: Config) -> frozenset[tuple[str, int]]:
    """Nodes and slots of the workers that were asked to leave and stay members, because they alone have the job's state
    and others, there or to come, need it."""
    stay, has_state = who_stays(view, config)
    if not stay or has_state:
        return frozenset()
    return frozenset(
        (seen.node.id, slot.index)
        for seen in view.nodes
        if not seen.apart
        for slot in seen.node.slots
        if slot.has_state and slot.alive
    )


def judgement(view: View, config: Config) -> repeated_failures.Judgement:
    """Return what failures at one and the same step come to."""
    staying = [seen.node.id for seen in view.nodes if not seen.node.leaving]
    current = view.generation
    return (
        repeated_failures.judge(current, failures(view), staying, config)
        if current is not None
        else repeated_failures.Judgement()
    )


def early_judgement(view: View, config: Config) -> repeated_failures.Judgement:
    """Return what errors at one line before `@elastic.run` come to."""
    return early_failures.judge((seen.node for seen in view.nodes), config)


def restarts_used(view: View) -> int:
    """Count what the current generation has, and since then the failures of workers that never became members."""
    current = view.generation
    if current is None:
        return 0
    counted = dict(current.unjoined)
    return current.restarts_used + sum(max(0, s.node.unjoined - counted.get(s.node.id, 0)) for s in view.nodes)


def unresponsive(view: View) -> tuple[GenerationMember, ...]:
    """Members to be killed, because others of the generation waited for them in vain as long as their group allows.

    A member that reports others is alive and answers, so those that are named and silent come first, and of these the
    ones named by most. Where all that are named have reported (each side waited for the other), they try once more
    together (`at_odds`); when that has not helped, one is chosen: without the job's state before any that has it, named
    by most, and of the highest rank. So somebody is always left, and every node chooses the same. Nobody, while a node
    still tries whether it reaches those that its workers name: a cut of the network is nobody's fault (`reachability`).
    """
    current = view.generation
    if current is None:
        return ()
    alive, named, silent = _missed(view, current)
    if silent:
        return tuple(alive[rank] for rank in sorted(silent) if silent[rank] == max(silent.values()))
    if retries(view) < RETRIES:
        return ()
    new = {rank: count for rank, count in named.items() if not slot_of(view, alive[rank]).has_state}
    candidates = new or named
    chosen = [rank for rank in sorted(candidates) if candidates[rank] == max(candidates.values())]
    return tuple(alive[rank] for rank in chosen[-1:])


def retries(view: View) -> int:
    """Return how often in a row the present world was formed once more over links that work, and nobody has made a step
    in it.
    """
    current = view.generation
    if current is None:
        return 0
    told = (slot_of(view, m) for m in current.members if fate(view, m) in ("running", "ready", "done"))
    worked = any(slot.missed_in == current.number and slot.missed_worked for slot in told)
    cut = any(seen.node.cut_in == current.number for seen in view.nodes)
    return 0 if worked or cut else current.retried


def at_odds(view: View) -> tuple[int, ...]:
    """The ranks that waited for one another in vain, when all of them answer and none can be blamed: a link was cut
    for a moment, or some came when others had given up. The same world is to be formed anew.
    """
    current = view.generation
    if current is None or retries(view) >= RETRIES:
        return ()
    _, named, silent = _missed(view, current)
    return () if silent else tuple(sorted(named))


def _missed(view: View, current: Generation) -> tuple[dict[int, GenerationMember], Counter[int], dict[int, int]]:
    """The living members by rank; how often each was missed by others; the same of those that said nothing themselves.

    Nobody is missed while the nodes of those that miss and are missed still try whom they reach.
    """
    alive = {m.rank: m for m in current.members if fate(view, m) in ("unstarted", "running", "ready", "done")}
    told = {rank: slot for rank, m in alive.items() if (slot := slot_of(view, m)).missed_in == current.number}
    named = Counter(rank for teller, slot in told.items() for rank in set(slot.missed) - {teller} if rank in alive)
    tries = (view.node(alive[rank].node) for rank in (*told, *named))
    if not all(node is not None and node.tried_in == current.number for node in tries):
        return alive, Counter(), {}
    return alive, named, {rank: count for rank, count in named.items() if rank not in told}


def to_try(view: View, node_id: str) -> frozenset[str] | None:
    """Return the nodes with which `node_id` has to try whether it can connect: those that its workers waited for in
    vain; all of the world, when one of its own was waited for: it may be the one that waits for somebody beyond a cut.

    None: neither has happened.
    """
    current = view.generation
    if current is None:
        return None
    mine = {m.rank for m in current.members if m.node == node_id}
    missed: set[int] | None = None
    for member in current.members:
        node = view.node(member.node)
        slot = node.slots[member.slot] if node is not None else None
        if slot is None or slot.missed_in != current.number or slot.incarnation != member.incarnation:
            continue
        if not mine.isdisjoint(slot.missed):
            return frozenset(current.nodes) - {node_id}
        if member.node == node_id:
            missed = {*(missed or ()), *slot.missed}
    if missed is None:
        return None
    return frozenset(m.node for m in current.members if m.rank in missed) - {node_id}


def missed_by_newcomers(view: View, member: GenerationMember) -> bool:
    """Return whether `member` has the job's state, and nobody who has it waited for the member in vain.

    Those that come to a world wait for it longer than it knows of them: their word alone weighs less.
    """
    current = view.generation
    if current is None or not slot_of(view, member).has_state:
        return False
    alive, _, _ = _missed(view, current)
    tellers = [slot_of(view, m) for m in alive.values() if m != member]
    return not any(t.has_state and t.missed_in == current.number and member.rank in t.missed for t in tellers)


def complaint(view: View, member: GenerationMember) -> str:
    """Return what the error of the lowest rank that waited for `member` in vain said."""
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
    """Return what nodes told of the current generation's failures, one for each node that had any.

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
