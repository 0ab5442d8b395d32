"""The words of `resilin trace`: what is wrong first, then where every rank of it stands. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum

from resilin._base.clock import spell
from resilin._base.flight import Flight
from resilin._base.flight_record import Call, CallState
from resilin.elastic.hangs.flight_analysis import FlightMember, Group, Wait

_FEW = 4  # messages in one line
_TOGETHER_S = 0.5  # ranks that came to a collective within it share a line: that of the first


class Verdict(IntEnum):
    """How a group stands, from good to bad; those from FAILED on are what `resilin trace` returns 1 for."""

    IN_STEP = 0
    UNDER_WAY = 1
    FAILED = 2
    STUCK = 3
    DISAGREE = 4


def verdict(group: Group, now: float, after_s: float) -> Verdict:
    """How `group` stands. A wait that is longer than `after_s`, or for a rank whose process is gone, is STUCK."""
    if group.disagree():
        return Verdict.DISAGREE
    talking = group.talking()
    involved = {*group.missing(), *group.waiting(), *talking, *_partners(talking)} & group.members.keys()
    gone = any(group.members[rank].flight.alive is False for rank in involved)
    since = [call.started for call in group.waiting().values()]
    since += [call.made for calls in talking.values() for call in calls]
    if since:
        return Verdict.STUCK if gone or now - min(since) > after_s else Verdict.UNDER_WAY
    if group.here:
        failed = any(call.state == CallState.FAILED for call in group.here.values())
        return Verdict.FAILED if failed else Verdict.UNDER_WAY
    return Verdict.IN_STEP


def headline(group: Group, now: float, after_s: float) -> str:
    """One line: the verdict, and who is missing from what."""
    how = verdict(group, now, after_s).name.replace("_", " ")
    absent = group.missing()
    if not group.here:
        return f"{how}: {group} ({group.size} ranks): {_talk(group, now) or _quiet(group)}"
    at, call = group.frontier(), next((c for c in group.here.values() if c.dtype), next(iter(group.here.values())))
    if group.disagree():
        return f"{how}: ranks of {group} ({group.size} ranks) called different things as #{at}"
    waiting = group.waiting()
    since = ""
    if waiting:
        began, lives = min(c.started for c in waiting.values()), any(group.members[r].flight.alive for r in waiting)
        since = f", waited for {_rounded(now - began)}" if lives else f", waited for from {_moment(began)} on"
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        text = f"{ranks(absent)} of {group.size} {verb} missing from {call.within()} of {group}{since}"
    else:
        text = f"{ranks(group.here)} of {group.size} came to {call.within()} of {group}{since}"
    untold = [rank for rank, c in waiting.items() if not c.told]
    if 0 < len(untold) < len(waiting):
        text += f"; {ranks(untold)} {'has' if len(untold) == 1 else 'have'} not told the others of it yet"
    ahead = group.ahead()
    if ahead and waiting.keys() - ahead.keys():
        text += f"; {ranks(ahead)} {'has' if len(ahead) == 1 else 'have'} finished it and wait"
        text += f"{'s' if len(ahead) == 1 else ''} in {next(iter(ahead.values())).within()}"
    failed = [rank for rank, c in group.here.items() if c.state == CallState.FAILED]
    text += f"; it failed on {ranks(failed)}" if failed else ""
    for fate in ("GONE", "STOPPED"):
        struck = [rank for rank, member in group.members.items() if fate in _unusual(member.flight)]
        text += f"; {fate}: {ranks(struck)}" if struck and len(struck) < len(group.members) else ""
    return f"{how}: {text}"


def deadlock(ring: Sequence[Wait]) -> str:
    """One line for ranks that wait for one another."""
    steps = [f"rank {rank} of {group} waits in {call.within()} for rank {other}" for group, rank, other, call in ring]
    return f"DEADLOCK: each waits for the next: {'; '.join(steps)}"


def report(
    group: Group, now: float, found: Sequence[Group], after_s: float, only: Collection[int] = (), apart: bool = False
) -> list[str]:
    """Lines for people. `found`: all groups, where a missing rank may be; `only` these ranks; `apart`: a line each."""
    lines = [headline(group, now, after_s)]
    said: dict[str, list[int]] = defaultdict(list)
    first = min((call.started for call in group.waiting().values()), default=0.0)
    for rank, member in group.members.items():
        if not only or rank in only:
            for text in _member(group, member, now, found, first):
                said[f"{text} [{member.flight.host} pid {member.flight.pid}]" if apart else text].append(rank)
    lines += [f"  {ranks(who)}: {text}" for text, who in said.items()]
    unknown = [rank for rank in group.unknown() if not only or rank in only]
    if unknown:
        lines.append(f"  {ranks(unknown)}: no file here: on another host, or its calls in this group were overwritten")
    return lines


def _partners(talking: Mapping[int, Sequence[Call]]) -> set[int]:
    """The other ends of messages; a message from any rank has none."""
    return {call.root for calls in talking.values() for call in calls if call.root >= 0}


def _talk(group: Group, now: float) -> str:
    """Who waits for a message from or to whom; empty when there is none."""
    talking = group.talking()
    if not talking:
        return ""
    waits = [f"rank {rank} waits in {call.within()}" for rank, calls in talking.items() for call in calls]
    more = [f"{len(waits) - _FEW} more messages wait"] if len(waits) > _FEW else []
    began = min(call.made for calls in talking.values() for call in calls)
    lives = any(group.members[rank].flight.alive for rank in talking)
    since = f"for {_rounded(now - began)}" if lives else f"from {_moment(began)} on"
    idle = sorted(_partners(talking) - talking.keys())
    last = [f"{ranks(idle)} {'is' if len(idle) == 1 else 'are'} in no message"] if idle else []
    return f"{', '.join((*waits[:_FEW], *more))}, {since}" + "".join(f"; {text}" for text in last)


def _quiet(group: Group) -> str:
    at = group.frontier()
    if at is None:
        return "its collectives were overwritten by newer calls"
    return "no collective has run" if at == 0 else f"all ranks finished #{at - 1}, nothing is under way"


def _member(group: Group, member: FlightMember, now: float, found: Sequence[Group], first: float) -> Iterator[str]:
    """What one rank is doing; `first`: when the first rank began to wait."""
    flight = member.flight
    call = group.here.get(member.rank)
    if call is not None:
        yield _state(call, now, flight, first)
    elif member.rank in group.missing():
        yield f"MISSING: {_elsewhere(group, member, now, found)}{_fate(flight)}"
    for message in member.messages:
        if message.state <= CallState.RUNNING:
            yield _state(message, now, flight)


def _state(call: Call, now: float, flight: Flight, first: float = 0.0) -> str:
    """How a call stands; `first`: when the first rank began to wait in the same."""
    if call.state <= CallState.RUNNING:
        how, at = ("is queued", call.made) if call.state == CallState.QUEUED else ("waits", call.started or call.made)
        at = first if 0.0 < first <= at < first + _TOGETHER_S else at
        since = f"for {_rounded(now - at)}" if flight.alive else f"since {_moment(at)}"
        text = f"{call.within()} {how} {since}"
    else:
        text = _ended(call, now, flight)
    unusual = _unusual(flight)
    return f"{text}, at {call.line}" + (f"; {unusual}" if unusual else "")


def _ended(call: Call, now: float, flight: Flight) -> str:
    how = {CallState.FAILED: "failed", CallState.DONE: "finished"}.get(call.state, "is under way")
    at = call.ended or call.started
    return f"{call.within()} {how} {f'{_rounded(now - at)} ago' if flight.alive else _moment(at)}"


def _elsewhere(group: Group, member: FlightMember, now: float, found: Sequence[Group]) -> str:
    last = next(reversed(member.ran.values()), None)
    if last is None:
        said = "it has made no collective of this group"
    else:
        said = f"its last was {_ended(last, now, member.flight)}, at {last.line}"
    for other in found:
        for there in other.members.values():
            if other is not group and there.flight is member.flight:
                said += "".join(f"; now in {call.within()} of {other}, at {call.line}" for call in there.open())
    under_way = [call for call in member.messages if call.state == CallState.RUNNING]
    said += "".join(f"; now in {call.within()}, at {call.line}" for call in under_way)
    queued = sum(call.state == CallState.QUEUED for call in member.collectives)
    return said + (f"; {queued} more are queued" if queued else "")


def _fate(flight: Flight) -> str:
    return f"; {_unusual(flight)}" if _unusual(flight) else "; its process is alive" if flight.alive else ""


def _unusual(flight: Flight) -> str:
    if flight.alive is False:
        return "its process is GONE"
    return "its process is STOPPED (a signal or a debugger)" if flight.stopped else ""


def _rounded(seconds: float) -> str:
    """A tenth of a second at the finest, so that ranks that came together share a line."""
    return "0.1 s" if seconds <= 0.1 else spell(round(seconds, 1))


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC") if at else "at no known time"


def ranks(numbers: Collection[int] | Mapping[int, object]) -> str:
    """`rank 3`, or `ranks 0, 2-5`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in spans)
    return f"rank {text}" if len(numbers) == 1 else f"ranks {text}"
