"""What must hold after every event, whatever the faults: checked where it would first show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from resilin.data.elastic_sampler import StepPlan
from resilin.elastic import ledger, records
from resilin.elastic.deciding.view import Config
from resilin.elastic.ledger import Entry
from resilin.elastic.records import Closed, Generation, Node
from resilin.elastic.worker import roles
from resilin.store.base import Event
from resilin.testing.simulation.universe import Universe
from resilin.testing.simulation.workers import Lineage, Training

NEWS_S = 6.0  # a cut may keep the leader from hearing of a node for so long


class Invariants:
    """Watches the store's records and the workers' steps; raises Broken."""

    def __init__(self, universe: Universe, job: Config, training: Training, in_place: bool) -> None:
        self._universe = universe
        self._job = job
        self._training = training
        self._in_place = in_place
        self.generations: list[Generation] = []
        self.closed: Closed | None = None
        self.over = False  # the job has ended and its records are gone: another one may begin under its name
        self.entries: list[Entry] = []
        self.last_commit = 0.0
        self._nodes: dict[str, tuple[float, Node]] = {}  # by id: when it came, and what it says of itself
        self._failed: dict[int, set[str]] = {}  # by step: on which nodes workers have failed by their own doing
        self._starts: dict[int, tuple[int, Lineage | None]] = {}
        self._steps: dict[tuple[int, int], Lineage] = {}

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            self._universe.fail(text)

    # ------------------------------------------------------------------------------- the store's records

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
            elif event.kv.key.endswith("/closed"):
                self._check(event.previous is None, "the job's end was written twice")
                self.closed = records.closed(event.kv.key, event.kv.value)
                self._universe.say("store", f"closed: {self.closed.outcome}, {self.closed.reason}")
                self._step_to_blame(self.closed)

    def _generation(self, new: Generation) -> None:
        self._universe.say("store", describe(new))
        if self.over:
            return
        old = self.generations[-1] if self.generations else None
        self.generations.append(new)
        members, job = new.members, self._job
        self._check(
            new.number == (old.number if old else 0) + 1, f"generation {new.number} follows {old and old.number}"
        )
        self._check([m.rank for m in members] == list(range(len(members))), "ranks are not 0 to n-1, in order")
        self._check(
            len({(m.node, m.slot) for m in members}) == len(members) > 0, "a slot has two ranks, or nobody has one"
        )
        self._check(set(new.nodes) == {m.node for m in members}, "nodes are not those of the members")
        self._check(len(new.nodes) <= job.max_nodes, f"{len(new.nodes)} nodes, {job.max_nodes} are allowed")
        self._check(0 <= new.restarts_used <= job.max_restarts, f"{new.restarts_used} restarts of {job.max_restarts}")
        if new.kind == "restart":
            self._check(len(new.nodes) >= job.min_nodes, f"{len(new.nodes)} nodes, fewer than {job.min_nodes}")
        else:
            self._check(
                len(members) <= self._training.shards, f"{len(members)} workers, {self._training.shards} shards"
            )
        if old is not None:
            self._follows(old, new)

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
        self, generation: int, rank: int, step: int, lineage: Lineage | None, reports: list[roles.Report]
    ) -> None:
        """See `Witness`."""
        settled = [report.step for report in reports if report.settled]
        self._check(not settled or step >= max(settled), f"generation {generation} starts at {step}, below {settled}")
        known = self._starts.setdefault(generation, (step, lineage))
        self._check(
            known == (step, lineage),
            f"generation {generation}: rank {rank} starts from {story(lineage)}, another one from {story(known[1])}",
        )

    def reduced(self, generation: int, plan: StepPlan, parts: Mapping[int, Any], size: int) -> None:
        """See `Witness`."""
        self._check(len(parts) == size, f"{len(parts)} ranks took part in a world of {size}")
        self._check({part[0] for part in parts.values()} == {generation}, f"generation {generation} heard another one")
        self._check({part[1] for part in parts.values()} == {plan.position}, f"ranks are at different steps: {parts}")
        shards = sorted(number for part in parts.values() for number in part[2])
        self._check(shards == list(range(self._training.shards)), f"shards {shards} were computed")

    def committed(self, entry: Entry, lineage: Lineage) -> None:
        """See `Witness`."""
        self.entries.append(entry)
        self.last_commit = self._universe.now
        known = self._steps.setdefault((entry.generation, entry.step), lineage)
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
