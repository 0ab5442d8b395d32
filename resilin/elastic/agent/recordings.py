"""Have this node's workers record spans for a while, as people ask, and know what becomes of it. In the agent's loop.

Nobody waits for it: a worker that does not answer is told of as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    state: str
    text: str = ""


class Recordings:
    """Those of the workers in `slots`."""

    def __init__(self, slots: Sequence[LocalSlot]) -> None:
        self._slots = slots
        self._id: str | None = None  # of the last one; None: nobody has looked yet
        self._asked: dict[int, _Asked] = {}  # by slot

    def look(self, wanted: Recording | None) -> None:
        """Ask the workers, if `wanted` is a new one; what was wanted before this node came is not for it."""
        before, self._id = self._id, wanted.id if wanted is not None else ""
        if wanted is None or before in (None, wanted.id):
            return
        self._asked = {}
        message = control.Record(id=wanted.id, folder=wanted.folder, seconds=wanted.seconds, nbytes=wanted.nbytes)
        for slot in self._slots:
            if slot.running and slot.worker is not None:
                state = "asked" if slot.endpoint else "deaf"
                self._asked[slot.index] = _Asked(slot, slot.incarnation, slot.known_as[0], slot.worker.pid, state)
                if slot.endpoint:
                    slot.send(message)

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
            lives = one.slot.running and one.slot.incarnation == one.incarnation
            if one.state in ("asked", "recording") and not lives:
                one.state = "ended"
        return tuple((one.rank, one.pid, one.state, one.text) for one in self._asked.values())
