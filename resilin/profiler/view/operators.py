"""The table of operators: how often each ran with which shapes, and how long, of each rank and of all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilin.profiler.traces import breakdown
from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent
from resilin.profiler.view import words
from resilin.profiler.view.places import Places

ALL = -1  # in place of a rank
MOST_ROWS = 1000  # of each rank: those that took most time of their own
COLUMNS = (
    "rank", "name", "kind", "shapes", "calls", "self(us)", "total(us)", "mean(us)", "self_pctg", "place",
)  # fmt: skip


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    own_ns: int = 0
    total_ns: int = 0
    places: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Sum) -> None:
        self.calls += other.calls
        self.own_ns += other.own_ns
        self.total_ns += other.total_ns
        self.places.update(other.places)


_Key = tuple[str, str, str]  # name, kind, shapes


def operators(traces: Sequence[RankTrace], places: Places) -> dict[str, Any]:
    """Return `columns`, `rows` as lists, and `left_out`: how many rows there would be more."""
    whole: dict[_Key, _Sum] = {}
    by_rank: dict[int, dict[_Key, _Sum]] = {}
    for trace in traces:
        sums = by_rank.setdefault(trace.rank, {})
        for key, one in _sums(trace, places).items():
            sums.setdefault(key, _Sum()).add(one)
            whole.setdefault(key, _Sum()).add(one)
    rows: list[list[Any]] = []
    left_out = 0
    for rank, sums in {ALL: whole, **by_rank}.items():
        most = sorted(sums.items(), key=lambda each: -each[1].own_ns)
        of_all_ns = sum(one.own_ns for one in sums.values())
        rows += [_row(rank, key, one, of_all_ns, places) for key, one in most[:MOST_ROWS]]
        left_out += max(0, len(most) - MOST_ROWS) if rank == ALL else 0
    return {"columns": COLUMNS, "rows": rows, "left_out": left_out}


def _row(rank: int, key: _Key, one: _Sum, of_all_ns: int, places: Places) -> list[Any]:
    function = one.places.most_common(1)[0][0] if one.places else ""
    times = one.own_ns / 1000, one.total_ns / 1000, round(one.total_ns / 1000 / one.calls, 3)
    share = round(100 * one.own_ns / of_all_ns, 2) if of_all_ns else 0.0
    return [rank, *key, one.calls, *times, share, places.number(function) if function else -1]


def _sums(trace: RankTrace, places: Places) -> dict[_Key, _Sum]:
    own = breakdown.own_times(trace)
    sums: dict[_Key, _Sum] = {}
    within = _Within(places)
    for event, depth in nested(trace):
        within.enter(event, depth)
        kind = words.kind(event)
        if kind == "step" or breakdown.on_device(event) or event.category.startswith("gpu_"):
            continue
        one = sums.setdefault((event.name, kind, words.shapes(event)), _Sum())
        one.calls += 1
        one.own_ns += own.get(id(event), (event, 0))[1]
        if within.names[event.name] == 1:  # of what calls itself the outer call counts
            one.total_ns += event.duration_ns
        function = event.name if kind == "python" else within.functions[-1]
        if function:
            one.places[function] += event.duration_ns + 1
    return sums


class _Within:
    """The events that are open on a thread, kept so that none asks all of those around it."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._open: list[TraceEvent] = []
        self.names: Counter[str] = Counter()  # of those that are open, how often each
        self.functions: list[str] = [""]  # for each, and before: what tells best where the program is, see `nearest`

    def enter(self, event: TraceEvent, depth: int) -> None:
        """Go on with an event that has so many around it."""
        while len(self._open) > depth:
            self.names[self._open.pop().name] -= 1
            self.functions.pop()
        function = self.functions[-1]
        if event.category == "python_function":
            function = self._places.nearest((event.name, function))
        self._open.append(event)
        self.names[event.name] += 1
        self.functions.append(function)


def nested(trace: RankTrace) -> Iterator[tuple[TraceEvent, int]]:
    """Yield each event, and how many are around it on its thread."""
    for events in trace.by_thread.values():
        around: list[TraceEvent] = []
        for event in events:
            while around and around[-1].end_ns <= event.start_ns:
                around.pop()
            yield event, len(around)
            around.append(event)
