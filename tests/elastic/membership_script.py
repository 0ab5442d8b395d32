"""Plays membership scenarios: one command a line, each followed by what is decided.

    job MIN:MAX [restarts N] [last-call S] [shards V] [same-step N]
    join NODE [slots N] [rank R]     lost NODE          leave NODE        wait SECONDS
    hello PLACE...                   replace PLACE
    die PLACE own|external [STEP|entering [GENERATION]] (in which it worked on the step)
    early PLACE WHERE (an error there before it said hello, which its agent counts)
    done PLACE...                    exit PLACE         stop NODE...    over PLACE... (told so)
    asked STEP PLACE... (to leave, and left after it)
    missed PLACE RANK...             unresponsive (adds a line with the ranks to be killed; each dies)
    works PLACE... (on a step: has the job's state)
    divided (all members do, and each has its part of the state, and that of the rank half of the world before its own)
    asks PLACE... (to leave: SIGTERM to it alone)
    cut NODE OTHER... (it cannot connect with these)  meets NODE (it can with all)  leads NODE
    slow NODE (its tries of those that were missed took long: the network was cut)
    drain NODE... (no other is)      scale MIN:MAX
    refill MARK (the store was lost, and a node has put the last generation into the one in its place)
    dismissed (adds a line with the nodes whose workers shall end)

A PLACE is node/slot, or `all` that are alive; NODE... may be `all`. A decided generation takes effect at once: the
workers of a restart run. So does the exclusion of a node that failures at one step speak against. Places in the output
are node/slot#incarnation.
"""

from __future__ import annotations

from dataclasses import replace

from resilin.elastic.membership import decision, early_failures, queries, scaling, succession
from resilin.elastic.membership.view import Config, Seen, View
from resilin.elastic.records import Generation, Node, Slot, Wanted


