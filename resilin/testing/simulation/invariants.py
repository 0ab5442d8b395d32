"""What must hold after every event, whatever the faults: checked where it would first show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from resilin.data.elastic_sampler import StepPlan
from resilin.elastic import ledger, records
from resilin.elastic.ledger import Entry
from resilin.elastic.membership import succession
from resilin.elastic.membership.view import Config
from resilin.elastic.records import Closed, Generation, Node
from resilin.elastic.worker import source_election
from resilin.store.base import Event
from resilin.testing.simulation.universe import Universe
from resilin.testing.simulation.workers import Lineage, Training

NEWS_S = 6.0  # a cut may keep the leader from hearing of a node for so long


class Invariants:
    """Watches the store's records and the workers' steps; raises Broken."""

    def __init__(
        self, universe: Universe, job: Config, training: Training, in_place: bool, *, blameless: bool = False
    ) -> None:
        self._blameless = blameless
        self._universe = universe
        self._job = job
        self._training = training
        self._in_place = in_place
        self.generations: list[Generation] = []
        self.closed: Closed | None = None
        self.over = False  # the job has ended and its records are gone: another one may begin under its name
        self.entries: list[Entry] = []  # of the beginning that the store knows, or knew last
        self.last_commit = 0.0
        self._nodes: dict[str, tuple[float, Node]] = {}  # by id: when it came, and what it says of itself
        self._failed: dict[int, set[str]] = {}  # by step: on which nodes workers have failed by their own doing
        self._starts: dict[tuple[str, int], tuple[int, Lineage | None]] = {}  # by beginning and generation
        self._steps: dict[tuple[str, int, int], Lineage] = {}  # and step
        self._of: dict[str, list[Entry]] = {}  # entries by beginning
        self._numbers: dict[str, set[int]] = {}  # of generations, by beginning
        self._lost = False  # the store has lost everything, and no generation has been written since

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            self._universe.fail(text)

    # ------------------------------------------------------------------------------- the store's records

    def store_lost(self) -> None:
        """Another, empty store is there in the place of the one that was."""
        self._lost = True
        self._nodes.clear()

    def changed(self, events: Sequence[Event]) -> None:
        """The store has made one revision; called under its lock, before anybody else hears of it."""
        for event in events:
            name = event.kv.key.rpartition("/nodes/")[2]
            if event.kind != "put":
                self.over |= event.kv.key.endswith("/closed")
                self._nodes.pop(name, None)
                continue
            if "/nodes/" in event.kv.key:
                came, _ = self._nodes.get(name, (self._universe.now, None))
                self._nodes[name] = came, records.node(event.kv.key, event.kv.value)
            if event.kv.key.endswith("/generation"):
                self._generation(records.generation(event.kv.key, event.kv.value))
            elif event.kv.key.endswith("/closed") and not self.over:
                self._check(event.previous is None, "the job's end was written twice")
                self.closed = records.closed(event.kv.key, event.kv.value)
                self._universe.say("store", f"closed: {self.closed.outcome}, {self.closed.reason}")
                self._step_to_blame(self.closed)

    def _generation(self, new: Generation) -> None:
        self._universe.say("store", describe(new))
        if self.over:  # it is another job's, of the same name
            return
        self.entries = self._of.setdefault(new.origin, [])
        old = self._before(new)
        self._lost = False
        self.generations.append(new)
        self._numbers.setdefault(new.origin, set()).add(new.number)
        members, job = new.members, self._job
        self._check([m.rank for m in members] == list(range(len(members))), "ranks are not 0 to n-1, in order")
        self._check(
            len({(m.node, m.slot) for m in members}) == len(members) > 0, "a slot has two ranks, or nobody has one"
        )
        self._check(set(new.nodes) == {m.node for m in members}, "nodes are not those of the members")
        self._check(
            not self._training.divided or self._has_all(new), "its members lack parts of the state that others have"
        )
        # whoever is to go may have to hand over its state; one that is out for a while stays where MIN needs it
        nodes = {name: node for name, (_, node) in self._nodes.items()}
        staying = [nodes.get(name) for name in new.nodes if name not in nodes or not nodes[name].leaving]
        able = sum(node is None or not node.excluded for node in staying)
        count = able + min(len(staying) - able, max(0, job.min_nodes - able))
        self._check(count <= job.max_nodes, f"{count} nodes, {job.max_nodes} are allowed")
        self._check(0 <= new.restarts_used <= job.max_restarts, f"{new.restarts_used} restarts of {job.max_restarts}")
        if new.kind == "restart":
            self._check(len(new.nodes) >= job.min_nodes, f"{len(new.nodes)} nodes, fewer than {job.min_nodes}")
        elif new.reason != succession.REFILLED:  # what was put back may be a restart's
            self._check(
                len(members) <= self._training.shards, f"{len(members)} workers, {self._training.shards} shards"
            )
        if old is not None:
            self._follows(old, new)

    def _has_all(self, new: Generation) -> bool:
        """Whether the members have all parts of the state, if all workers together have: those of the newest world that
        one has taken up."""
        slots = [(name, slot) for name, (_, node) in self._nodes.items() for slot in node.slots if slot.parts]
        newest = max((slot.parts_in for _, slot in slots), default=0)
        there = [(name, slot) for name, slot in slots if slot.parts_in == newest and slot.state in ("ready", "done")]
        places = {(m.node, m.slot, m.incarnation) for m in new.members}
        inside = [slot for name, slot in there if (name, slot.index, slot.incarnation) in places]
        total = max((slot.parts_of for _, slot in there), default=0)
        known = {part for _, slot in there for part in slot.parts}
        return len(known) < total or {part for slot in inside for part in slot.parts} == known

    def _before(self, new: Generation) -> Generation | None:
        """The generation that `new` follows, whose number says so: in the store, or in one that was lost."""
        known = self.generations[-1] if self.generations and not self._lost else None
        used = self._numbers.get(new.origin, set())
        self._check(new.number not in used, f"generation {new.number} of beginning {new.origin} was written twice")
        if new.refills and (known is None or known.refills != new.refills or known.origin != new.origin):
            number = new.number - succession.ROOM
            before = [n for n in used if number - succession.SPREAD < n <= number]
            self._check(bool(before), f"generation {new.number} is put back, and there was none about {number}")
            # whoever puts it back may have heard of none after it
            about = [one for one in self.generations if one.origin == new.origin and one.number in before]
            same = [one for one in about if one.members == new.members]
            self._check(bool(same), f"generation {new.number} is put back with members that none about {number} has")
            return max(same, key=lambda one: one.number)
        self._check(
            new.number == (known.number if known else 0) + 1,
            f"generation {new.number} follows {known and known.number}",
        )
        return known

    def _follows(self, old: Generation, new: Generation) -> None:
        again = any(node in old.nodes for node in new.nodes)
        self._check(not again or new.restarts_used >= old.restarts_used, "the count of restarts went back")
        if again:
            self._counts(old, new)
        before = {(m.node, m.slot, m.incarnation): m.rank for m in old.members}
        if new.kind == "restart":
            self._check(not any((m.node, m.slot, m.incarnation) in before for m in new.members), "a process was kept")
            return
        for m in new.members:
            rank = before.get((m.node, m.slot, m.incarnation), m.rank)
            self._check(rank == m.rank or rank >= len(new.members), f"a survivor's rank went from {rank} to {m.rank}")

    def _counts(self, old: Generation, new: Generation) -> None:
        """A restart of all counts one, in place each failed member does, and whoever failed without being a member."""
        known = dict(old.unjoined)
        unjoined = sum(max(0, count - known.get(node, 0)) for node, count in new.unjoined)
        told = re.search(r"ranks? ([\d, ]+) failed", new.reason)
        failed = len(told[1].split(",")) if told else 0
        due = old.restarts_used + unjoined + (min(1, failed) if new.kind == "restart" else failed)
        due = min(due, self._job.max_restarts)
        self._check(new.restarts_used == due, f"{new.restarts_used} restarts used, expected {due}")

    def _step_to_blame(self, closed: Closed) -> None:
        """A step may be blamed when it failed on two nodes, or on one that the others cannot do without."""
        told = re.match(r"step (\d+) has failed", closed.reason)
        if told is None:
            return
        blamed = self._failed.get(int(told[1]), set())
        known_since = self._universe.now - NEWS_S
        others = [
            name
            for name, (came, node) in self._nodes.items()
            if name not in blamed and came < known_since and not node.leaving and not node.excluded
        ]
        self._check(
            len(blamed) != 1 or len(others) < self._job.min_nodes,
            f"step {told[1]} is blamed, which failed on {', '.join(blamed)} alone, while there are {', '.join(others)}",
        )

    # ------------------------------------------------------------------------------- the workers' steps

    def equal(
        self,
        beginning: str,
        generation: int,
        rank: int,
        step: int,
        lineage: Lineage | None,
        reports: list[source_election.Report],
    ) -> None:
        """See `Witness`."""
        settled = [report.step for report in reports if report.settled]
        self._check(not settled or step >= max(settled), f"generation {generation} starts at {step}, below {settled}")
        known = self._starts.setdefault((beginning, generation), (step, lineage))
        self._check(
            known == (step, lineage),
            f"generation {generation}: rank {rank} starts from {story(lineage)}, another one from {story(known[1])}",
        )

    def held(self, generation: int, step: int, elsewhere: Mapping[str, int]) -> None:
        """See `Witness`."""
        ahead = {name: other for name, other in elsewhere.items() if other > step + 1}
        text = f"generation {generation} starts at {step}, though workers live that have done more: {ahead}"
        self._check(not self._blameless or not ahead, text)

    def left(self, worker: str, alone: bool) -> None:
        """See `Witness`."""
        over = self.closed is not None
        self._check(not self._blameless or over or not alone, f"{worker} left with the state that others need")

    def killed(self, worker: str) -> None:
        """See `Witness`."""
        self._check(not self._blameless or self.closed is not None, f"{worker} was well, and was killed by its agent")

    def reduced(self, generation: int, plan: StepPlan, parts: Mapping[int, Any], size: int) -> None:
        """See `Witness`."""
        self._check(len(parts) == size, f"{len(parts)} ranks took part in a world of {size}")
        self._check({part[0] for part in parts.values()} == {generation}, f"generation {generation} heard another one")
        self._check({part[1] for part in parts.values()} == {plan.position}, f"ranks are at different steps: {parts}")
        shards = sorted(number for part in parts.values() for number in part[2])
        self._check(shards == list(range(self._training.shards)), f"shards {shards} were computed")

    def committed(self, beginning: str, entry: Entry, lineage: Lineage) -> None:
        """See `Witness`."""
        self._of.setdefault(beginning, []).append(entry)
        self.last_commit = self._universe.now
        known = self._steps.setdefault((beginning, entry.generation, entry.step), lineage)
        if known is not lineage and known != lineage:
            self._check(False, f"step {entry.step}, generation {entry.generation}: {story(lineage)} and {story(known)}")

    def failed(self, node: str, step: int) -> None:
        """See `Witness`."""
        self._failed.setdefault(step, set()).add(node)

    # ------------------------------------------------------------------------------- the end

    def finished(self) -> None:
        """The job has succeeded: every sample counted once."""
        what = self._training
        if self._in_place:
            verdict = ledger.verify(self.entries, what.samples, unfinished_last=True)
            self._check(verdict.ok, f"ledger: {verdict}")
            self._check(verdict.steps == what.steps, f"{verdict.steps} steps were committed, expected {what.steps}")


def describe(new: Generation) -> str:
    """A generation in one line."""
    who = " ".join(f"{m.rank}={m.node}/{m.slot}#{m.incarnation}" for m in new.members)
    return f"generation {new.number} ({new.kind}, {new.boundary}): {who}; {new.restarts_used} used; {new.reason}"


def story(lineage: Lineage | None) -> str:
    """The last steps of a lineage: step@generation."""
    steps: list[str] = []
    while lineage is not None and len(steps) < 4:
        lineage, step, generation = lineage
        steps.append(f"{step}@{generation}")
    return " ".join(reversed(steps)) or "the start"
