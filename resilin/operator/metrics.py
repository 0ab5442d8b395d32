"""Counts what the operator does, and says it in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from resilin.errors import ClusterError

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters, gauges and one histogram. Of one event loop."""

    def __init__(self) -> None:
        self._writes: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._restarted_watches: Counter[str] = Counter()
        self._resyncs = 0
        self._seconds = [0] * (len(_BUCKETS_S) + 1)
        self._seconds_sum = 0.0
        self.gauges: dict[str, float] = {}
        """By name, without the prefix: of the moment."""

    def written(self, action: str) -> None:
        """A write was done."""
        self._writes[action] += 1

    def failed(self, error: ClusterError) -> None:
        """A call failed."""
        self._failures[str(error.code)] += 1

    def turn(self, seconds: float, *, ok: bool) -> None:
        """A turn took so long."""
        self._turns["success" if ok else "error"] += 1
        self._seconds[bisect_left(_BUCKETS_S, seconds)] += 1
        self._seconds_sum += seconds

    def resynced(self) -> None:
        """Everything is looked at again."""
        self._resyncs += 1

    def watch_restarted(self, kind: str) -> None:
        """A watch was begun again after an error."""
        self._restarted_watches[kind] += 1

    @property
    def writes(self) -> int:
        """All writes so far."""
        return sum(self._writes.values())

    def text(self) -> str:
        """Return all of them."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _counter("writes_total", "Writes to the API server.", "action", self._writes)
        yield from _counter("api_errors_total", "Calls that failed, by code; 0: no answer.", "code", self._failures)
        yield from _counter("turns_total", "Turns of jobs.", "result", self._turns)
        yield from _counter("watch_restarts_total", "Watches begun again.", "kind", self._restarted_watches)
        yield "# HELP resilin_operator_resyncs_total Looks at everything, whatever watches say."
        yield "# TYPE resilin_operator_resyncs_total counter"
        yield f"resilin_operator_resyncs_total {self._resyncs}"
        name = "resilin_operator_turn_seconds"
        yield f"# HELP {name} How long turns took."
        yield f"# TYPE {name} histogram"
        below = 0
        for bound, count in zip((*_BUCKETS_S, "+Inf"), self._seconds, strict=True):
            below += count
            yield f'{name}_bucket{{le="{bound}"}} {below}'
        yield f"{name}_sum {self._seconds_sum:.6f}"
        yield f"{name}_count {below}"
        for gauge, value in sorted(self.gauges.items()):
            yield f"# TYPE resilin_operator_{gauge} gauge"
            yield f"resilin_operator_{gauge} {value:g}"


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> Iterator[str]:
    yield f"# HELP resilin_operator_{name} {text}"
    yield f"# TYPE resilin_operator_{name} counter"
    for key, value in sorted(values.items()):
        yield f'resilin_operator_{name}{{{label}="{key}"}} {value}'
