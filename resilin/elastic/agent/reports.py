"""Tell people what an agent sees: one line per death, generation and recovery, and the same as JSON for programs.

Also measures a recovery: from the moment the agent hears of a death to the first step committed in a newer generation.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from resilin._base import private_files
from resilin._base.clock import SYSTEM, Clock
from resilin._base.text import indented, visible
from resilin.elastic.agent.config import Outcome
from resilin.elastic.agent.fault_history import FaultHistory
from resilin.elastic.failure import Failure
from resilin.elastic.records import Generation

_NO_COMMIT = (0, -1, -1)
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
        file = private_files.open_log(event_log) if event_log is not None else None
        self._events = os.fdopen(file, "a", encoding="utf-8") if file is not None else None
        self._lock = threading.Lock()  # the console's writers have events of their own
        self._quiet = quiet
        self._clock = clock
        self.history = FaultHistory()
        self._death: float | None = None  # when the death under recovery was heard of
        self._agreed: float | None = None  # when the generation that answers it was applied
        self._resumed: float | None = None  # when its first worker said that it works on a step
        self._sought = 0  # the number of that generation
        self._previous: Generation | None = None
        self._works = False  # whether a worker of this node has come to a step
        self._lost_before = ""  # the node that went away before that, with whatever state it had
        self._kept = _NO_COMMIT  # the last commit's generation and step, and the step of the commit before it
        self._cause_told = False  # whether people know why the next generation is smaller
        self._held: list[Failure] = []  # of workers that another one's end has ended: they are told after its own line
        self._first_told = False  # that line, of what ended this generation

    def close(self) -> None:
        """Say what is left to say, and close the event file."""
        self._release()
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
        self._release()
        self._print(text)

    def _cause(self, text: str) -> None:
        """Say one line that goes before those that are held back."""
        self._first_told = True
        if not self._quiet:
            self._print(text)
        self._release()

    def _release(self) -> None:
        """Say what was held back: the next thing to say is not what it waits for."""
        held, self._held = self._held, []
        for each in held:
            self._print(self._death_line(each))

    def _print(self, text: str) -> None:
        print(f"elastic-run: {visible(text)}", file=self._stream, flush=True)

    def outcome(self, outcome: Outcome, others: Sequence[str] = ()) -> None:
        """Say how the job ended: the first cause in one line, then what the terminal has not shown yet."""
        if outcome.failure is None:
            self.always(outcome.reason)
            return
        told = outcome.failure.node, outcome.failure.pid  # by the first line
        self._held = [each for each in self._held if (each.node, each.pid) != told]
        self._print(f"{outcome.title}: {outcome.failure.sentence}")
        reason = (outcome.reason,) if outcome.reason != outcome.failure.sentence else ()
        for line in (*outcome.failure.details(), *reason, *others):
            print(f"  {indented(line)}", file=self._stream, flush=True)
        self._release()

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
        self.history.died(failure, self._clock.wall())
        if not joined:
            self.line(f"a replacement (pid {failure.pid}) {failure.how} before it joined")
            self.event("replacement_died", **failure.to_json())
            return
        if self._death is None:
            self._death, self._agreed, self._resumed = now, None, None
        self._cause_told = True
        if failure.follows and not (self._first_told or final or self._quiet):
            self._held.append(failure)  # its cause may be the last to end
        elif not final:
            self._cause(self._death_line(failure))
        self.event("death", **failure.to_json())

    def _death_line(self, failure: Failure) -> str:
        host = f"host {failure.host}, " if self._previous is not None and len(self._previous.nodes) > 1 else ""
        return f"worker died: rank {failure.rank} ({host}pid {failure.pid}) {failure.how}{failure.where}"

    def lost(self, ranks: list[int], node: str, *, asked: bool = False) -> None:
        """Another node went away: without a word, or as it was `asked` to."""
        if self._death is None:
            self._death, self._agreed, self._resumed = self._clock.monotonic(), None, None
        self._cause_told = True
        self._lost_before = self._lost_before or ("" if self._works else node)
        which = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        self._cause(f"node {node} {'has left' if asked else 'is gone'}, and with it {which}")
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
            if lost:
                self._kept = _NO_COMMIT
            fewer_stay = new.kind == "inplace" and len(_stay(previous, new)) < len(previous.members)
            # its reason names the first cause of all nodes: another one's, unless that is held back here
            elsewhere = bool(self._held) and not any(f"pid {each.pid} on " in new.reason for each in self._held)
            why = f" ({new.reason})" if fewer_stay and (elsewhere or not told) else ""
            say = self._cause if elsewhere else self.line
            say(f"generation {new.number}: {_describe(previous, new)}{why}{_NOTHING_LEFT if lost else ''}")
        self._first_told = False

    def progress(self, generation: int, step: int) -> None:
        """A worker of this node works on `step` in `generation`."""
        self._look_back(generation, step)
        if self._agreed is not None and self._resumed is None and generation >= self._sought:
            self._resumed = self._clock.monotonic()

    def _look_back(self, generation: int, step: int) -> None:
        """Say so when all that had the state are gone, though others are left: newcomers that had not received it yet.

        Who dies may have been one commit ahead of all others: that one is redone, and no loss.
        """
        if self._lost_before and step == 1:
            self.line(
                f"training begins at step 1: node {self._lost_before} was gone before a worker of this node had "
                "received the state from it"
            )
            self.event("state_lost", generation=generation, step=step, committed=None)
        self._works, self._lost_before = True, ""
        since, last, before = self._kept
        if generation > since and step <= before:
            self._kept = _NO_COMMIT
            self.line(f"training goes on at step {step}, though step {last} was committed{_NOTHING_LEFT}")
            self.event("state_lost", generation=generation, step=step, committed=last)

    def committed(self, generation: int, step: int) -> None:
        """A worker of this node committed a step."""
        _, last, before = self._kept
        self._kept = (generation, step, last if step != last else before)
        if self._death is None or self._agreed is None or generation < self._sought:
            return
        now = self._clock.monotonic()
        death, agreed, resumed = self._death, self._agreed, self._resumed
        self._death = self._agreed = self._resumed = None
        self.history.recovered(now - death)
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
