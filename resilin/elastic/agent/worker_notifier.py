"""Tell an agent's own workers about the world: a new one, the end of one, that there is no place; once each.

Used in the agent's loop only. Everything follows from the view; whoever calls may do so any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence

from resilin.elastic import control
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.membership import queries, world_spec
from resilin.elastic.membership.view import View
from resilin.elastic.records import Generation

MISSED_SETTLE_S = 0.5  # ranks that wait for the same one give up within this of one another


class WorkerNotifier:
    """Tells the workers in `slots`, which are those of node `node_id`."""

    def __init__(self, node_id: str, slots: Sequence[LocalSlot], reporter: Reporter) -> None:
        self._node_id = node_id
        self._slots = slots
        self._reporter = reporter
        self._lost: set[tuple[int, str]] = set()  # (generation, node) reported as gone
        self._leaving: set[str] = set()  # nodes that were asked to
        self._apart = ""  # why this node takes no part for now, as people were told
        self._standbys = False  # that some workers have no place
        self._missed_since: float | None = None  # when a worker first told of ranks it had waited for in vain

    def worlds(self, view: View, now: float) -> bool:
        """Give each local member that said hello its world, once every member's endpoint is known.

        Whether one of them was done and has work again. now: monotonic, in seconds.
        """
        current, again = view.generation, False
        if current is None:
            return False
        endpoints: tuple[str, ...] | None = None
        for member in current.members:
            if member.node != self._node_id:
                continue
            slot = self._slots[member.slot]
            if slot.incarnation != member.incarnation or not slot.endpoint or slot.sent >= current.number:
                continue
            endpoints = endpoints if endpoints is not None else world_spec.endpoints(view, current)
            if endpoints is None or not slot.running:
                return again
            if slot.sent > slot.aborted:  # it is in the middle of an earlier generation
                if slot.sent > current.broken_off:
                    slot.send(control.Pending(number=current.number))
                else:
                    self._abort(slot, current.broken_off, current.reason, ())
            slot.send(world_spec.world(view, current, member, endpoints))
            slot.sent, slot.sent_at, slot.standing_by = current.number, now, False
            if slot.state == "done":
                slot.state, slot.done_in = "ready", 0
                again = True
        return again

    def standbys(self, view: View) -> None:
        """Let workers that there is no place for wait as long as it takes."""
        standbys = queries.standing_by(view)
        shards = queries.largest_world(view)
        full = f"the batch has {shards} shard{'s' if shards != 1 else ''}"
        for member in standbys:
            reason = view.apart(member.node) or full
            slot = self._slots[member.slot] if member.node == self._node_id else None
            if slot is not None and slot.state == "ready" and not slot.standing_by:
                slot.standing_by = True
                slot.send(control.Standby(reason=reason))
        surplus = [member for member in standbys if not view.apart(member.node)]
        if surplus and not self._standbys and all(world_spec.slot(view, m).state == "ready" for m in surplus):
            self._standbys = True
            many = "1 worker stands" if len(surplus) == 1 else f"{len(surplus)} workers stand"
            self._reporter.line(f"{many} by: {full}")
        if (why := view.apart(self._node_id)) != self._apart:
            self._apart = why
            self._reporter.line(f"this node takes no part for now: {why}" if why else "this node may take part again")

    def deaths(self, view: View, reason: str) -> bool:
        """Tell local survivors at once that members of their generation are gone, for `reason`. Whether any was."""
        current = view.generation
        if current is None:
            return False
        self._leaving.update(seen.node.id for seen in view.nodes if seen.node.leaving and not seen.apart)
        again = self._left_behind(current)
        gone = [m for m in current.members if queries.fate(view, m) in ("failed", "lost", "left", "stopped", "apart")]
        if not gone:
            return again
        ranks = tuple(sorted(member.rank for member in gone))
        for slot in self._slots:
            if slot.endpoint and slot.running and slot.aborted < current.number <= slot.sent:
                self._abort(slot, current.number, reason, ranks)
                again = True
        for node in {m.node for m in gone if queries.fate(view, m) == "lost"}:
            if (current.number, node) not in self._lost:
                self._lost.add((current.number, node))
                if node == self._node_id:
                    self._reporter.line("this node was taken for lost (its lease ran out) and joins again")
                else:
                    asked = node in self._leaving
                    self._reporter.lost([m.rank for m in gone if m.node == node], node, asked=asked)
        return again

    def _left_behind(self, current: Generation) -> bool:
        """Tell workers that the world goes on without them. Those that are done, and those in one that was broken off,
        end it at once; the others at their next commit, or at once while they still form it.

        Whether there were any of the former.
        """
        members = {(m.slot, m.incarnation) for m in current.members if m.node == self._node_id}
        left = [
            slot
            for slot in self._slots
            if slot.running and slot.aborted < slot.sent < current.number
            if slot.state in ("ready", "done") and (slot.index, slot.incarnation) not in members
        ]
        over = False
        for slot in left:
            if slot.state == "done" or slot.sent <= current.broken_off:
                self._abort(slot, slot.sent, current.reason, ())
                over = True
            elif slot.pending < slot.sent:
                slot.pending = current.number
                slot.send(control.Pending(number=current.number))
        return over

    def unresponsive(self, view: View, now: float) -> float | None:
        """Kill local workers that others waited for in vain, or have those that waited for one another try once more;
        or when to do so, once everybody's report is there.

        now: monotonic, in seconds.
        """
        chosen, odds = queries.unresponsive(view), queries.at_odds(view)
        if not chosen and not odds:
            self._missed_since = None
            return self._silent_alone(view, now)
        if self._missed_since is None:
            self._missed_since = now
        if odds:
            return self._once_more(view, odds, now)
        current = view.generation
        assert current is not None
        later = []
        for member in chosen:
            slot = self._slots[member.slot] if member.node == self._node_id else None
            if slot is None:
                continue
            by_newcomers = queries.missed_by_newcomers(view, member)
            if slot.waits_after == current.number != slot.missed_in:  # it answers, and has not said that yet
                slot.missed, slot.missed_in, slot.missed_at = (), current.number, ""
                later.append(now)
                continue
            until = self._missed_since + (max(slot.timeout_s, MISSED_SETTLE_S) if by_newcomers else MISSED_SETTLE_S)
            if now >= until:
                slot.kill_unresponsive(queries.complaint(view, member))
            else:
                later.append(until)
        return min(later, default=None)

    def _once_more(self, view: View, ranks: tuple[int, ...], now: float) -> float | None:
        """End the world for the workers here, so that the same members form it anew."""
        current = view.generation
        assert current is not None
        assert self._missed_since is not None
        if now < self._missed_since + MISSED_SETTLE_S:
            return self._missed_since + MISSED_SETTLE_S
        ended = [s for s in self._slots if s.endpoint and s.running and s.aborted < current.number <= s.sent]
        for slot in ended:
            self._abort(slot, current.number, "ranks waited for one another in vain", ranks)
        return now if ended else None

    def _silent_alone(self, view: View, now: float) -> float | None:
        """Kill the only member of a generation when it does not take it up in its own timeout: no peer waits for it.

        Or when to do so.
        """
        current = view.generation
        if current is None or len(current.members) != 1 or current.members[0].node != self._node_id:
            return None
        slot = self._slots[current.members[0].slot]
        if slot.state != "ready" or not slot.timeout_s or not slot.taken_up < slot.sent == current.number:
            return None
        until = slot.sent_at + slot.timeout_s
        if now >= until:
            slot.kill_unresponsive(f"it did not take up generation {current.number} within {slot.timeout_s:g} s")
            return None
        return until

    def _abort(self, slot: LocalSlot, generation: int, reason: str, ranks: tuple[int, ...]) -> None:
        slot.aborted = generation
        slot.send(control.Abort(generation=generation, reason=reason, ranks=ranks))
