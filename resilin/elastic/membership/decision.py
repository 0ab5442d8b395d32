"""Decide membership. Pure: no clock, no socket, no thread.

`assess` says in which situation a job is, `decide` turns that into the next generation. Every agent evaluates `assess`
on its own view to know whether its workers must stop; only the leader's `decide` is written to the store.

    waiting ──enough nodes──> forming ──> steady ──a plain worker failed, a node came or went──> stopping ──> forming
                                            │ ^
                                            └─┴── reshaping: all survivors recover in place
                                            └──> succeeded | failed | interrupted
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from resilin.elastic import failure
from resilin.elastic.membership import queries, reachability, repeated_failures
from resilin.elastic.membership.view import Config, Fate, Seen, Situation, View
from resilin.elastic.records import Generation, GenerationMember, Slot

_GONE = ("failed", "lost", "left", "absent", "stopped", "apart")
_TORN = "nobody goes on before a connection works again: no nodes that reach one another have all of the divided state"
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
    if current is None:
        return _gather(view, config, now, "first generation")
    if _is_gone(view, current):
        return _gather(view, config, now, "every earlier node is gone")
    fates = {member: queries.fate(view, member) for member in current.members}
    leaving = _leaving(view, config)
    staying = [f for member, f in fates.items() if member not in leaving]
    if all(f == "done" for f in fates.values()) or (staying and all(f in ("done", "left") for f in staying)):
        left = [queries.slot_of(view, m) for m in fates if fates[m] == "left"]
        asked = [slot for slot in left if slot.asked and not slot.done_in]
        if asked and "done" not in fates.values():
            return Situation(action="interrupt", reason=_interrupted(asked))
        return Situation(action="succeed", reason="all workers are done")
    if verdict := queries.early_judgement(view, config).verdict:
        return Situation(action="fail", reason=verdict)
    if queries.recovers_in_place(view):
        return _assess_in_place(view, current, config, fates, leaving)
    return _assess_restart(view, current, config, fates, now)


def _is_gone(view: View, current: Generation) -> bool:
    """Whether no node of the present world is there, nor anybody else who has the state."""
    return not any(view.node(node) for node in current.nodes) and not queries.recovers_in_place(view)


# ------------------------------------------------------------------------------------------- in place


def _assess_in_place(
    view: View,
    current: Generation,
    config: Config,
    fates: dict[GenerationMember, Fate],
    leaving: frozenset[GenerationMember],
) -> Situation:
    fates = {m: "absent" if f == "done" and not queries.slot_of(view, m).endpoint else f for m, f in fates.items()}
    failed = [member for member, value in fates.items() if value == "failed"]
    gone = [member for member, value in fates.items() if value in _GONE]
    used = queries.restarts_used(view) + len(failed)
    own = [member for member in failed if queries.slot_of(view, member).fault == "own"]
    if own and used > config.max_restarts:
        return Situation(action="fail", reason=_too_many(own, view, config))
    if failed and (verdict := queries.judgement(view, config).verdict):
        return Situation(action="fail", reason=verdict)
    if view.torn:
        return Situation(action="steady", reason=_TORN)
    most = queries.largest_world(view)
    # a node was taken for lost, the others' workers were told so, and it came back before a new world was agreed on
    here = [m for m, value in fates.items() if value not in ("lost", "apart")]
    over = any(queries.slot_of(view, m).over >= current.number for m in here)
    keep = tuple(m for m in current.members if m not in gone and m not in leaving)
    if len(keep) < len(current.members) or over:  # those that have not said hello yet join when they do
        keep = tuple(m for m in keep if queries.slot_of(view, m).endpoint)
    whole = len(keep) == len(current.members) and not over
    finishing = whole and "done" in fates.values()  # then nobody needs newcomers
    keepers = queries.keepers(view, config)
    joined = () if finishing else _joiners(view, current, config, keep, keepers, at_once=most > 0 and bool(gone))
    nodes = {member.node for member in (*keep, *joined)}  # those that will stand by count, too
    if 0 < most < len(keep) and sum(bool(queries.slot_of(view, m).endpoint) for m in keep) >= most:
        keep = tuple(m for m in keep if queries.slot_of(view, m).endpoint)[:most]
    if joined and 1 < most <= len(keep) and all((m.node, m.slot) in keepers for m in keep):
        keep = keep[: most - 1]  # all are to go: one makes room for whom the others hand the state over to
    if 0 < most < len(keep) + len(joined):
        keep, joined = _with_all_parts(view, keep, joined, most)
    joined = joined[: max(0, most - len(keep))] if most else joined
    if len(keep) == len(current.members) and not joined and not over:
        return Situation(action="steady", reason="all members are well")
    if not joined and keep and not queries.who_stays(view, config)[0]:
        return Situation(action="steady", reason="all members are asked to leave")  # after one and the same commit
    odds = queries.at_odds(view) if over and not gone and not joined else ()
    reason = _why(view, current, fates, {member.node for member in joined})
    if odds:
        reason = f"{_named(odds)} waited for one another in vain, though all of them answer: once more"
    if len(nodes) < config.min_nodes:
        return Situation(action="wait", reason=f"{reason}; {len(nodes)} of at least {config.min_nodes} nodes are left")
    return Situation(
        action="reshape",
        reason=reason,
        counted=_counted(view, config, len(failed)),
        boundary="now" if gone or over else "commit",
        retried=queries.retries(view) + 1 if odds else 0,
        keep=keep,
        joined=joined,
    )


def _joiners(
    view: View,
    current: Generation,
    config: Config,
    keep: Collection[GenerationMember],
    keepers: Collection[tuple[str, int]],
    at_once: bool = False,
) -> tuple[GenerationMember, ...]:
    """Workers that said hello and are no members yet, of nodes where none is still on its way (or of all: at once).

    Before these, where nobody in `keep` has the state, those that were let go from the last world and have it.
    """
    # an older incarnation is about to be stopped: its slot has a member that has not started
    newest = queries.incarnations(current)
    allowed = {*current.nodes, *queries.invited(view, config)}
    needed = () if any((m.node, m.slot) in keepers for m in keep) else keepers
    first, found = [], []
    for seen in view.nodes:
        node = seen.node
        new = [s for s in node.slots if s.incarnation > newest.get((node.id, s.index), 0)]
        first += [queries.member_of(node, s) for s in new if (node.id, s.index) in needed and s.state == "ready"]
        new = [s for s in new if not s.leaving]
        if node.id in allowed and not node.leaving and (at_once or all(s.state != "running" for s in new)):
            found += [queries.member_of(node, slot) for slot in new if slot.state == "ready" or slot.redoing]
    return *first, *found


def _with_all_parts(
    view: View, keep: tuple[GenerationMember, ...], joined: tuple[GenerationMember, ...], most: int
) -> tuple[tuple[GenerationMember, ...], tuple[GenerationMember, ...]]:
    """Make room in a world of `most` for those that have parts of the state which nobody before them has."""
    parts, had = reachability.parts_there(view), set[int]()
    first = []
    for member in (*keep, *joined):
        mine = parts.get((member.node, member.slot), frozenset())
        if not mine <= had:
            first.append(member)
            had |= mine
    if not any(member in joined for member in first):
        return keep, joined
    place = {member: number for number, member in enumerate(dict.fromkeys((*first, *keep, *joined))) if number < most}
    return tuple(m for m in keep if m in place), tuple(m for m in joined if m in place)


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
    if failed and queries.restarts_used(view) + 1 > config.max_restarts:
        return Situation(action="fail", reason=_too_many(failed, view, config))
    if failed and (verdict := queries.judgement(view, config).verdict):
        return Situation(action="fail", reason=verdict)
    broken = any(value in ("failed", "lost", "stopped", "left", "apart") for value in fates.values())
    leaving = bool(_leaving(view, config))
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
    if view.torn:
        return Situation(action="steady", reason=_TORN)
    ready = [seen for seen in view.nodes if not seen.node.leaving]
    if len(ready) < config.min_nodes:
        return Situation(action="wait", reason=f"{len(ready)} of at least {config.min_nodes} nodes are there")
    settled = max(seen.first_seen for seen in ready) + config.last_call_s
    if not formed and len(ready) < config.max_nodes and now < settled:
        return Situation(action="wait", reason=f"{len(ready)} nodes are there, waiting for more", until=settled)
    begins = min(seen.first_seen for seen in ready) + config.rejoin_s
    if view.generation is None and now < begins:
        return Situation(action="wait", reason="waiting for a node that was in this job before", until=begins)
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
    named = queries.incarnations(view.generation)  # those that never started, too: a process has one name
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
    fresh = current is None or _is_gone(view, current)
    first = view.node(members[0].node)
    assert first is not None
    unjoined = {} if fresh or current is None else dict(current.unjoined)  # a node that is away may come back
    failed = (
        repeated_failures.Tally()
        if fresh or current is None
        else repeated_failures.tally(current, queries.failures(view))
    )
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
        retried=why.retried,
        unjoined=tuple(sorted(unjoined.items())),
        origin=current.origin if current is not None else members[0].node,
        refills=current.refills if current is not None else (),
    )


def _leaving(view: View, config: Config) -> frozenset[GenerationMember]:
    """Members that are to go and may: nobody needs what they alone have."""
    assert view.generation is not None
    going = {seen.node.id for seen in view.nodes if seen.node.leaving}
    members = frozenset(member for member in view.generation.members if member.node in going)
    if not members:
        return members
    keepers = queries.keepers(view, config)
    return frozenset(member for member in members if (member.node, member.slot) not in keepers)


def _counted(view: View, config: Config, failures: int) -> int:
    """What the next generation adds to its count: failures that were answered with a new worker."""
    assert view.generation is not None
    before = view.generation.restarts_used
    return max(0, min(queries.restarts_used(view) + failures, config.max_restarts) - before)


def _too_many(failed: Iterable[GenerationMember], view: View, config: Config) -> str:
    used = min(queries.restarts_used(view), config.max_restarts)  # the last failure beyond them was not answered
    return f"{_ranks(failed)} failed and {used} of {config.max_restarts} restarts are used"


def _interrupted(asked: Sequence[Slot]) -> str:
    last = max(slot.committed for slot in asked)
    where = f"the last committed step is {last}" if last else "no step was committed"
    why = ", ".join(sorted({slot.asked for slot in asked}))
    return f"interrupted: all workers left ({why}) before training had finished; {where}"


def _ranks(members: Iterable[GenerationMember]) -> str:
    return _named([member.rank for member in members])


def _named(numbers: Iterable[int]) -> str:
    ranks = sorted(numbers)
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
            cause = failure.cause_in(queries.failures(view)) if value == "failed" else ""
            parts.append(f"{_ranks(members)} {verb}{': ' if cause else ''}{cause}")
    for node in current.nodes:
        if why := view.apart(node):
            parts.append(f"node {node} takes no part: {why}")
        elif (seen := view.node(node)) is not None and seen.leaving:
            parts.append(f"node {node} leaves")
    known, came = frozenset(current.nodes), sorted(newcomers)
    for node in came[:_NEWCOMERS_TOLD]:
        parts.append(f"a replacement on node {node} is ready" if node in known else f"node {node} joined")
    if len(came) > _NEWCOMERS_TOLD:
        parts.append(f"{len(came) - _NEWCOMERS_TOLD} more nodes came")
    if not parts and 0 < (most := queries.largest_world(view)) < len(current.members):
        return f"the batch has {most} shard{'s' if most != 1 else ''}"
    if not parts and "stopped" not in fates.values():
        return "members that were taken for lost are back"
    return ", ".join(parts) or "workers were stopped"
