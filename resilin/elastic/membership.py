"""Decides membership. Pure: no clock, no socket, no thread.

`assess` says in which situation a job is, `decide` turns that into the next generation. Every agent evaluates `assess`
on its own view to know whether its workers must stop; only the leader's `decide` is written to the store.

    waiting ──enough nodes──> forming ──> steady ──a plain worker failed, a node came or went──> stopping ──> forming
                                            │ ^
                                            └─┴── reshaping: all survivors recover in place
                                            └──> succeeded | failed | interrupted
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from resilin.elastic import failure, poison
from resilin.elastic.records import Generation, GenerationMember, Node, Slot
from resilin.elastic.view import Config, Fate, Seen, Situation, View

_NEWCOMERS_TOLD = 8  # the reason stands in every record and message of the generation


def decide(view: View, config: Config, now: float) -> tuple[Generation | None, str]:
    """The next generation, or None, and the reason either way. `now`: this agent's monotonic clock, in seconds."""
    situation = assess(view, config, now)
    if situation.action == "form":
        return _form(view, config, situation), situation.reason
    if situation.action == "reshape":
        return _reshape(view, situation), situation.reason
    return None, situation.reason


def assess(view: View, config: Config, now: float) -> Situation:
    """In which situation the job is."""
    current = view.generation
    if view.closed is not None:
        return Situation(action="closed", reason=view.closed.reason)
    if current is None or not any(view.node(node) for node in current.nodes):
        return _gather(view, config, now, "first generation" if current is None else "every earlier node is gone")
    fates = {member: fate(view, member) for member in current.members}
    staying = [f for member, f in fates.items() if not _leaving(view, member)]
    if all(f == "done" for f in fates.values()) or (staying and all(f in ("done", "left") for f in staying)):
        asked = [slot for m in fates if fates[m] == "left" and (slot := _slot(view, m)).asked]
        if asked and "done" not in fates.values():
            return Situation(action="interrupt", reason=_interrupted(asked))
        return Situation(action="succeed", reason="all workers are done")
    if recovers_in_place(view):
        return _assess_in_place(view, current, config, fates)
    return _assess_restart(view, current, config, fates, now)


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
    return any(_slot(view, m).endpoint for m in view.generation.members if fate(view, m) in alive)


def largest_world(view: View) -> int:
    """The most workers that the program has work for, as those that said hello told; 0: any number."""
    slots = (slot for seen in view.nodes for slot in seen.node.slots)
    return min((slot.limit for slot in slots if slot.endpoint and slot.limit > 0), default=0)


