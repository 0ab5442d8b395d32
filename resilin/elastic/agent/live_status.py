"""Write where this node's workers are, now and then, while somebody watches (`resilin top`, `trace record`).

In the agent's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from resilin._base.clock import Clock
from resilin.elastic.agent.recordings import Recordings
from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.records import Live
from resilin.elastic.rendezvous.rendezvous import Rendezvous

INTERVAL_S = 1.0  # of one node in a small job
NODES_PER_S = 50  # of all nodes of a large one together: each write costs its store one


class LiveStatus:
    """Hold what `update` keeps going, and `close` ends."""

    def __init__(
        self, rendezvous: Rendezvous, slots: Sequence[LocalSlot], recordings: Recordings, clock: Clock
    ) -> None:
        self._rendezvous = rendezvous
        self._recordings = recordings
        self._slots = slots
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._failure = ""

    def update(self) -> None:
        """Start when somebody watches; it stops by itself when nobody does any more."""
        for slot in self._slots:
            if slot.failure is not None:
                self._failure = slot.failure.sentence
        if self._rendezvous.watched and self._timer is None:
            self._show()

    def close(self) -> None:
        """Write no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _show(self) -> None:
        self._timer = None
        if not self._rendezvous.watched:
            return
        steps = tuple(
            (slot.index, slot.step, slot.at) for slot in self._slots if slot.running and slot.step is not None
        )
        recording, recorded = self._recordings.id, self._recordings.told()
        self._rendezvous.show(
            Live(
                steps=steps,
                at=self._clock.monotonic(),
                failure=self._failure,
                recording=recording,
                recorded=recorded,
            )
        )
        pause_s = max(INTERVAL_S, len(self._rendezvous.view.nodes) / NODES_PER_S)
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._show)
