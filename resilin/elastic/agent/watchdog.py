"""Notice that training stands still, find out who is to blame, and end that one. In the agent's loop.

a worker's silence passes `pace`'s limit ──> every node looks at its own workers for LOOK_S (stacks, flight
recorders, use of processors), and tries whether it reaches the others ──> its record says where they stand (`stalls`),
the stacks go to a key that nobody follows ──> all nodes judge alike (`blame`) ──> the agent of the one to blame names
it, and ends it when it is time; but for a link that is cut nobody is blamed
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from resilin._base import json_text, log, private_files, stacks
from resilin._base.clock import Clock
from resilin.elastic import control, records
from resilin.elastic.agent.config import AgentConfig
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.slots import Hang, LocalSlot
from resilin.elastic.agent.stragglers import LOOK_S as TEMPO_S
from resilin.elastic.agent.stragglers import Looked, Stragglers
from resilin.elastic.failure import shorten
from resilin.elastic.hangs import blame, busy_loop, flight_analysis, process_probe, stall_record
from resilin.elastic.hangs.blame import Verdict
from resilin.elastic.hangs.busy_loop import BusyLoop
from resilin.elastic.hangs.stall_record import Doing, Stall, Standing
from resilin.elastic.hangs.step_time import Limits, StepTime
from resilin.elastic.membership import reachability
from resilin.elastic.membership.view import View
from resilin.elastic.records import Generation
from resilin.elastic.rendezvous.rendezvous import Rendezvous
from resilin.errors import StoreError, UsageError

_log = log.logger("elastic.watchdog")
LOOK_S = 2.0  # long enough to tell a process that waits from one that works a little
SETTLE_S = 5.0  # for what the other nodes find; one whose agent does not answer is judged without
_UNREAD_CHARS = 200  # in a record that all nodes read
TAKE_UP_S = 1.0  # so long who was given a new world may take to leave the old one
POLL_S = 1.0  # between two looks at the flight recorder of a program that tells no steps
_MOST_STACKS_BYTES = 400_000  # of one node: a store takes about a megabyte


@dataclass
class _Track:
    """What is known of the progress of one process."""

    incarnation: int
    last: float  # when it last made progress, monotonic
    begun: int = 0  # the generation in which it has made a step
    calls: int = 0  # recorded ones, of a program that tells no steps
    polled: float = 0.0
    pause: str = ""
    pause_end: float = 0.0
    circle: BusyLoop = field(default_factory=BusyLoop)
    told_unread: bool = False

    def goes_on(self, now: float) -> None:
        """It has made progress."""
        self.last, self.circle = now, BusyLoop()


class Watchdog:
    """Of one agent's `slots`. `tried`: waits for tries of links that are under way; `step`: have the agent look again;
    `spawn`: own a task.

    `stall` is what the node's record says.
    """

    def __init__(
        self,
        config: AgentConfig,
        slots: Sequence[LocalSlot],
        rendezvous: Rendezvous,
        reporter: Reporter,
        tried: Callable[[], Awaitable[None]],
        step: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        clock: Clock,
    ) -> None:
        self._config = config
        self._slots = slots
        self._rendezvous = rendezvous
        self._reporter = reporter
        self._tried = tried
        self._step = step
        self._spawn = spawn
        self._clock = clock
        self._step_time = StepTime(config.hang_timeout_s or 0.0)
        self._stragglers = Stragglers(config.job.name, config.node_id, config.host, rendezvous, reporter.line, clock)
        self._tracks: dict[int, _Track] = {}  # by slot
        self.stall: Stall | None = None
        self._stalled_at = 0.0  # when it was last noticed, monotonic
        self._found_at = 0.0  # when `stall` was complete here
        self._seen = self._judged = (0, 0)  # generation and round: begun here, judged here
        self._next = 0.0  # not before this is looked again in the same silence
        self._told: set[tuple[int, int, str]] = set()  # generation, rank (-1: nobody), and what was said of it
        self._stacks: dict[int, str] = {}  # by rank, of this node, of the last look
        self._unheard = ""  # that workers here wait, and that nothing is heard of others

    @property
    def cut_off(self) -> str:
        """Why nobody goes on here, if that is because nothing is heard of other nodes' workers; empty: it is not."""
        return self._unheard if self.stall is not None else ""

    @property
    def stalled_at(self) -> float | None:
        """When it was last noticed that training stands still, if it does; monotonic."""
        return self._stalled_at if self.stall is not None else None

    # ------------------------------------------------------------------------------------- progress

    def heard(self, slot: LocalSlot, message: control.Message) -> None:
        """A worker said something."""
        now = self._clock.monotonic()
        track = self._track(slot, now)
        if isinstance(message, control.Committed):
            self._progress(track, message.generation, now, now - track.last)
        elif isinstance(message, control.Progress | control.Entering):
            track.goes_on(now)
        elif isinstance(message, control.Pause):
            track.goes_on(now)
            track.pause, track.pause_end = message.reason, now + message.at_most_s

    def _progress(self, track: _Track, generation: int, now: float, took: float) -> None:
        first = track.begun != generation
        if not first and track.begun and not track.pause:
            self._step_time.took(took)
        track.begun = generation
        track.goes_on(now)
        if self.stall is not None and self.stall.workers:
            if any(said[0] == self.stall.generation for said in self._told):
                self._reporter.line(f"training goes on, after {took:.0f} s without a step")
            self._told.clear()
            first = True  # the others see it
        self.stall, self._next = None, 0.0
        if first:
            self._step()  # from now on it is looked at sooner

    def _track(self, slot: LocalSlot, now: float) -> _Track:
        track = self._tracks.get(slot.index)
        if track is None or track.incarnation != slot.incarnation:
            track = self._tracks[slot.index] = _Track(incarnation=slot.incarnation, last=now)
        return track

    def _poll(self, slot: LocalSlot, track: _Track, now: float) -> None:
        """Take new calls in the flight recorder of a program that tells no steps for progress.

        How long it was on the way to the first ones is no step's time; but they may be quick steps already.
        """
        if now < track.polled + POLL_S or slot.streams is None or slot.worker is None:
            return
        try:
            count = process_probe.count(slot.flights, slot.worker.pid)
        except (OSError, UsageError) as error:
            self._tell_unread(slot, f"its flight recorder cannot be read: {error}")
            track.polled = now
            return
        if count > track.calls:
            gaps = () if track.calls else flight_analysis.gaps(process_probe.calls(slot.flights, slot.worker.pid).calls)
            for seconds in gaps:
                self._step_time.took(seconds)
            generation = slot.generation if track.calls or gaps else track.begun
            self._progress(track, generation, now, max(0.0, now - track.last - POLL_S))
        track.calls, track.polled = count, now

    # ------------------------------------------------------------------------------------- the look

    def look(self, view: View, now: float) -> float | None:
        """Do what is due, and say when to come back. now: monotonic, in seconds."""
        current = view.generation
        if current is None or view.closed is not None:
            self.stall = None
            return None
        mine = self._members(current)
        compare_at = self._compare(view, current, mine, now)
        if self._config.hang_timeout_s is None:
            return compare_at
        hang_at = self._look_for_hang(view, current, mine, now)
        return min((at for at in (compare_at, hang_at) if at is not None), default=None)

    def _look_for_hang(self, view: View, current: Generation, mine: Sequence[LocalSlot], now: float) -> float | None:
        if self.stall is not None and self.stall.generation != current.number:
            self.stall, self._next = None, 0.0
        due = [at for slot in mine if (at := self._due(slot, current, now)) is not None]
        begun = max((stall.round for stall in _by_node(view, current).values()), default=0)
        seen = self._seen[1] if self._seen[0] == current.number else 0
        if self.stall is not None and not self.stall.workers:
            return None  # it looks, and comes back when it has
        if begun > seen and mine:
            self._begin(current, begun, mine)
            return None
        if self.stall is not None and self._judged != self._seen:
            return self._judge(view, current, now)
        if not due:
            return None
        at = max(min(due), self._next)
        if at > now:
            return at
        self._begin(current, max(begun, seen) + 1, mine)
        return None

    def _compare(self, view: View, current: Generation, mine: Sequence[LocalSlot], now: float) -> float | None:
        """Have a look at who is slow, when it is time; when it is next."""
        if not self._config.compare_ranks or len(current.members) < 2:
            return None
        if now >= self._stragglers.next:
            self._stragglers.next = now + TEMPO_S
            places = {
                slot.rank: Looked(folder=slot.flights, pid=slot.worker.pid, step=slot.step)
                for slot in mine
                if slot.worker is not None
            }
            leads = view.leader() == self._config.node_id
            self._spawn(self._stragglers.look(current.number, places, leads=leads))
        return self._stragglers.next

    def _members(self, current: Generation) -> list[LocalSlot]:
        """Running workers of this node that are members."""
        named = {(m.slot, m.incarnation) for m in current.members if m.node == self._config.node_id}
        return [s for s in self._slots if (s.index, s.incarnation) in named and s.running and not s.stopping]

    def _due(self, slot: LocalSlot, current: Generation, now: float) -> float | None:
        """When the silence of a worker is too long; for a program that tells nothing: when to see whether it does."""
        track = self._track(slot, now)
        if slot.state not in ("running", "ready") or (slot.endpoint and slot.sent != current.number):
            return None
        if slot.aborted >= current.number:  # that world is over: it waits for another one, however long there is none
            return None
        if _is_absent(slot, current):  # not a new silence: it may have hung before
            return max(track.last + self._limits(track, slot.entered).look, slot.sent_at + TAKE_UP_S)
        if not slot.endpoint:
            self._poll(slot, track, now)
            if not track.calls:
                return now + POLL_S
        if track.last < slot.sent_at:  # a new world: what was before it is no part of this silence
            track.goes_on(slot.sent_at)
        at = track.last + self._limits(track, current.number).look
        at = max(at, track.pause_end) if track.pause else at
        return min(at, now + POLL_S) if not slot.endpoint and at > now else at

    def _limits(self, track: _Track, number: int) -> Limits:
        return self._step_time.limits(begun=0 < track.begun == number, before=track.begun > 0)

    def _begin(self, current: Generation, number: int, mine: Sequence[LocalSlot]) -> None:
        self._seen = current.number, number
        self.stall, self._stalled_at = Stall(generation=current.number, round=number), self._clock.monotonic()
        self._spawn(self._look(self.stall, mine))
        self._step()

    async def _look(self, begun: Stall, mine: Sequence[LocalSlot]) -> None:
        """See where the workers here stand."""
        pids = {slot.worker.pid: slot for slot in mine if slot.worker is not None}
        before, start = process_probe.use_of(pids), self._clock.monotonic()
        await asyncio.sleep(LOOK_S)
        after, took_s = process_probe.use_of(pids), self._clock.monotonic() - start
        doing = {pid: process_probe.doing(pid, before[pid], after[pid], took_s) for pid in pids}
        asked = [
            (pid, slot.streams.folder, slot.worker.kill)
            for pid, slot in pids.items()
            if slot.running and slot.worker is not None and slot.streams is not None and doing[pid] in ("busy", "idle")
        ]
        written = await process_probe.gathered(asked, self._clock)
        working = [one for one in asked if doing[one[0]] == "busy"]
        samples = [written, *[await process_probe.gathered(working, self._clock) for _ in range(1, busy_loop.SAMPLES)]]
        for pid, *_ in working:
            circle = self._track(pids[pid], self._clock.monotonic()).circle
            quiet = process_probe.is_quiet(before[pid], after[pid], took_s)
            circle.seen([each.get(pid, "") for each in samples], quiet=quiet)
        standings = [
            self._standing(slot, pid, doing[pid], written.get(pid, "")) for pid, slot in pids.items() if slot.running
        ]
        self._stacks = {who.rank: written.get(who.pid, "") for who in standings}
        await self._set_aside(standings)
        await self._tried()
        if self.stall is begun:  # there was no progress meanwhile, and no new generation
            now = self._clock.monotonic()
            silent_s = now - min((self._track(slot, now).last for slot in mine), default=now)
            self.stall = replace(begun, silent_s=silent_s, workers=tuple(standings))
            self._found_at = now
            self._step()

    def _standing(self, slot: LocalSlot, pid: int, doing: Doing, stack: str) -> Standing:
        now = self._clock.monotonic()
        track = self._track(slot, now)
        found = process_probe.calls(slot.flights, pid)
        if found.unread not in ("", process_probe.NO_RECORDER):  # that is for who wants to know why nobody is named
            self._tell_unread(slot, found.unread)
        return Standing(
            rank=slot.rank,
            pid=pid,
            doing=doing,
            at=stacks.place(stack),
            strays=stacks.strays(stack),
            pause=track.pause if now < track.pause_end else "",
            absent=slot.sent if slot.endpoint and slot.entered < slot.sent else 0,
            calls=stall_record.compact(found.calls),
            unread=shorten(found.unread, _UNREAD_CHARS),
        )

    def _tell_unread(self, slot: LocalSlot, why: str) -> None:
        """Say once for each process that not all its calls are known."""
        track = self._track(slot, self._clock.monotonic())
        if not track.told_unread:
            track.told_unread = True
            self._reporter.line(f"rank {slot.rank}: {why}: the watchdog may not know whom it waits for")

    # ----------------------------------------------------------------------------------- the verdict

    def _judge(self, view: View, current: Generation, now: float) -> float | None:
        assert self.stall is not None
        said = {node: s for node, s in _by_node(view, current).items() if s.round == self.stall.round and s.workers}
        missing = any(view.node(node) is not None and node not in said for node in current.nodes)
        if missing and now < self._found_at + SETTLE_S:
            return self._found_at + SETTLE_S
        self._judged = current.number, self.stall.round
        standings = sorted((who for stall in said.values() for who in stall.workers), key=lambda who: who.rank)
        cut = reachability.cuts_within(view, current.nodes)
        verdict = Verdict(reason=cut) if cut else blame.judge(standings, len(current.members))
        log.event(_log, 20, "training stands still", ranks=verdict.ranks, reason=verdict.reason)
        self._unheard = verdict.reason if len(standings) < len(current.members) and not verdict.ranks else ""
        silent_s = now - min((self._track(s, now).last for s in self._members(current)), default=now)
        self._next = now + max(silent_s, LOOK_S)
        if not verdict.ranks:
            leads = view.leader() == self._config.node_id
            known = any(self._track(slot, now).begun == current.number for slot in self._members(current))
            if leads and known and not any(who.pause for who in standings):
                doing = f"{verdict.reason}: {blame.doings(standings)}" if standings else verdict.reason
                self._tell(current, -1, "", f"no step for {silent_s:.0f} s: {doing}; nobody is ended")
            return self._next
        for who in standings:
            slot = next((s for s in self._members(current) if who.rank in verdict.ranks and s.rank == who.rank), None)
            if slot is not None and slot.worker is not None and slot.worker.pid == who.pid:
                self._answer(slot, who, verdict, current, standings, now)
        return self._next

    def _answer(
        self,
        slot: LocalSlot,
        who: Standing,
        verdict: Verdict,
        current: Generation,
        standings: Sequence[Standing],
        now: float,
    ) -> None:
        """End the worker, which is to blame, or say that it keeps the others waiting and when it will be ended."""
        track = self._track(slot, now)
        world = slot.entered if _is_absent(slot, current) else current.number
        limits, silent_s = self._limits(track, world), now - track.last
        doing = "circle" if who.doing == "busy" and track.circle.closed else who.doing
        ends = {"stopped": limits.look, "idle": limits.idle, "circle": limits.circle}
        end_s = ends.get(doing, limits.busy)
        complaint = f"{verdict.complaint(who)}; no step for {silent_s:.1f} s"
        if silent_s >= end_s:
            self._spawn(self._end(slot, who, complaint, standings))
            return
        self._next = min(self._next, now + end_s - silent_s)
        later = f"it is ended after {end_s:.0f} s" if end_s < float("inf") else "it has not made its first step yet"
        later += ": it is at that line whenever it is looked at, and does nothing beside" * (doing == "circle")
        name = f"rank {who.rank} (host {self._config.host}, pid {who.pid})"
        self._tell(current, who.rank, doing, f"{name} holds the others up: {complaint}; {later}")

    async def _end(self, slot: LocalSlot, who: Standing, complaint: str, standings: Sequence[Standing]) -> None:
        """Kill the worker; its failure tells where all ranks were."""
        worker, known = slot.worker, await self._set_aside_by_all()
        others = [(each, known.get(each.rank, "")) for each in standings if each.rank != who.rank]
        if slot.worker is worker and slot.running and self.stall is not None:
            path = self._write(complaint, who, standings, known)
            slot.end_hung(Hang(complaint=complaint, stack=known.get(who.rank, ""), others=_lines(others), report=path))

    def _write(self, complaint: str, who: Standing, standings: Sequence[Standing], known: dict[int, str]) -> str:
        """The whole story as a file, where logs are kept; its path, or ""."""
        plan, stall = self._config.plan, self.stall
        if not plan.keep or stall is None:
            return ""
        path = plan.base / f"hang_{stall.generation}_{stall.round}.json"
        ranks = [{**asdict(each), "stacks": known.get(each.rank, "")} for each in standings]
        body = {"rank": who.rank, "pid": who.pid, "reason": complaint, "generation": stall.generation, "ranks": ranks}
        try:
            private_files.write_file(path, json.dumps(body, indent=2) + "\n")
        except OSError as error:
            self._reporter.line(f"the report of a hang is not kept: {path}: {error.strerror or error}")
            return ""
        return str(path)

    def _tell(self, current: Generation, rank: int, doing: str, text: str) -> None:
        if (current.number, rank, doing) not in self._told:
            self._told.add((current.number, rank, doing))
            self._reporter.line(text)
            self._reporter.event("stall", generation=current.number, rank=rank, text=text)

    # ------------------------------------------------------------------------------ stacks of all nodes

    @property
    def _prefix(self) -> str:
        return f"/resilin//stacks/{self._config.job.name}/"

    async def _set_aside(self, standings: Sequence[Standing]) -> None:
        """Write the stacks where the agent of whoever is to blame finds them; a store that is away has none."""
        share = _MOST_STACKS_BYTES // max(1, len(standings))
        body = json.dumps({str(who.rank): _fitting(self._stacks[who.rank], share) for who in standings}).encode()
        key = self._prefix + self._config.node_id
        with contextlib.suppress(StoreError):
            await self._rendezvous.aside(lambda store, lease: store.put(key, body, lease))

    async def _set_aside_by_all(self) -> dict[int, str]:
        """By rank, the stacks of all nodes; those of this one at least."""
        known: dict[int, str] = {}
        with contextlib.suppress(StoreError):
            entries, _ = await self._rendezvous.aside(lambda store, _: store.range(self._prefix))
            for entry in entries:
                try:
                    known |= {int(rank): str(text) for rank, text in json_text.parse(entry.value).items()}
                except (ValueError, AttributeError) as error:  # the others' are as good without it
                    told = records.misplaced(entry.key, entry.value, "stacks by rank")
                    log.event(_log, 40, "a record of this job is none", error=str(told), because=str(error))
        return known | self._stacks