def standing_by(view: View) -> tuple[GenerationMember, ...]:
    """Workers that have no place, because the world is as large as it may be. Their rank is -1."""
    current = view.generation
    if current is None or not 0 < largest_world(view) <= len(current.members):
        return ()
    newest = _incarnations(current)
    return tuple(
        _member(seen.node, slot)
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
    here = sum(fate(view, m) in ("ready", "done") and bool(_slot(view, m).endpoint) for m in current.members)
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
    return any(fate(view, m) == "failed" and _slot(view, m).fault == "own" for m in members)


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
    return poison.judge(current, _failures(view), staying, config) if current is not None else poison.Judgement()


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
    reports = {rank: slot.missed for rank, m in alive.items() if (slot := _slot(view, m)).missed_in == current.number}
    named = Counter(rank for teller, missed in reports.items() for rank in set(missed) - {teller} if rank in alive)
    silent = {rank: count for rank, count in named.items() if rank not in reports}
    candidates = silent or named
    chosen = [rank for rank in sorted(candidates) if candidates[rank] == max(candidates.values())]
    return tuple(alive[rank] for rank in (chosen if silent else chosen[-1:]))


def complaint(view: View, member: GenerationMember) -> str:
    """What the error of the lowest rank that waited for `member` in vain said."""
    current = view.generation
    members = current.members if current is not None else ()
    slots = [_slot(view, m) for m in members if view.node(m.node) is not None]
    told = [slot for slot in slots if current is not None and slot.missed_in == current.number]
    return next((slot.missed_at for slot in told if member.rank in slot.missed), "")


# ------------------------------------------------------------------------------------------- in place


def _assess_in_place(view: View, current: Generation, config: Config, fates: dict[GenerationMember, Fate]) -> Situation:
    fates = {m: "absent" if f == "done" and not _slot(view, m).endpoint else f for m, f in fates.items()}
    failed = [member for member, value in fates.items() if value == "failed"]
    gone = [member for member, value in fates.items() if value in ("failed", "lost", "left", "absent", "stopped")]
    used = restarts_used(view) + len(failed)
    own = [member for member in failed if _slot(view, member).fault == "own"]
    if own and used > config.max_restarts:
        return Situation(action="fail", reason=_too_many(own, view, config))
    if failed and (verdict := judgement(view, config).verdict):
        return Situation(action="fail", reason=verdict)
    most = largest_world(view)
    # a node was taken for lost, the others' workers were told so, and it came back before a new world was agreed on
    over = any(value != "lost" and _slot(view, m).over >= current.number for m, value in fates.items())
    keep = tuple(m for m in current.members if m not in gone and not _leaving(view, m))
    if len(keep) < len(current.members) or over:  # those that have not said hello yet join when they do
        keep = tuple(m for m in keep if _slot(view, m).endpoint)
    whole = len(keep) == len(current.members) and not over
    finishing = whole and "done" in fates.values()  # then nobody needs newcomers
    joined = () if finishing else _joiners(view, current, config, at_once=most > 0 and bool(gone))
    nodes = {member.node for member in (*keep, *joined)}  # those that will stand by count, too
    if 0 < most < len(keep) and sum(bool(_slot(view, m).endpoint) for m in keep) >= most:
        keep = tuple(m for m in keep if _slot(view, m).endpoint)[:most]
    joined = joined[: max(0, most - len(keep))] if most else joined
    if len(keep) == len(current.members) and not joined and not over:
        return Situation(action="steady", reason="all members are well")
    reason = _why(view, current, fates, {member.node for member in joined})
    if len(nodes) < config.min_nodes:
        return Situation(action="wait", reason=f"{reason}; {len(nodes)} of at least {config.min_nodes} nodes are left")
    return Situation(
        action="reshape",
        reason=reason,
        counted=_counted(view, config, len(failed)),
        boundary="now" if gone or over else "commit",
        keep=keep,
        joined=joined,
    )


def _joiners(view: View, current: Generation, config: Config, at_once: bool = False) -> tuple[GenerationMember, ...]:
    """Workers that said hello and are no members yet, of nodes where none is still on its way (or of all: at once)."""
    newest = _incarnations(current)  # an older one is about to be stopped: its slot has a member that has not started
    allowed = {*current.nodes, *invited(view, config)}
    found = []
    for seen in view.nodes:
        node = seen.node
        if node.id not in allowed or node.leaving:
            continue
        new = [s for s in node.slots if s.incarnation > newest.get((node.id, s.index), 0)]
        if at_once or all(slot.state != "running" for slot in new):
            found += [_member(node, slot) for slot in new if slot.state == "ready" or slot.redoing]
    return tuple(found)


def _reshape(view: View, situation: Situation) -> Generation:
    """Survivors keep their ranks where the new size allows it, fill holes otherwise; newcomers take what is left."""
    current = view.generation
    assert current is not None
    size = len(situation.keep) + len(situation.joined)
    taken = {member.rank for member in situation.keep if member.rank < size}
    free = iter([rank for rank in range(size) if rank not in taken])
    kept = [m if m.rank in taken else m._replace(rank=next(free)) for m in situation.keep]
    added = [m._replace(rank=next(free)) for m in situation.joined]
    members = sorted((*kept, *added), key=lambda member: member.rank)
    present = {member.node for member in members}
    order = [n for n in current.nodes if n in present]
    known = frozenset(current.nodes)
    order += [s.node.id for s in view.nodes if s.node.id in present and s.node.id not in known]
    return _generation(view, "inplace", members, order, situation)


# -------------------------------------------------------------------------------------------- restart


def _assess_restart(
    view: View, current: Generation, config: Config, fates: dict[GenerationMember, Fate], now: float
) -> Situation:
    failed = [member for member, value in fates.items() if value == "failed"]
    if failed and restarts_used(view) + 1 > config.max_restarts:
        return Situation(action="fail", reason=_too_many(failed, view, config))
    if failed and (verdict := judgement(view, config).verdict):
        return Situation(action="fail", reason=verdict)
    broken = any(value in ("failed", "lost", "stopped", "left") for value in fates.values())
    leaving = any(_leaving(view, member) for member in current.members)
    newcomers, until = _newcomers(view, current, config, fates, now)
    if not broken and not leaving and not newcomers:
        return Situation(action="steady", reason="all members are well", until=until)
    reason = _why(view, current, fates, newcomers)
    if any(slot.alive for seen in view.nodes for slot in seen.node.slots):
        return Situation(action="stop", reason=reason)
    return _gather(view, config, now, reason, counted=_counted(view, config, 1 if failed else 0), formed=True)


def _newcomers(
    view: View, current: Generation, config: Config, fates: dict[GenerationMember, Fate], now: float
) -> tuple[set[str], float | None]:
    """Nodes that a running world should be enlarged by now, or the time to look again."""
    known = frozenset(current.nodes)
    members = [s for s in view.nodes if s.node.id in known and not s.node.leaving]
    others = [s for s in view.nodes if s.node.id not in known and not s.node.leaving]
    room = config.max_nodes - len(members)
    if room <= 0 or not others or any(value == "done" for value in fates.values()):
        return set(), None
    settled = max(seen.first_seen for seen in others) + config.last_call_s
    if now < settled and len(others) < room:
        return set(), settled
    return {seen.node.id for seen in others[:room]}, None


def _gather(view: View, config: Config, now: float, reason: str, counted: int = 0, formed: bool = False) -> Situation:
    """Whether enough nodes are there to form a generation from scratch."""
    ready = [seen for seen in view.nodes if not seen.node.leaving]
    if len(ready) < config.min_nodes:
        return Situation(action="wait", reason=f"{len(ready)} of at least {config.min_nodes} nodes are there")
    settled = max(seen.first_seen for seen in ready) + config.last_call_s
    if not formed and len(ready) < config.max_nodes and now < settled:
        return Situation(action="wait", reason=f"{len(ready)} nodes are there, waiting for more", until=settled)
    return Situation(action="form", reason=reason, counted=counted)


def _form(view: View, config: Config, situation: Situation) -> Generation:
    previous = view.generation.nodes if view.generation is not None else ()
    ready = [seen for seen in view.nodes if not seen.node.leaving]
    places = {node: place for place, node in enumerate(previous)}

    def order(seen: Seen) -> tuple[int, int, int]:
        place = places.get(seen.node.id, len(previous))
        hint = seen.node.rank_hint if seen.node.rank_hint >= 0 else 1 << 30
        return hint, place, seen.create_revision

    chosen = [seen.node for seen in sorted(ready, key=order)[: config.max_nodes]]
    slots = [(node, slot) for node in chosen for slot in node.slots]
    named = _incarnations(view.generation)  # those that never started, too: a process has one name
    members = [
        GenerationMember(
            node=node.id,
            slot=slot.index,
            incarnation=max(slot.incarnation, named.get((node.id, slot.index), 0)) + 1,
            rank=rank,
        )
        for rank, (node, slot) in enumerate(slots)
    ]
    return _generation(view, "restart", members, [node.id for node in chosen], situation)


# --------------------------------------------------------------------------------------------- shared


def _generation(
    view: View,
    kind: Literal["restart", "inplace"],
    members: list[GenerationMember],
    order: list[str],
    why: Situation,
) -> Generation:
    current = view.generation
    fresh = current is None or not any(view.node(node) for node in current.nodes)
    first = view.node(members[0].node)
    assert first is not None
    unjoined = {} if fresh or current is None else dict(current.unjoined)  # a node that is away may come back
    failed = poison.Tally() if fresh or current is None else poison.tally(current, _failures(view))
    unjoined |= {seen.node.id: seen.node.unjoined for seen in view.nodes if seen.node.unjoined}
    return Generation(
        number=(current.number if current is not None else 0) + 1,
        kind=kind,
        boundary=why.boundary,
        members=tuple(members),
        nodes=tuple(order),
        master_addr=first.address,
        master_port=first.master_port,
        restarts_used=(0 if fresh or current is None else current.restarts_used) + why.counted,
        reason=why.reason,
        failed_step=failed.step,
        failed_times=failed.times,
        failed_on=failed.nodes,
        unjoined=tuple(sorted(unjoined.items())),
        origin=current.origin if current is not None else members[0].node,
    )


def _incarnations(generation: Generation | None) -> dict[tuple[str, int], int]:
    """By node and slot, the incarnation that is a member."""
    members = generation.members if generation is not None else ()
    return {(m.node, m.slot): m.incarnation for m in members}


def _member(node: Node, slot: Slot) -> GenerationMember:
    return GenerationMember(node=node.id, slot=slot.index, incarnation=slot.incarnation, rank=-1)


def _slot(view: View, member: GenerationMember) -> Slot:
    node = view.node(member.node)
    assert node is not None
    return node.slots[member.slot]


def _leaving(view: View, member: GenerationMember) -> bool:
    node = view.node(member.node)
    return node is not None and node.leaving


def _counted(view: View, config: Config, failures: int) -> int:
    """What the next generation adds to its count: failures that were answered with a new worker."""
    assert view.generation is not None
    before = view.generation.restarts_used
    return max(0, min(restarts_used(view) + failures, config.max_restarts) - before)


def _failures(view: View) -> list[Mapping[str, Any]]:
    """What nodes told of the current generation's failures, one for each node that had any."""
    assert view.generation is not None
    nodes = {m.node for m in view.generation.members if fate(view, m) == "failed"}
    return [seen.node.failure for seen in view.nodes if seen.node.id in nodes and seen.node.failure is not None]


def _too_many(failed: Iterable[GenerationMember], view: View, config: Config) -> str:
    used = min(restarts_used(view), config.max_restarts)  # the last failure beyond them was not answered
    return f"{_ranks(failed)} failed and {used} of {config.max_restarts} restarts are used"


def _interrupted(asked: Sequence[Slot]) -> str:
    last = max(slot.committed for slot in asked)
    where = f"the last committed step is {last}" if last else "no step was committed"
    why = ", ".join(sorted({slot.asked for slot in asked}))
    return f"interrupted: all workers left ({why}) before training had finished; {where}"


def _ranks(members: Iterable[GenerationMember]) -> str:
    ranks = sorted(member.rank for member in members)
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _why(view: View, current: Generation, fates: dict[GenerationMember, Fate], newcomers: Iterable[str]) -> str:
    parts = []
    for value, verb in (
        ("failed", "failed"),
        ("lost", "lost with a node"),
        ("left", "left"),
        ("absent", "ended before joining"),
    ):
        members = [member for member, is_ in fates.items() if is_ == value]
        if members:
            cause = failure.cause_in(_failures(view)) if value == "failed" else ""
            parts.append(f"{_ranks(members)} {verb}{': ' if cause else ''}{cause}")
    parts += [f"node {node} leaves" for node in current.nodes if (n := view.node(node)) is not None and n.leaving]
    known, came = frozenset(current.nodes), sorted(newcomers)
    for node in came[:_NEWCOMERS_TOLD]:
        parts.append(f"a replacement on node {node} is ready" if node in known else f"node {node} joined")
    if len(came) > _NEWCOMERS_TOLD:
        parts.append(f"{len(came) - _NEWCOMERS_TOLD} more nodes came")
    if not parts and 0 < (most := largest_world(view)) < len(current.members):
        return f"the batch has {most} shard{'s' if most != 1 else ''}"
    if not parts and "stopped" not in fates.values():
        return "members that were taken for lost are back"
    return ", ".join(parts) or "workers were stopped"
