"""Name workers that are slower than the others for long, by their flight recorders; end nobody. In the agent's loop.

In lock step all ranks have equal steps: the slow one is the one that never waits. So what counts is a rank's own time,
that between its collectives. Every agent reads the recorders of its workers now and then and writes what it finds to a
key that nobody follows; the leader compares, says who is slow for long, and writes whom it finds for `resilin status`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from resilin._base import json_text, log
from resilin._base.clock import Clock
from resilin._base.flight_record import JOIN, MESSAGES, Call, CallState
from resilin.elastic import records, typed
from resilin.elastic.hangs import process_probe
from resilin.elastic.rendezvous.rendezvous import Rendezvous
from resilin.errors import RendezvousError, StoreError
from resilin.store.base import KeyValue

_log = log.logger("elastic.stragglers")
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
    own_step_s: float = 0.0
    """As `own_s`, per step; 0: it tells no steps, or made none."""


@dataclass(frozen=True, kw_only=True)
class Slow:
    """One rank that the others wait for, in the leader's last look."""

    rank: int
    host: str
    pid: int
    factor: float
    """Its own time, that between collectives, divided by the median rank's."""
    for_s: float
    """How long it has been found so, in seconds; 0: for the first time."""
    collectives: int
    """How many of its last ones were looked at."""
    step_s: float = 0.0
    """Seconds of its own per step; 0: unknown."""
    usual_step_s: float = 0.0
    """The same of the median rank."""

    @property
    def sentence(self) -> str:
        """For people."""
        steps = f", {self.step_s:.3f} s instead of {self.usual_step_s:.3f} s a step" if self.step_s else ""
        return (
            f"rank {self.rank} (host {self.host}, pid {self.pid}) is slow: it takes {self.factor:.1f}x the time of the "
            f"median rank between collectives (last {self.collectives}){steps}; the others wait for it"
        )


def slow_prefix(job: str) -> str:
    """Return where the leader of `job` writes whom it finds slow."""
    return f"/resilin//slow/{job}/"


def from_json(key: str, value: bytes, generation: int) -> tuple[Slow, ...]:
    """Read what stands there, if it is of this generation; RendezvousError names `key` when it is something else."""
    try:
        body = json_text.parse(value)
        found = typed.convert("slow", tuple[Slow, ...], body["slow"])
        return found if body["generation"] == generation else ()
    except (ValueError, TypeError, KeyError) as error:
        raise records.misplaced(key, value, "slow ranks as this version of resilin writes them", error) from error


def tempos_from_json(key: str, value: bytes, generation: int) -> dict[int, Tempo]:
    """Read what a node says of its ranks, by rank, if it is of this generation; RendezvousError as in `from_json`."""
    try:
        body = json_text.parse(value)
        found = {int(rank): typed.build(Tempo, mark) for rank, mark in body["ranks"].items()}
        return found if body["generation"] == generation else {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise records.misplaced(key, value, "tempos as this version of resilin writes them", error) from error


def tempo(calls: Sequence[Call], host: str = "", pid: int = 0) -> Tempo | None:
    """Of the calls in one recorder, oldest first; None when they say too little.

    Waits in all groups count; the collectives are those of the group that has the most.
    """
    made = [c for c in calls if c.state == CallState.DONE and c.what != JOIN and c.what not in MESSAGES]
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


def slow(tempos: Mapping[int, Tempo]) -> dict[int, Slow]:
    """By rank, those that hold the others up."""
    if len(tempos) < 2:
        return {}
    usual = sorted(tempos.values(), key=lambda each: each.own_s)[(len(tempos) - 1) // 2]  # of two the faster one
    return {
        rank: Slow(
            rank=rank,
            host=each.host,
            pid=each.pid,
            factor=each.own_s / max(usual.own_s, 1e-6),
            for_s=0.0,
            collectives=each.count,
            step_s=each.own_step_s if usual.own_step_s else 0.0,
            usual_step_s=usual.own_step_s if each.own_step_s else 0.0,
        )
        for rank, each in tempos.items()
        if each.own_s > FACTOR * usual.own_s and each.own_s - usual.own_s > WORTH * each.whole_s
    }


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Record where a worker is found that is to be looked at."""

    folder: Path
    """Of its flight recorders."""
    pid: int
    step: int | None
    """That it works on; None: it does not tell."""


class Stragglers:
    """Of one job, as its agents find them. `say` takes a line for people, once for each process that is slow."""

    def __init__(
        self, job: str, node_id: str, host: str, rendezvous: Rendezvous, say: Callable[[str], None], clock: Clock
    ) -> None:
        self._prefix = f"/resilin//tempos/{job}/"
        self._found_key = f"{slow_prefix(job)}found"
        self._node_id = node_id
        self._host = host
        self._rendezvous = rendezvous
        self._say = say
        self._clock = clock
        self._rows: dict[tuple[int, int], tuple[int, float]] = {}  # by rank and pid: looks in a row, since when
        self._steps: dict[int, tuple[int, float]] = {}  # by pid: at which step it was when it was last looked at
        self._told: set[tuple[int, int]] = set()
        self.next = clock.monotonic() + LOOK_S

    async def look(self, generation: int, mine: Mapping[int, Looked], *, leads: bool) -> None:
        """Read the recorders of the workers here, by rank. The leader compares with all."""
        found: dict[str, Any] = {}
        for rank, who in mine.items():
            step_s = self._step_s(who)
            if (mark := tempo(process_probe.calls(who.folder, who.pid).calls, self._host, who.pid)) is not None:
                found[str(rank)] = asdict(replace(mark, own_step_s=step_s * mark.own_s / max(mark.whole_s, 1e-9)))
            await asyncio.sleep(0)  # whatever else the agent has to do comes between
        body = json.dumps({"generation": generation, "ranks": found}).encode()
        with contextlib.suppress(StoreError):
            await self._rendezvous.aside(lambda store, lease: store.put(self._prefix + self._node_id, body, lease))
            if leads:
                entries, _ = await self._rendezvous.aside(lambda store, _: store.range(self._prefix))
                now = self._compare(self._read(generation, entries))
                told = json.dumps({"generation": generation, "slow": [asdict(each) for each in now]}).encode()
                await self._rendezvous.aside(lambda store, lease: store.put(self._found_key, told, lease))

    def _step_s(self, who: Looked) -> float:
        """Seconds per step since the last look; 0: unknown."""
        now, before = self._clock.monotonic(), self._steps.pop(who.pid, None)
        if who.step is None:
            return 0.0
        self._steps[who.pid] = who.step, now
        return (now - before[1]) / (who.step - before[0]) if before is not None and who.step > before[0] else 0.0

    def _read(self, generation: int, entries: Sequence[KeyValue]) -> dict[int, Tempo]:
        tempos: dict[int, Tempo] = {}
        for entry in entries:
            try:
                tempos |= tempos_from_json(entry.key, entry.value, generation)
            except RendezvousError as error:  # the others can be compared without it
                log.event(_log, 40, "a record of this job is none", error=str(error))
        return tempos

    def _compare(self, tempos: Mapping[int, Tempo]) -> tuple[Slow, ...]:
        found, now = slow(tempos), self._clock.monotonic()
        rows = {who: self._rows.get(who, (0, now)) for who in ((each.rank, each.pid) for each in found.values())}
        self._rows = {who: (looks + 1, since) for who, (looks, since) in rows.items()}
        result = []
        for who, (looks, since) in sorted(self._rows.items()):
            result.append(replace(found[who[0]], for_s=now - since))
            if looks >= LOOKS and who not in self._told:
                self._told.add(who)
                self._say(result[-1].sentence)
        return tuple(result)
