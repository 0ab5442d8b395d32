"""The table of what ran on devices, and how well it filled them, as far as the trace says. Pure.

Utilisation is the share of the time in which at least one kernel ran. A kernel fills the device's multiprocessors at
most as far as it has blocks for them (`blocks per SM`, up to 1), and each of them as far as its occupancy says; both
are averages over time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from resilin.profiler.traces import breakdown, intervals
from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent
from resilin.profiler.view import words

OCCUPANCY, BLOCKS, BANDWIDTH = "est. achieved occupancy %", "blocks per SM", "memory bandwidth (GB/s)"
COLUMNS = (
    "rank", "name", "kind", "calls", "total(us)", "mean(us)", "pctg", "sm_efficiency_pctg", "occupancy_pctg",
    "grid", "block", "registers", "shared_memory", "bytes", "GB/s",
)  # fmt: skip
MOST_ROWS = 1000
_MOST = 1e18  # larger numbers, and what is none, count as not said


def kernels(traces: Sequence[RankTrace]) -> dict[str, Any]:
    """Return `devices`, a row for each device of each rank, and `columns` and `rows` of kernels; empty without any."""
    devices: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for trace in traces:
        found = [event for event in trace.events if breakdown.on_device(event)]
        by_device: dict[str, list[TraceEvent]] = {}
        by_name: dict[str, list[TraceEvent]] = {}
        for event in found:
            by_device.setdefault(words.cut(words.plain(event.args.get("device", 0))), []).append(event)
            by_name.setdefault(event.name, []).append(event)
        devices += [_device(trace.rank, device, events) for device, events in by_device.items()]
        whole_ns = sum(event.duration_ns for event in found)
        rows += [_kernel(trace.rank, name, events, whole_ns) for name, events in by_name.items()]
    rows.sort(key=lambda row: -row[COLUMNS.index("total(us)")])
    return {"devices": devices, "columns": COLUMNS, "rows": rows[:MOST_ROWS], "left_out": max(0, len(rows) - MOST_ROWS)}


def _device(rank: int, device: str, events: Sequence[TraceEvent]) -> dict[str, Any]:
    busy = intervals.union((event.start_ns, event.end_ns) for event in events)
    whole_ns = max(event.end_ns for event in events) - min(event.start_ns for event in events)
    only = [event for event in events if event.category == "kernel"]
    return {
        "rank": rank,
        "device": device,
        "utilisation_pctg": round(100 * intervals.total(busy) / whole_ns, 2) if whole_ns else None,
        "sm_efficiency_pctg": _average((event, _efficiency(event)) for event in only),
        "occupancy_pctg": _average((event, _number(event, OCCUPANCY)) for event in only),
        "kernels": len(only),
        "copies": len(events) - len(only),
    }


def _kernel(rank: int, name: str, events: Sequence[TraceEvent], whole_ns: int) -> list[Any]:
    total_ns = sum(event.duration_ns for event in events)
    return [
        rank,
        name,
        breakdown.category(events[0]),
        len(events),
        total_ns / 1000,
        round(total_ns / 1000 / len(events), 3),
        round(100 * total_ns / whole_ns, 2) if whole_ns else 0.0,
        _average((event, _efficiency(event)) for event in events),
        _average((event, _number(event, OCCUPANCY)) for event in events),
        *(_usual(events, each) for each in ("grid", "block", "registers per thread", "shared memory")),
        sum(_number(event, "bytes") or 0 for event in events) or None,
        _average((event, _number(event, BANDWIDTH)) for event in events),
    ]


def _number(event: TraceEvent, name: str) -> float | None:
    value = event.args.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    return float(value) if -_MOST < value < _MOST else None


def _efficiency(event: TraceEvent) -> float | None:
    blocks = _number(event, BLOCKS)
    return None if blocks is None else 100 * min(1.0, blocks)


def _average(values: Iterable[tuple[TraceEvent, float | None]]) -> float | None:
    """The average over the time of events, of those that say."""
    told = [(event.duration_ns, value) for event, value in values if value is not None]
    whole_ns = sum(ns for ns, _ in told)
    return round(sum(ns * value for ns, value in told) / whole_ns, 2) if whole_ns else None


def _usual(events: Sequence[TraceEvent], name: str) -> str | None:
    """The most frequent value, as text."""
    told = Counter(words.cut(words.plain(event.args[name])) for event in events if name in event.args)
    return told.most_common(1)[0][0] if told else None