def _is_absent(slot: LocalSlot, current: Generation) -> bool:
    """Return whether a worker was given the present world, and is still in what was before."""
    return bool(slot.endpoint) and slot.entered < slot.sent == current.number


def _by_node(view: View, current: Generation) -> dict[str, Stall]:
    """What members' nodes say of the present generation."""
    found = {node: view.node(node) for node in current.nodes}
    return {
        name: node.stall
        for name, node in found.items()
        if node is not None and node.stall is not None and node.stall.generation == current.number
    }


def _fitting(text: str, most: int) -> str:
    """As much of the beginning as takes `most` bytes of JSON, where what is not ASCII takes six or twelve."""
    while (size := len(json.dumps(text))) > most:
        text = text[: min(len(text) - 1, len(text) * most // size)]
    return text


def _lines(others: Sequence[tuple[Standing, str]]) -> tuple[str, ...]:
    """The stacks of the ranks' main threads for people; equal ones once."""
    same: dict[str, list[Standing]] = {}
    for who, text in others:
        same.setdefault("\n".join(stacks.frames_of(text)) or blame.describe(who), []).append(who)
    lines: list[str] = []
    for text, who_all in same.items():
        lines.append(f"rank{'s' if len(who_all) > 1 else ''} {', '.join(str(who.rank) for who in who_all)}:")
        lines += [f"  {line}" for line in text.splitlines()]
    return tuple(lines)
