"""What a node says of its workers when training stands still: the part of its record that `blame` judges. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from resilin._base.flight import JOIN, Call, Flight, State

Doing = Literal["busy", "idle", "stopped", "traced"]
_GROUPS, _ENDED, _OPEN = 3, 2, 3  # told of a worker: of its newest groups, its last calls that ended and that did not
_FIELDS = ("state", "group", "key", "generation", "rank", "size", "sequence", "what", "dtype", "shape", "op", "root")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where one worker stands."""

    rank: int
    pid: int
    doing: Doing
    """busy: it uses a processor. idle: it uses none. stopped: by a signal. traced: a debugger has it."""
    at: str = ""
    """file:line of the program, in its main thread; empty: it could not tell."""
    pause: str = ""
    """The long pause that it announced."""
    calls: tuple[tuple[Any, ...], ...] = ()
    """Collectives and messages, the fields of `_FIELDS` of each."""

    def flight(self) -> Flight:
        """Its calls, as if they came from its flight recorder. Times and lines are not told."""
        made = tuple(
            Call(
                **{**dict(zip(_FIELDS, call, strict=True)), "state": State(call[0])},
                line="", made=0.0, started=0.0, ended=0.0,
            )
            for call in self.calls
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
    kept: list[Call] = []
    for of_group in list(groups.values())[:_GROUPS]:
        ended = [c for c in of_group if c.state in (State.DONE, State.FAILED) and c.sequence >= 0]
        joined = [c for c in of_group if c.what == JOIN]
        kept += _first(ended, _ENDED)
        kept += _first((c for c in of_group if c.state in (State.QUEUED, State.RUNNING)), _OPEN)
        kept += joined[:1]
    return tuple(
        tuple(int(call.state) if name == "state" else getattr(call, name) for name in _FIELDS)
        for call in sorted(kept, key=lambda call: call.made)
    )


def _first(calls: Iterable[Call], count: int) -> list[Call]:
    return [call for call, _ in zip(calls, range(count), strict=False)]