class Script:
    """The state of one scenario; `do` runs a command and returns the lines it led to."""

    def __init__(self) -> None:
        self.config = Config(min_nodes=1, max_nodes=1, max_restarts=0, last_call_s=0.5)
        self.view = View()
        self.now = 0.0
        self.revision = 0
        self.generations: list[Generation] = []
        self.shards = 0  # what a worker says with its hello: the most workers there is work for

    def do(self, line: str) -> list[str]:
        command, *words = line.split()
        told = getattr(self, f"_{command}")(*words)
        return [*(told or ()), *self.settle()] if command != "job" else []

    def seen(self) -> tuple[View, Config]:
        """What agents decide by: with what people asked for."""
        return scaling.adjusted(self.view), scaling.limits(self.config, self.view.wanted)

    def settle(self) -> list[str]:
        """Decide until nothing more is decided."""
        lines = []
        for _ in range(10):
            view, config = self.seen()
            if suspect := queries.judgement(view, config).suspect:
                lines.append(f"exclude {suspect}: {queries.judgement(view, config).accusation}")
                self._change(suspect, lambda node: replace(node, excluded="its workers failed"))
                view, config = self.seen()
            if suspect := queries.early_judgement(view, config).suspect:
                lines.append(f"exclude {suspect}: {queries.early_judgement(view, config).accusation}")
                self._change(suspect, lambda node: replace(node, excluded="its workers failed"))
                view, config = self.seen()
            situation = decision.assess(view, config, self.now)
            new, reason = decision.decide(view, config, self.now)
            assert reason == situation.reason
            if new is None:
                return [*lines, f"{situation.action}: {situation.reason}"]
            lines.append(describe(new))
            self._apply(new)
        raise AssertionError("decided ten generations in a row without anything having happened")

    def _apply(self, new: Generation) -> None:
        self.generations.append(new)
        self.view = replace(self.view, generation=new)
        for seen in self.view.nodes:  # agents tell of members of the current generation
            self._change(seen.node.id, lambda known: replace(known, failure=None))
        if new.kind == "restart":
            for member in new.members:
                fresh = Slot(index=member.slot, incarnation=member.incarnation, state="running")
                self._set(member.node, fresh)
            return
        inside = {(m.node, m.slot) for m in new.members}
        for node, slot in self._places(("all",)):  # agents tell which state is of an older world
            if slot.has_state and not slot.left_out_after and (node, slot.index) not in inside:
                self._set(node, replace(slot, left_out_after=new.number - 1))

    # ------------------------------------------------------------------------------------------ commands

    def _job(self, nodes: str, *words: str) -> None:
        options = dict(zip(words[::2], words[1::2], strict=True))
        self.shards = int(options.get("shards", 0))
        low, _, high = nodes.partition(":")
        self.config = Config(
            min_nodes=int(low),
            max_nodes=int(high or low),
            max_restarts=int(options.get("restarts", 0)),
            max_step_failures=int(options.get("same-step", 3)),
            last_call_s=float(options.get("last-call", 0.5)),
            rejoin_s=float(options.get("rejoin", 0)),
        )

    def _join(self, name: str, *words: str) -> None:
        options = dict(zip(words[::2], words[1::2], strict=True))
        self.revision += 1
        slots = tuple(Slot(index=index) for index in range(int(options.get("slots", 1))))
        hint = int(options.get("rank", -1))
        node = Node(id=name, host=name, address=f"10.0.0.{name}", master_port=1000, slots=slots, rank_hint=hint)
        seen = Seen(node=node, create_revision=self.revision, first_seen=self.now)
        self.view = replace(self.view, nodes=(*self.view.nodes, seen))

    def _lost(self, name: str) -> None:
        self.view = replace(self.view, nodes=tuple(s for s in self.view.nodes if s.node.id != name))

    def _leave(self, name: str) -> None:
        self._change(name, lambda node: replace(node, leaving=True))

    def _drain(self, *names: str) -> None:
        self.view = replace(self.view, wanted=replace(self.view.wanted or Wanted(), drained=names))

    def _scale(self, size: str) -> None:
        low, _, high = size.partition(":")
        wanted = replace(self.view.wanted or Wanted(), min_nodes=int(low), max_nodes=int(high))
        self.view = replace(self.view, wanted=wanted)

    def _refill(self, mark: str) -> None:
        assert self.view.generation is not None
        self.view = replace(self.view, generation=succession.refill(self.view.generation, int(mark)))

    def _dismissed(self) -> list[str]:
        view, config = self.seen()
        found = [s.node.id for s in view.nodes if scaling.is_dismissed(view, config, s.node.id)]
        return [f"dismissed {' '.join(found) or 'nobody'}"]

    def _wait(self, seconds: str) -> None:
        self.now += float(seconds)

    def _hello(self, *places: str) -> None:
        for node, slot in self._places(places):
            self._change(node, lambda it, s=slot: replace(it, early=early_failures.passed(it.early, s.index)))
            endpoint = f"{node}/{slot.index}#{slot.incarnation}"
            self._set(node, replace(slot, state="ready", endpoint=endpoint, limit=self.shards))

    def _die(self, place: str, fault: str, step: str = "", generation: str = "") -> None:
        current = self.view.generation
        members = {(m.node, m.slot, m.incarnation) for m in current.members} if current is not None else set()
        for node, slot in self._places((place,)):
            if (node, slot.index, slot.incarnation) not in members:
                self._change(node, lambda known: replace(known, unjoined=known.unjoined + 1))
            self._set(node, replace(slot, state="failed", endpoint="", fault=fault))
            told = {"node": node, "code": 1 if fault == "own" else -9, "step": int(step) if step.isdecimal() else None}
            told["worked_in"] = told["generation"] = int(generation or (current.number if current is not None else 0))
            told["entering"] = step == "entering"
            self._change(node, lambda known, told=told: replace(known, failure=known.failure or told))

    def _early(self, place: str, where: str) -> None:
        current = self.view.generation
        assert current is not None
        for node, slot in self._places((place,)):
            known = self.view.node(node).early
            now = early_failures.counted(known, where, slot.index, current.number)
            self._change(node, lambda it, now=now: replace(it, early=now))
        self._die(place, "own")

    def _done(self, *places: str) -> None:
        for node, slot in self._places(places):
            number = self.view.generation.number if self.view.generation is not None and slot.endpoint else 0
            self._set(node, replace(slot, state="done", done_in=number))

    def _missed(self, place: str, *ranks: str) -> None:
        assert self.view.generation is not None
        for node, slot in self._places((place,)):
            named = tuple(int(rank) for rank in ranks)
            self._set(
                node,
                replace(slot, missed=named, missed_in=self.view.generation.number, missed_at="all_reduce"),
            )

        number = self.view.generation.number
        for seen in self.view.nodes:  # all of them try at once
            self._change(seen.node.id, lambda known: replace(known, tried_in=number))

    def _works(self, *places: str) -> None:
        for node, slot in self._places(places):
            self._set(node, replace(slot, has_state=True, left_out_after=0))

    def _divided(self) -> None:
        current = self.view.generation
        assert current is not None
        size = len(current.members)
        for member in current.members:
            slot = self.view.node(member.node).slots[member.slot]
            parts = (member.rank, (member.rank - size // 2) % size)
            told = replace(slot, has_state=True, parts=parts, parts_in=current.number, parts_of=size)
            self._set(member.node, told)

    def _asks(self, *places: str) -> None:
        for node, slot in self._places(places):
            self._set(node, replace(slot, leaving=True))

    def _cut(self, name: str, *others: str) -> None:
        self._change(name, lambda node: replace(node, unreachable=others))

    def _slow(self, name: str) -> None:
        assert self.view.generation is not None
        number = self.view.generation.number
        self._change(name, lambda node: replace(node, cut_in=number))

    def _meets(self, name: str) -> None:
        self._change(name, lambda node: replace(node, unreachable=()))

    def _leads(self, name: str) -> None:
        self.view = replace(self.view, elected=name)

    def _unresponsive(self) -> list[str]:
        view, _ = self.seen()
        if odds := queries.at_odds(view):  # every agent tells its workers
            self._over("all")
            return [f"once more {' '.join(map(str, odds))}"]
        chosen = queries.unresponsive(view)
        later = [m for m in chosen if queries.missed_by_newcomers(view, m)]
        chosen = [m for m in chosen if m not in later]
        for member in chosen:
            self._die(f"{member.node}/{member.slot}", "external")
        waits = [f"kill later {' '.join(str(m.rank) for m in later)}"] if later else []
        return waits if waits and not chosen else [f"kill {' '.join(str(m.rank) for m in chosen) or 'nobody'}", *waits]

    def _over(self, *places: str) -> None:
        for node, slot in self._places(places):
            self._set(node, replace(slot, over=self.view.generation.number))

    def _exit(self, *places: str) -> None:
        for node, slot in self._places(places):
            self._set(node, replace(slot, state="left"))

    def _asked(self, step: str, *places: str) -> None:
        for node, slot in self._places(places):
            self._set(node, replace(slot, state="left", asked="SIGTERM", committed=int(step)))

    def _replace(self, *places: str) -> None:
        for node, slot in self._places(places):
            known = {"index": slot.index, "stopped": slot.stopped}
            self._set(node, Slot(**known, incarnation=slot.incarnation + 1, state="running"))

    def _stop(self, *names: str) -> None:
        for seen in self.view.nodes:
            if seen.node.id in names or names == ("all",):
                for slot in seen.node.slots:
                    if slot.alive:
                        stopped = replace(slot, state="idle", endpoint="", stopped=slot.incarnation)
                        self._set(seen.node.id, stopped)

    # ------------------------------------------------------------------------------------------- helpers

    def _places(self, places: tuple[str, ...]) -> list[tuple[str, Slot]]:
        if places == ("all",):
            return [(s.node.id, slot) for s in self.view.nodes for slot in s.node.slots if slot.alive]
        found = []
        for place in places:
            name, _, index = place.partition("/")
            node = self.view.node(name)
            assert node is not None, f"no node {name}"
            found.append((name, node.slots[int(index)]))
        return found

    def _set(self, name: str, slot: Slot) -> None:
        self._change(
            name, lambda node: replace(node, slots=tuple(slot if s.index == slot.index else s for s in node.slots))
        )

    def _change(self, name: str, change) -> None:
        nodes = tuple(replace(s, node=change(s.node)) if s.node.id == name else s for s in self.view.nodes)
        self.view = replace(self.view, nodes=nodes)


def describe(new: Generation) -> str:
    """One line that holds everything a generation says."""
    members = " ".join(f"{m.rank}={m.node}/{m.slot}#{m.incarnation}" for m in new.members)
    kind = new.kind if new.kind == "restart" else f"{new.kind} at {new.boundary}"
    nodes = ",".join(new.nodes)
    return f"generation {new.number} {kind} [{members}] nodes {nodes} restarts {new.restarts_used}: {new.reason}"


def play(text: str) -> str:
    """The scenario in `text` with its outcomes written (again) below each command."""
    script, result = Script(), []
    for line in text.splitlines():
        if line.startswith("> "):
            continue
        result.append(line)
        if line.strip() and not line.startswith("#"):
            result += [f"> {outcome}" for outcome in script.do(line)]
    return "\n".join(result) + "\n"
