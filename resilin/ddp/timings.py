"""When one wrapper's steps computed and communicated: what `stats()` tells. A few clock reads per bucket."""

from __future__ import annotations

from typing import Any

from resilin._base.clock import SYSTEM
from resilin.distributed.work.future import Future

now = SYSTEM.monotonic


class Timings:
    """Seconds of forward, backward and communication, of the last step and of all.

        forward ──── loss ── backward: gradients become ready ──┐ computed
                               bucket 0 ├──────┤                │
                                     bucket 1   ├───────────────┼────┤
                                                 overlapped     │ exposed: backward waits

    A bucket communicates from its launch, or from the end of the one before it, to its end: one is reduced after the
    other.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._last = dict.fromkeys(("forward_s", "backward_s", "communication_s", "exposed_s", "wait_s"), 0.0)
        self._sum = dict(self._last)
        self._forward_s = 0.0  # of the forwards since the last backward
        self._begun = 0.0  # the end of the last forward
        self._launched: list[float] = []
        self._done: list[float] = []

    def forward(self, begin: float) -> None:
        """A forward that began at `begin` has ended."""
        self._begun = now()
        self._forward_s += self._begun - begin

    def start(self) -> None:
        """The first gradient of a backward is there."""
        self._launched, self._done = [], []

    def launch(self, future: Future[Any]) -> None:
        """The next bucket is on its way, `future` is its result."""
        place, done = len(self._launched), self._done
        self._launched.append(now())
        done.append(0.0)

        def ended(_: Future[Any]) -> None:
            done[place] = now()

        future.when_done(ended)

    def reduced(self, begin: float) -> None:
        """The next bucket was reduced from `begin` to now, while backward waited."""
        self._launched.append(begin)
        self._done.append(now())

    def finish(self, computed: float) -> None:
        """All buckets are there; the last gradient was computed at `computed`."""
        end, before, communication_s, exposed_s = now(), 0.0, 0.0, 0.0
        for launched, done in zip(self._launched, self._done, strict=True):
            began = max(launched, before)
            before = max(done, began)
            communication_s += before - began
            exposed_s += max(0.0, before - max(began, computed))
        backward_s = computed - self._begun if self._begun else 0.0
        values = (self._forward_s, backward_s, communication_s, exposed_s, end - computed)
        self._last = dict(zip(self._last, values, strict=True))
        for key, value in self._last.items():
            self._sum[key] += value
        self.steps += 1
        self._forward_s = self._begun = 0.0

    def stats(self) -> dict[str, float]:
        """Sums since construction, the last step's, and the share of communication that backward did not wait for."""
        communication_s = self._sum["communication_s"]
        return {
            **self._sum,
            **{f"last_{key}": value for key, value in self._last.items()},
            "overlap": 1 - self._sum["exposed_s"] / communication_s if communication_s else 0.0,
        }
