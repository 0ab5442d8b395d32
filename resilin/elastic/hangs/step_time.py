"""Learn from how long a worker's steps take how long it may go without progress. Pure: no clock, no I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

KEPT = 256  # steps that are remembered: a checkpoint every 200 steps is among them
FACTOR = 10.0  # of the usual step: what is longer is worth a look, which costs the workers a signal
SPREADS = 3.0  # median absolute deviations above the median: still a usual step
AGAIN = 2.0  # of the longest pause remembered: what was normal once may come again, and longer
FLOOR_S = 5.0  # steps of milliseconds vary for reasons that are not theirs: a loaded machine, a slow disk
FIRST_S = 30.0  # before the first step of a world: imports, compilation, state received, data opened
FIRST_IDLE_S = 300.0  # nor has a process anything to sleep for so long there that all others wait
BUSY_S = 600.0  # who computes may be evaluating or writing a checkpoint: PyTorch ends NCCL's waits after as long
CIRCLE_S = 60.0  # who does nothing but run in a circle may be in one long call into C after all
PAUSES = 3  # of a program that had so many, evaluations or checkpoints, it is known how long they are
PAUSES_KEPT = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds without progress after which ..."""

    look: float
    """... everybody's state is gathered and whoever is waited for is named."""
    idle: float
    """... that one is ended when it uses no processor."""
    circle: float
    """... that one is ended when it runs in a circle (`circling`); inf: not for that."""
    busy: float
    """... that one is ended whatever it does; inf: not then either."""


class StepTime:
    """The last steps of the workers of one node; they go together, so one list is enough."""

    def __init__(self, fixed_s: float = 0.0) -> None:
        """fixed_s: the limit that somebody chose; 0: it is learned."""
        self._fixed_s = fixed_s
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._pauses: deque[float] = deque(maxlen=PAUSES_KEPT)  # steps that took far longer than usual

    def took(self, seconds: float) -> None:
        """A step took so long. Not for the first one of a world: it is another thing."""
        if self._steps and seconds > max(FLOOR_S, FACTOR * self.usual_s):
            self._pauses.append(seconds)
        self._steps.append(seconds)

    @property
    def usual_s(self) -> float:
        """Return what a step takes at most, usually: outliers count for nothing. 0: unknown."""
        if not self._steps:
            return 0.0
        middle = _median(self._steps)
        return middle + SPREADS * _median(abs(each - middle) for each in self._steps)

    def limits(self, *, begun: bool, before: bool = False) -> Limits:
        """For a worker that has made a step in the present world (`begun`), or is on its way to its first one there.

        before: it has made steps in an earlier world, so that imports, compilation and data are behind it.
        A worker that is stopped is ended after `look` in any case: there is no good reason for it to be.
        """
        fixed = self._fixed_s
        if fixed and begun:
            return Limits(look=fixed, idle=fixed, circle=fixed, busy=fixed)
        longest = max(self._steps, default=0.0)
        look = fixed or max(FLOOR_S, FACTOR * self.usual_s, AGAIN * longest)
        if not begun:
            look = max(look, FIRST_S)
        if not (begun or before):
            return Limits(look=look, idle=max(look, FIRST_IDLE_S), circle=math.inf, busy=math.inf)
        busy = BUSY_S
        if len(self._pauses) >= PAUSES:
            busy = min(BUSY_S, max(CIRCLE_S, AGAIN * AGAIN * max(self._pauses)))
        return Limits(look=look, idle=look, circle=max(look, min(busy, CIRCLE_S)), busy=max(busy, look))


def _median(values: Iterable[float]) -> float:
    """The middle of at least one value. The standard library's is in a module that takes every agent 6 ms to import."""
    known = sorted(values)
    half = len(known) // 2
    return known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2
