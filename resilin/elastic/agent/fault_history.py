"""Keep what a node's workers have failed of, and how long each time took: what others may ask its agent for."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any

from resilin._base.text import visible
from resilin.elastic.failure import Failure, shorten

MOST = 64  # who asks does so every few seconds
_CHARS = 1024


@dataclass(kw_only=True)
class Fault:
    """One worker's end, answered by this node's agent."""

    number: int
    """Of this node's faults, from 1."""
    generation: int
    """In which it was."""
    rank: int
    cause: str
    """In one word, such as SIGKILL or ValueError."""
    message: str
    time: float
    """Seconds since the epoch."""
    lost_s: float = 0.0
    """Until the next step that a worker of this node committed."""


class FaultHistory:
    """Of one node, the oldest first."""

    def __init__(self) -> None:
        self._faults: deque[Fault] = deque(maxlen=MOST)
        self._count = 0
        self._open: Fault | None = None  # the one whose time is measured

    def died(self, what: Failure, wall: float) -> None:
        """A worker ended. What another one's end has caused is no fault of its own."""
        if what.follows:
            return
        self._count += 1
        fault = Fault(
            number=self._count, generation=what.generation, rank=what.rank, cause=what.cause,
            message=visible(shorten(what.sentence, _CHARS)), time=wall,
        )  # fmt: skip
        self._faults.append(fault)
        self._open = self._open or fault

    def recovered(self, seconds: float) -> None:
        """A step was committed after what `died` told: it took so long."""
        if self._open is not None:
            self._open.lost_s = seconds
        self._open = None

    @property
    def recovering(self) -> bool:
        """Whether no step was committed since a fault."""
        return self._open is not None

    def answered(self, generation: int, wall: float) -> list[dict[str, Any]]:
        """Return those that lie before `generation`, as plain values; one that is not over has its time so far."""
        known = [one for one in self._faults if one.generation < generation]
        return [
            asdict(replace(one, lost_s=max(0.0, wall - one.time)) if one is self._open else one) for one in known
        ]  # fmt: skip
