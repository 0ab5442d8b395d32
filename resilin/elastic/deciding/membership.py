"""Decides membership. Pure: no clock, no socket, no thread.

`assess` says in which situation a job is, `decide` turns that into the next generation. Every agent evaluates `assess`
on its own view to know whether its workers must stop; only the leader's `decide` is written to the store.

    waiting ──enough nodes──> forming ──> steady ──a plain worker failed, a node came or went──> stopping ──> forming
                                            │ ^
                                            └─┴── reshaping: all survivors recover in place
                                            └──> succeeded | failed | interrupted
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from resilin.elastic import failure
from resilin.elastic.deciding import facts, poison
from resilin.elastic.deciding.view import Config, Fate, Seen, Situation, View
from resilin.elastic.records import Generation, GenerationMember, Slot

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
    fates = {member: facts.fate(view, member) for member in current.members}
    staying = [f for member, f in fates.items() if not _leaving(view, member)]
    if all(f == "done" for f in fates.values()) or (staying and all(f in ("done", "left") for f in staying)):
        asked = [slot for m in fates if fates[m] == "left" and (slot := facts.slot_of(view, m)).asked]
        if asked and "done" not in fates.values():
            return Situation(action="interrupt", reason=_interrupted(asked))
        return Situation(action="succeed", reason="all workers are done")
    if facts.recovers_in_place(view):
        return _assess_in_place(view, current, config, fates)
    return _assess_restart(view, current, config, fates, now)


# ------------------------------------------------------------------------------------------- in place


def _assess_in_place(view: View, current: Generation, config: Config, fates: dict[GenerationMember, Fate]) -> Situation:
    fates = {m: "absent" if f == "done" and not facts.slot_of(view, m).endpoint else f for m, f in fates.items()}
    failed = [member for member, value in fates.items() if value == "failed"]
    gone = [member for member, value in fates.items() if value in ("failed", "lost", "left", "absent", "stopped")]
    used = facts.restarts_used(view) + len(failed)
    own = [member for member in failed if facts.slot_of(view, member).fault == "own"]
    if own and used > config.max_restarts:
        return Situation(action="fail", reason=_too_many(own, view, config))
    if failed and (verdict := facts.judgement(view, config).verdict):
        return Situation(action="fail", reason=verdict)
    most = facts.largest_world(view)
    # a node was taken for lost, the others' workers were told so, and it came back before a new world was agreed on
    over = any(value != "lost" and facts.slot_of(view, m).over >= current.number for m, value in fates.items())
    keep = tuple(m for m in current.members if m not in gone and not _leaving(view, m))
    if len(keep) < len(current.members) or over:  # those that have not said hello yet join when they do
        keep = tuple(m for m in keep if facts.slot_of(view, m).endpoint)
    whole = len(keep) == len(current.members) and not over
    finishing = whole and "done" in fates.values()  # then nobody needs newcomers
    joined = () if finishing else _joiners(view, current, config, at_once=most > 0 and bool(gone))
    nodes = {member.node for member in (*keep, *joined)}  # those that will stand by count, too
    if 0 < most < len(keep) and sum(bool(facts.slot_of(view, m).endpoint) for m in keep) >= most:
        keep = tuple(m for m in keep if facts.slot_of(view, m).endpoint)[:most]
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
    newest = facts.incarnations(
        current
    )  # an older one is about to be stopped: its slot has a member that has not started
    allowed = {*current.nodes, *facts.invited(view, config)}
    found = []
    for seen in view.nodes:
        node = seen.node
        if node.id not in allowed or node.leaving:
            continue
        new = [s for s in node.slots if s.incarnation > newest.get((node.id, s.index), 0)]
        if at_once or all(slot.state != "running" for slot in new):
            found += [facts.member_of(node, slot) for slot in new if slot.state == "ready" or slot.redoing]
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
    if failed and facts.restarts_used(view) + 1 > config.max_restarts:
        return Situation(action="fail", reason=_too_many(failed, view, config))
    if failed and (verdict := facts.judgement(view, config).verdict):
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
    named = facts.incarnations(view.generation)  # those that never started, too: a process has one name
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
    before = current.number if current is not None else 0
    fresh = current is None or not any(view.node(node) for node in current.nodes)
    first = view.node(members[0].node)
    assert first is not None
    unjoined = {} if fresh or current is None else dict(current.unjoined)  # a node that is away may come back
    failed = poison.Tally() if fresh or current is None else poison.tally(current, facts.failures(view))
    unjoined |= {seen.node.id: seen.node.unjoined for seen in view.nodes if seen.node.unjoined}
    return Generation(
        number=before + 1,
        kind=kind,
        broken_off=before if kind == "restart" or current is None or why.boundary == "now" else current.broken_off,
        members=tuple(members),
        nodes=tuple(order),
        master_addr=first.address,
        master_port=first.master_port,
        restarts_used=(0 if fresh or current is None else current.restarts_used) + why.counted,
        reason=why.reason,
        fresh=kind == "restart" or bool(why.joined),
        failed_step=failed.step,
        failed_times=failed.times,
        failed_on=failed.nodes,
        failed_in=failed.last,
        unjoined=tuple(sorted(unjoined.items())),
        origin=current.origin if current is not None else members[0].node,
    )


def _leaving(view: View, member: GenerationMember) -> bool:
    node = view.node(member.node)
    return node is not None and node.leaving


def _counted(view: View, config: Config, failures: int) -> int:
    """What the next generation adds to its count: failures that were answered with a new worker."""
    assert view.generation is not None
    before = view.generation.restarts_used
    return max(0, min(facts.restarts_used(view) + failures, config.max_restarts) - before)


def _too_many(failed: Iterable[GenerationMember], view: View, config: Config) -> str:
    used = min(facts.restarts_used(view), config.max_restarts)  # the last failure beyond them was not answered
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
            cause = failure.cause_in(facts.failures(view)) if value == "failed" else ""
            parts.append(f"{_ranks(members)} {verb}{': ' if cause else ''}{cause}")
    parts += [f"node {node} leaves" for node in current.nodes if (n := view.node(node)) is not None and n.leaving]
    known, came = frozenset(current.nodes), sorted(newcomers)
    for node in came[:_NEWCOMERS_TOLD]:
        parts.append(f"a replacement on node {node} is ready" if node in known else f"node {node} joined")
    if len(came) > _NEWCOMERS_TOLD:
        parts.append(f"{len(came) - _NEWCOMERS_TOLD} more nodes came")
    if not parts and 0 < (most := facts.largest_world(view)) < len(current.members):
        return f"the batch has {most} shard{'s' if most != 1 else ''}"
    if not parts and "stopped" not in fates.values():
        return "members that were taken for lost are back"
    return ", ".join(parts) or "workers were stopped"
