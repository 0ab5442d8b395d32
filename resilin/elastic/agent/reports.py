"""What an agent tells people: one line per death, generation and recovery, and the same as JSON events for programs.

Also measures a recovery: from the moment the agent hears of a death to the first step committed in a newer generation.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from resilin._base.clock import SYSTEM, Clock
from resilin.elastic.agent.config import Outcome
from resilin.elastic.failure import Failure
from resilin.elastic.records import Generation

_NOTHING_LEFT = (
    "; no worker is left that holds the state: the program starts again from its beginning or its own checkpoint"
)


class Reporter:
    """Writes lines to `stream` and events to `event_log` (a file that gets one JSON object per line).

    Use it as a context manager or call `close()`.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        event_log: Path | None = None,
        quiet: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        self._stream = stream or sys.stderr
        self._events = event_log.open("a", encoding="utf-8") if event_log is not None else None
        self._lock = threading.Lock()  # the console's writers have events of their own
        self._quiet = quiet
        self._clock = clock
        self._death: float | None = None  # when the death under recovery was heard of
        self._agreed: float | None = None  # when the generation that answers it was applied
        self._resumed: float | None = None  # when its first worker said that it works on a step
        self._sought = 0  # the number of that generation
        self._previous: Generation | None = None
        self._cause_told = False  # whether people know why the next generation is smaller

    def close(self) -> None:
        """Close the event file."""
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(OSError):  # a full disk: `event` has said so
                events.close()

    def line(self, text: str) -> None:
        """Say one line, unless quiet."""
        if not self._quiet:
            self.always(text)

    def always(self, text: str) -> None:
        """Say one line, quiet or not: for the job's end."""
        print(f"elastic-run: {text}", file=self._stream, flush=True)

    def outcome(self, outcome: Outcome, others: Sequence[str] = ()) -> None:
        """Say how the job ended: the first cause in one line, then what the terminal has not shown yet."""
        if outcome.failure is None:
            self.always(outcome.reason)
            return
        self.always(f"{outcome.title}: {outcome.failure.sentence}")
        reason = (outcome.reason,) if outcome.reason != outcome.failure.sentence else ()
        for line in (*outcome.failure.details(), *reason, *others):
            print(f"  {line}", file=self._stream, flush=True)

    def event(self, name: str, /, **fields: Any) -> None:
        """Append one JSON event; `mono` and `wall` are added. A file that takes no more is noted once."""
        body = {"event": name, "mono": self._clock.monotonic(), "wall": self._clock.wall(), **fields}
        try:
            with self._lock:
                if self._events is not None:
                    self._events.write(json.dumps(body) + "\n")
                    self._events.flush()
        except OSError as error:
            self.close()
            self.always(f"the event log is not written any more: {error.strerror or error}")

    def terminal_lost(self, name: str, why: str) -> None:
        """Standard output or error cannot be written any more; the job goes on without it. Any thread may call it."""
        self.event("terminal_lost", stream=name, error=why)

    def death(self, failure: Failure, *, joined: bool = True, final: bool = False) -> None:
        """A worker of this node died. `joined`: it was a member. `final`: the closing report will say it."""
        now = self._clock.monotonic()
        if not joined:
            self.line(f"a replacement (pid {failure.pid}) {failure.how} before it joined")
            self.event("replacement_died", **failure.to_json())
            return
        if self._death is None:
            self._death, self._agreed, self._resumed = now, None, None
        self._cause_told = True
        if not final:
            host = f"host {failure.host}, " if self._previous is not None and len(self._previous.nodes) > 1 else ""
            self.line(f"worker died: rank {failure.rank} ({host}pid {failure.pid}) {failure.how}{failure.where}")
        self.event("death", **failure.to_json())

    def lost(self, ranks: list[int], node: str) -> None:
        """Another node went away without a word."""
        if self._death is None:
            self._death, self._agreed, self._resumed = self._clock.monotonic(), None, None
        self._cause_told = True
        self.line(f"node {node} is gone, and with it rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}")
        self.event("lost", node=node, ranks=ranks)

    def left(self, rank: int, why: str) -> None:
        """A worker of this node ended well before the others."""
        self._cause_told = True
        self.line(f"rank {rank} left ({why})")
        self.event("left", rank=rank, reason=why)

    def generation(self, new: Generation, *, stateful: bool = False) -> None:
        """A generation was applied on this node. `stateful`: workers of the one before it held state to hand over."""
        previous, self._previous = self._previous, new
        told, self._cause_told = self._cause_told, False
        if self._death is not None and self._agreed is None:
            self._agreed, self._sought = self._clock.monotonic(), new.number
        self.event(
            "generation",
            number=new.number,
            kind=new.kind,
            boundary=new.boundary,
            size=len(new.members),
            nodes=list(new.nodes),
            restarts_used=new.restarts_used,
            reason=new.reason,
        )
        if previous is not None:
            lost = stateful and not _stay(previous, new)
            fewer_stay = new.kind == "inplace" and len(_stay(previous, new)) < len(previous.members)
            why = f" ({new.reason})" if fewer_stay and not told else ""
            self.line(f"generation {new.number}: {_describe(previous, new)}{why}{_NOTHING_LEFT if lost else ''}")

    def progress(self, generation: int) -> None:
        """A worker of this node works on a step of `generation`."""
        if self._agreed is not None and self._resumed is None and generation >= self._sought:
            self._resumed = self._clock.monotonic()

    def committed(self, generation: int, step: int) -> None:
        """A worker of this node committed a step."""
        if self._death is None or self._agreed is None or generation < self._sought:
            return
        now = self._clock.monotonic()
        death, agreed, resumed = self._death, self._agreed, self._resumed
        self._death = self._agreed = self._resumed = None
        self.line(f"recovered in {(now - death) * 1e3:.1f} ms (death seen -> next committed step)")
        self.event(
            "recovered",
            generation=generation,
            step=step,
            total_ms=(now - death) * 1e3,
            agree_ms=(agreed - death) * 1e3,
            rewire_ms=((resumed or now) - agreed) * 1e3,
            first_step_ms=(now - resumed) * 1e3 if resumed is not None else None,
        )


def _stay(old: Generation, new: Generation) -> set[tuple[str, int, int]]:
    """The processes that are members of both."""
    return {(m.node, m.slot, m.incarnation) for m in old.members} & {
        (m.node, m.slot, m.incarnation) for m in new.members
    }


def _describe(old: Generation, new: Generation) -> str:
    size = f"{len(new.members)} worker{'s' if len(new.members) != 1 else ''}"
    if new.kind == "restart":
        used = "1 restart" if new.restarts_used == 1 else f"{new.restarts_used} restarts"
        return f"{size}, all started again ({new.reason}; {used} used)"
    before = {(m.node, m.slot, m.incarnation): m.rank for m in old.members}
    slots, nodes = {(m.node, m.slot) for m in old.members}, frozenset(old.nodes)
    stay, come = [], []
    for member in new.members:
        known = before.get((member.node, member.slot, member.incarnation))
        if known is None:
            what = "joined" if member.node not in nodes and (member.node, member.slot) not in slots else "replacement"
            come.append((what, member.rank))
        elif known == member.rank:
            stay.append(f"rank {known} goes on")
        else:
            stay.append(f"rank {known} goes on as rank {member.rank}")
    if come:
        names = [
            f"replacement joined as rank {rank}" if what == "replacement" else f"rank {rank} joined"
            for what, rank in come
        ]
        return f"{size}, {', '.join(names)}"
    tail = ", ".join(stay) if len(stay) <= 4 else f"{len(stay)} go on"
    return f"{size} (was {len(old.members)}), {tail}"
