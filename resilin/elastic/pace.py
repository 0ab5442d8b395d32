"""How long a worker may go without progress, learned from how long its steps take. Pure: no clock, no I/O."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

KEPT = 256  # steps that are remembered: a checkpoint every 200 steps is among them
FACTOR = 10.0  # of the usual step: what is longer is worth a look, which costs the workers a signal
SPREADS = 3.0  # median absolute deviations above the median: still a usual step
AGAIN = 2.0  # of the longest pause remembered: what was normal once may come again, and longer
FLOOR_S = 5.0  # steps of milliseconds vary for reasons that are not theirs: a loaded machine, a slow disk
FIRST_S = 30.0  # before the first step of a world: imports, compilation, state received, data opened
BUSY_S = 600.0  # who computes may be evaluating or writing a checkpoint: PyTorch ends NCCL's waits after as long


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds without progress after which ..."""

    look: float
    """... everybody's state is gathered and whoever is waited for is named."""
    idle: float
    """... that one is ended when it uses no processor; inf: not for that."""
    busy: float
    """... that one is ended whatever it does."""


class Pace:
    """The last steps of the workers of one node; they go together, so one list is enough."""

    def __init__(self, fixed_s: float = 0.0) -> None:
        """fixed_s: the limit that somebody chose; 0: it is learned."""
        self._fixed_s = fixed_s
        self._steps: deque[float] = deque(maxlen=KEPT)

    def took(self, seconds: float) -> None:
        """A step took so long. Not for the first one of a world: it is another thing."""
        self._steps.append(seconds)

    @property
    def usual_s(self) -> float:
        """What a step takes at most, usually: outliers count for nothing. 0: unknown."""
        if not self._steps:
            return 0.0
        middle = median(self._steps)
        return middle + SPREADS * median(abs(each - middle) for each in self._steps)

    def limits(self, *, begun: bool) -> Limits:
        """For a worker that has made a step in the present world (`begun`), or is on its way to its first one.

        A worker that is stopped is ended after `look` in either case: there is no good reason for it to be.
        """
        if self._fixed_s and begun:
            return Limits(look=self._fixed_s, idle=self._fixed_s, busy=self._fixed_s)
        longest = max(self._steps, default=0.0)
        look = self._fixed_s or max(FLOOR_S, FACTOR * self.usual_s, AGAIN * longest)
        if not begun:
            return Limits(look=max(look, FIRST_S), idle=math.inf, busy=math.inf)
        return Limits(look=look, idle=look, busy=max(BUSY_S, look))
