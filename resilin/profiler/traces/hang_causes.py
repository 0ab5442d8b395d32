"""Names who made others wait for ever: from spans that are still open, of processes that run or were killed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilin.profiler.traces.meetings import is_collective, is_message, meetings
from resilin.profiler.traces.rank_trace import STEP, RankTrace, TraceEvent

_NEXT_WORLD = "elastic.form_group"  # the span in which survivors form the group of the next generation


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A rank that is in a collective or message and cannot go on."""

    rank: int
    at: str
    since_ns: int
    waits_for: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class HangCause:
    """A rank that others wait for, and which waits for none of them."""

    rank: int
    name: str
    """The innermost span that is open on it; empty: none is."""
    last: str
    """The last span that it ended, when none is open. Empty: none."""
    state: str
    """running, killed, ended, or unknown: no trace of it, or one of another host."""
    waiting: tuple[int, ...]
    """Who waits for it, directly or because of others."""


@dataclass(frozen=True)
class Hang:
    """What is open. `cycle`: ranks that wait for one another, where nobody else is to blame."""

    waits: list[Wait]
    causes: list[HangCause]
    cycle: list[int]


def find(traces: Sequence[RankTrace], after_ns: int) -> Hang:
    """Return who waits and why. Of running processes a call counts once it has been open for `after_ns`."""
    newest = {trace.rank: trace for trace in traces}  # of one rank the process that began last
    waits = [*_collectives(list(newest.values()), after_ns), *_messages(list(newest.values()), after_ns)]
    blocked: dict[int, set[int]] = {}
    for wait in waits:
        blocked.setdefault(wait.rank, set()).update(wait.waits_for)
    gone = {rank for rank, trace in newest.items() if trace.killed}
    blamed = {rank for wait in waits for rank in wait.waits_for}
    # a killed rank waits for nobody any more, whatever it was in; unless all were killed together, as one ends a job
    roots = blamed - blocked.keys() or (blamed & gone if gone < newest.keys() else set())
    causes = [
        _cause(rank, newest.get(rank), tuple(sorted(one for one in blocked if rank in _reach(one, blocked))))
        for rank in sorted(roots)
    ]
    return Hang(waits, causes, [] if roots else sorted(blocked.keys() & blamed))


def _reach(rank: int, blocked: dict[int, set[int]]) -> set[int]:
    """All ranks that this one waits for, also through others."""
    found: set[int] = set()
    left = [rank]
    while left:
        for other in blocked.get(left.pop(), ()):
            if other not in found:
                found.add(other)
                left.append(other)
    return found


def _stuck(trace: RankTrace, event: TraceEvent, after_ns: int) -> bool:
    if event.args.get("Failed"):  # for good, unless the rank went on in another world
        return not any(
            later.name == _NEXT_WORLD and later.start_ns >= event.end_ns and not later.open for later in trace.events
        )
    return event.open and trace.unfinished and (not trace.alive or event.duration_ns >= after_ns)


def _collectives(traces: Sequence[RankTrace], after_ns: int) -> list[Wait]:
    found = []
    newest = {trace.rank: trace for trace in traces}
    for meeting in meetings(traces):
        for rank, (trace, event) in meeting.entries.items():
            if _stuck(trace, event, after_ns):
                absent = [one for one in meeting.waits_for(rank) if one not in meeting.entries]
                if not absent:  # all came: who ended amid it, or before the others had left it, does not go on
                    absent = [one for one in meeting.waits_for(rank) if _gone(newest.get(one), meeting.entries[one][1])]
                if absent:
                    found.append(
                        Wait(rank=trace.rank, at=str(meeting), since_ns=event.start_ns, waits_for=tuple(sorted(absent)))
                    )
    return found


def _gone(trace: RankTrace | None, entry: TraceEvent) -> bool:
    """Whether a rank's process has ended, and not because the collective failed it."""
    return trace is not None and trace.unfinished and trace.alive is False and not entry.args.get("Failed")


def _messages(traces: Sequence[RankTrace], after_ns: int) -> list[Wait]:
    found = []
    for trace in traces:
        for event in trace.events:
            if is_message(event) and _stuck(trace, event, after_ns):
                source, target = event.args["Src Rank"], event.args["Dst Rank"]
                other = source if target == trace.rank else target
                way = "from" if other == source else "to"
                at = f"{event.args['Collective name']} {way} rank {other}"
                found.append(
                    Wait(rank=trace.rank, at=at, since_ns=event.start_ns, waits_for=(other,) if other >= 0 else ())
                )
    return found


def _cause(rank: int, trace: RankTrace | None, waiting: tuple[int, ...]) -> HangCause:
    if trace is None:
        return HangCause(rank=rank, name="", last="", state="unknown", waiting=waiting)
    own = [event for event in trace.events if not event.name.startswith(STEP)]
    opened = [event for event in own if event.open]
    main = [event for event in opened if event.thread == trace.main_thread] or opened
    name = main[-1].name if main else ""
    ended = max((event for event in own if not event.open and not is_collective(event)), key=_end, default=None)
    last = ended.name if ended is not None and not name else ""
    dead = "killed" if trace.killed else "ended"
    state = "unknown" if trace.alive is None else "running" if trace.alive else dead
    return HangCause(rank=rank, name=name, last=last, state=state, waiting=waiting)


def _end(event: TraceEvent) -> int:
    return event.end_ns
