"""Names workers that are slower than the others for long, by their flight recorders; ends nobody. In the agent's loop.

In lock step all ranks have equal steps: the slow one is the one that never waits. So what counts is a rank's own time,
that between its collectives. Every agent reads the recorders of its workers now and then and writes what it finds to a
key that nobody follows; the leader compares.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilin._base.clock import Clock
from resilin._base.flight import JOIN, Call, State
from resilin.elastic import looking
from resilin.elastic.flights import MESSAGES
from resilin.elastic.rendezvous import Rendezvous
from resilin.errors import StoreError

LOOK_S = 20.0  # reading a recorder takes some 10 ms of the agent
LOOKS = 3  # in a row: a minute; what is shorter is no habit
FEW = 20  # fewer collectives say nothing
LAST = 200  # these are looked at
FACTOR = 1.5  # of the median rank's own time
WORTH = 0.1  # and so much of the whole time must be lost by it: a slow millisecond in a long step is nobody's concern


@dataclass(frozen=True, kw_only=True)
class Tempo:
    """Of one rank, in its last collectives. Seconds per collective."""

    own_s: float
    """Not waiting in one."""
    whole_s: float
    count: int
    host: str = ""
    pid: int = 0


def tempo(calls: Sequence[Call], host: str = "", pid: int = 0) -> Tempo | None:
    """Of the calls in one recorder, oldest first; None when they say too little.

    Waits in all groups count; the collectives are those of the group that has the most.
    """
    made = [c for c in calls if c.state == State.DONE and c.what != JOIN and c.what not in MESSAGES]
    counts: dict[tuple[str, int], int] = {}
    for call in made:
        counts[call.group, call.key] = counts.get((call.group, call.key), 0) + 1
    main = max(counts, key=counts.__getitem__, default=None)
    ends = [call.ended for call in made if (call.group, call.key) == main][-LAST:]
    if len(ends) < FEW:
        return None
    begin, end, waited, until = ends[0], ends[-1], 0.0, ends[0]
    for call in sorted(made, key=lambda call: call.started):
        waited += max(0.0, min(call.ended, end) - max(call.started, until))
        until = max(until, call.ended)
    count = len(ends) - 1
    own_s = max(0.0, end - begin - waited) / count
    return Tempo(own_s=own_s, whole_s=(end - begin) / count, count=count, host=host, pid=pid)


def slow(tempos: Mapping[int, Tempo]) -> dict[int, float]:
    """By rank, how many times the median rank's own time it takes, of those that hold the others up."""
    if len(tempos) < 2:
        return {}
    usual = sorted(each.own_s for each in tempos.values())[(len(tempos) - 1) // 2]  # of two the faster one
    return {
        rank: each.own_s / max(usual, 1e-6)
        for rank, each in tempos.items()
        if each.own_s > FACTOR * usual and each.own_s - usual > WORTH * each.whole_s
    }


class Stragglers:
    """Of one job, as its agents find them. `say` takes a line for people, once for each process that is slow."""

    def __init__(
        self, job: str, node_id: str, host: str, rendezvous: Rendezvous, say: Callable[[str], None], clock: Clock
    ) -> None:
        self._prefix = f"/resilin//tempos/{job}/"
        self._node_id = node_id
        self._host = host
        self._rendezvous = rendezvous
        self._say = say
        self._clock = clock
        self._rows: dict[tuple[int, int], int] = {}  # looks in a row, by rank and pid
        self._told: set[tuple[int, int]] = set()
        self.next = clock.monotonic() + LOOK_S

    async def look(self, generation: int, mine: Mapping[int, tuple[Path, int]], *, leads: bool) -> None:
        """Read the recorders of the workers here: by rank, their folder and pid. The leader compares with all."""
        found: dict[str, Any] = {}
        for rank, (folder, pid) in mine.items():
            if (mark := tempo(looking.calls(folder, pid), self._host, pid)) is not None:
                found[str(rank)] = vars(mark)
            await asyncio.sleep(0)  # whatever else the agent has to do comes between
        body = json.dumps({"generation": generation, "ranks": found}).encode()
        with contextlib.suppress(StoreError, ValueError):
            await self._rendezvous.aside(lambda store, lease: store.put(self._prefix + self._node_id, body, lease))
            if leads:
                entries, _ = await self._rendezvous.aside(lambda store, _: store.range(self._prefix))
                self._compare(generation, [json.loads(entry.value) for entry in entries])

    def _compare(self, generation: int, said: Sequence[Mapping[str, Any]]) -> None:
        tempos = {
            int(rank): Tempo(**mark)
            for each in said
            if each["generation"] == generation
            for rank, mark in each["ranks"].items()
        }
        found = slow(tempos)
        now = {(rank, tempos[rank].pid) for rank in found}
        self._rows = {who: self._rows.get(who, 0) + 1 for who in now}
        for rank, pid in sorted(now):
            if self._rows[rank, pid] >= LOOKS and (rank, pid) not in self._told:
                self._told.add((rank, pid))
                mark = tempos[rank]
                self._say(
                    f"rank {rank} (host {mark.host}, pid {pid}) is slow: it takes {found[rank]:.1f}x the time of the "
                    f"median rank between collectives (last {mark.count}); the others wait for it"
                )
