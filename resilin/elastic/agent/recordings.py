"""Have this node's workers record spans for a while, as people ask, and know what becomes of it. In the agent's loop.

Nobody waits for it: a worker that does not answer is told of as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilin._base.clock import Clock
from resilin.elastic import control
from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.failure import shorten
from resilin.elastic.records import Recording

_SHOWN_CHARS = 500  # of a path or a reason


@dataclass
class _Asked:
    """What is known of one worker that was asked."""

    slot: LocalSlot
    incarnation: int
    rank: int
    pid: int
    state: str = "deaf"
    text: str = ""

    @property
    def lives(self) -> bool:
        """Return whether it is still the process in its slot."""
        return self.slot.running and self.slot.incarnation == self.incarnation


class Recordings:
    """Those of the workers in `slots`."""

    def __init__(self, slots: Sequence[LocalSlot], clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._id: str | None = None  # of the last one; None: nobody has looked yet
        self._until = 0.0  # when it is over, of those that were asked at once; monotonic
        self._asked: dict[int, _Asked] = {}  # by slot

    def look(self, wanted: Recording | None) -> None:
        """Ask the workers, if `wanted` is a new one; what was wanted before this node came is not for it."""
        before, self._id = self._id, wanted.id if wanted is not None else ""
        if wanted is None or before is None:
            return
        if before != wanted.id:
            self._until = self._clock.monotonic() + wanted.seconds
            self._asked = {
                slot.index: _Asked(slot, slot.incarnation, slot.known_as[0], slot.worker.pid)
                for slot in self._slots
                if slot.running and slot.worker is not None
            }
        message = control.Record(id=wanted.id, folder=wanted.folder, seconds=wanted.seconds, nbytes=wanted.nbytes)
        for one in self._asked.values():  # those that begin to listen meanwhile, too
            if one.state == "deaf" and one.lives and one.slot.endpoint and self._clock.monotonic() <= self._until:
                one.state = "asked"
                one.slot.send(message)

    def heard(self, slot: LocalSlot, message: control.Recorded) -> None:
        """A worker has answered."""
        asked = self._asked.get(slot.index)
        if asked is None or message.id != self._id or asked.incarnation != slot.incarnation:
            return
        asked.state = "failed" if message.error else "recorded" if message.over else "recording"
        asked.text = shorten(message.error or message.path, _SHOWN_CHARS)

    @property
    def id(self) -> str:
        """The id of the last recording; empty: there was none."""
        return self._id or ""

    def told(self) -> tuple[tuple[int, int, str, str], ...]:
        """See `Live.recorded`."""
        for one in self._asked.values():
            if one.state in ("asked", "recording") and not one.lives:
                one.state = "ended"
        return tuple((one.rank, one.pid, one.state, one.text) for one in self._asked.values())
