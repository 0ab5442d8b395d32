"""Let workers go that were asked to leave: at once, or when what they alone have is safe with somebody who stays.

SIGTERM to a worker, its node asked to go, drained, scaled down ──> `LocalSlot.asked` ──> SETTLE_S for deaths to be
heard of ──> does another worker that stays have the state, or does nobody need it? ──> `Leave`: it ends at its next
commit. Else it goes on as a member, gives the state to those that come, and leaves then; at the latest when its grace
is nearly out, and then what is lost is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilin.elastic import control
from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.membership import queries
from resilin.elastic.membership.view import Config, View

SETTLE_S = 0.25  # what died together with the request to leave is known by then
KEEP_S = 2.0  # of the grace: to finish a step and end ...
KEEP_PART = 0.25  # ... or this part of it, whichever is less


class Departures:
    """Of the workers in `slots`. `say` takes lines for people. In the agent's loop."""

    def __init__(self, slots: Sequence[LocalSlot], say: Callable[[str], None]) -> None:
        self._slots = slots
        self._say = say
        self._held: set[tuple[int, int]] = set()  # (slot, incarnation) of which was said that they stay

    def settling(self, now: float) -> bool:
        """Return whether a worker was asked just now: what died at the same moment may not be known yet."""
        asked = [slot.asked_at for slot in self._slots if slot.asked and slot.running and slot.endpoint]
        return bool(asked) and now < max(asked) + SETTLE_S

    def look(self, view: View, config: Config, now: float) -> float | None:
        """Tell those that may leave so, and say when to look again. `now`: monotonic, in seconds."""
        until = []
        for slot in self._slots:
            if not slot.asked or not slot.running or not slot.endpoint:
                continue
            last = slot.leave_by - min(KEEP_S, KEEP_PART * (slot.leave_by - slot.asked_at))
            at = min(slot.asked_at + SETTLE_S, last)
            if now < at:
                until.append(at)
            elif now >= last or not self._is_needed(slot, view, config):
                if not slot.may_leave:
                    self._let_go(slot, view, config)
            else:  # also one that might leave when nobody was there who needs it
                until.append(last)
                if slot.may_leave or not slot.stays:
                    slot.may_leave, slot.stays = False, True
                    slot.send(control.Stay())
        return min(until, default=None)

    def _is_needed(self, slot: LocalSlot, view: View, config: Config) -> bool:
        """Whether others would lose the state, or might: who waits for the next world does not know who is gone."""
        if not slot.has_state:
            return False
        number = view.generation.number if view.generation is not None else 0
        stay, has_state = queries.who_stays(view, config)
        needed = stay and (not has_state or slot.waits_after >= number)
        who = slot.index, slot.incarnation
        if needed and not has_state and who not in self._held:
            self._held.add(who)
            self._say(
                f"rank {slot.known_as[0]} is asked to leave ({slot.asked}) and nobody else has the state: it stays "
                "until it has handed it over"
            )
        return needed

    def _let_go(self, slot: LocalSlot, view: View, config: Config) -> None:
        stay, has_state = queries.who_stays(view, config)
        if slot.has_state and stay and not has_state:
            grace_s = slot.leave_by - slot.asked_at
            self._say(
                f"rank {slot.known_as[0]} leaves ({slot.asked}): in {grace_s:.0f} s nobody could take the state over, "
                f"so all that was trained up to step {slot.committed} is lost unless a checkpoint has it; "
                "--shutdown-timeout allows more time"
            )
        slot.may_leave = True
        slot.send(control.Leave(reason=slot.asked))
