"""Say how a node's workers are when training stands still: the part of its record that `blame` judges. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from resilin._base.flight import Flight
from resilin._base.flight_record import JOIN, MESSAGES, Call, CallState

Doing = Literal["busy", "idle", "stopped", "traced"]
_GROUPS = 32  # told of a worker: in each of its newest groups, where it is
_ENDED = 1  # of them the last calls that ended
_QUEUED = 2  # and of those that wait for their turn the next ones; of those that run all, but
_MESSAGES = 64  # of messages one for each other end, the newest
_ENDED_STATES = (CallState.DONE, CallState.FAILED)
# what is told of a call: not when, for clocks of hosts differ; not from where, for the stack says it
_FIELDS = (
    "state", "group", "key", "generation", "rank", "size", "sequence", "what", "dtype", "shape", "op", "root", "shards",
    "tag", "told",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Record where one worker stands."""

    rank: int
    pid: int
    doing: Doing
    """busy: it uses a processor. idle: it uses none. stopped: by a signal. traced: a debugger has it."""
    at: str = ""
    """file:line of the program, in its main thread; empty: it could not tell."""
    pause: str = ""
    """The long pause that it announced."""
    strays: bool = False
    """Its main thread is inside a collective or message, and from there in other code: it waits for nobody."""
    absent: int = 0
    """The generation that it was given, where it has not begun to form it: the others wait for it there."""
    calls: tuple[tuple[Any, ...], ...] = ()
    """Collectives and messages, the fields of `_FIELDS` of each, in the order in which they were made."""
    unread: str = ""
    """What of its flight recorder could not be read, and so is missing here; "": nothing."""

    def flight(self) -> Flight:
        """Its calls, as if they came from its flight recorder. Lines are not told, and for times there is the order."""
        made = tuple(
            Call(
                **{**dict(zip(_FIELDS, call, strict=True)), "state": CallState(call[0])},
                line="", made=float(place), started=0.0, ended=0.0,
            )
            for place, call in enumerate(self.calls, 1)
        )  # fmt: skip
        return Flight(
            path=Path(str(self.rank)), host="", pid=self.pid, job="", recorded=len(made), alive=True,
            stopped=self.doing == "stopped", damage="", calls=made,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The workers of one node, some time after the last progress."""

    generation: int
    round: int
    """How often the nodes have looked in this generation; whoever looks first counts on."""
    silent_s: float = 0.0
    """Since the last progress of the worker here that made the oldest."""
    workers: tuple[Standing, ...] = ()
    """Empty: the node has begun to look."""


def from_json(body: Mapping[str, Any]) -> Stall:
    """From the record of a node."""

    def call(fields: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(tuple(value) if isinstance(value, list) else value for value in fields)

    workers = (Standing(**{**each, "calls": tuple(map(call, each["calls"]))}) for each in body["workers"])
    return Stall(**{**body, "workers": tuple(workers)})


def compact(calls: Sequence[Call]) -> tuple[tuple[Any, ...], ...]:
    """Of all calls of a worker, oldest first, what tells where it stands."""
    groups: dict[tuple[str, int, int], list[Call]] = defaultdict(list)
    for call in reversed(calls):  # so the newest groups come first
        groups[call.group, call.key, call.generation].append(call)
    kept = [call for of_group in list(groups.values())[:_GROUPS] for call in _of_group(of_group)]
    return tuple(
        tuple(int(call.state) if name == "state" else getattr(call, name) for name in _FIELDS)
        for call in sorted(kept, key=lambda call: call.made)
    )


def _of_group(calls: Sequence[Call]) -> list[Call]:
    """Of the calls of one group, newest first: those before it was made anew are of another one."""
    calls = calls[: 1 + next((place for place, call in enumerate(calls) if call.what == JOIN), len(calls))]
    collectives = [call for call in calls if call.what not in MESSAGES]
    running = [call for call in collectives if call.state == CallState.RUNNING]
    begun = running + _first((c for c in collectives if c.state in _ENDED_STATES and c.sequence >= 0), _ENDED)
    queued = _first((call for call in reversed(collectives) if call.state == CallState.QUEUED), _QUEUED)
    messages = {(c.what, c.root): c for c in reversed(calls) if c.what in MESSAGES and c.state not in _ENDED_STATES}
    joined = [] if begun else _first((call for call in calls if call.what == JOIN), 1)
    return [*joined, *begun, *queued, *_first(reversed(messages.values()), _MESSAGES)]


def _first(calls: Iterable[Call], count: int) -> list[Call]:
    return [call for call, _ in zip(calls, range(count), strict=False)]
