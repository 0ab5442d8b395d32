"""Memory over time, and for what, of each rank and device whose trace has it: `profile_memory`.

What a trace file says is made into a recording again, and judged as `export_memory_timeline` judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from resilin._base.trace import SpanKind
from resilin._base.trace_ring import Recording, Span
from resilin.profiler import memory_page
from resilin.profiler.memory_owners import Category, Owned
from resilin.profiler.memory_timeline import ORDER, MemoryBlock, MemoryTimeline
from resilin.profiler.nesting import Placed
from resilin.profiler.recorded import MEMORY, Recorded
from resilin.profiler.traces import breakdown
from resilin.profiler.traces.rank_trace import STEP, RankTrace, TraceEvent
from resilin.profiler.view import words
from resilin.profiler.view.places import Places

COLUMNS = ("bytes", "owner", "name", "place")
MOST_BLOCKS = 200  # of those that were in use at the peak: the largest
_DEVICES = {0: "CPU", 1: "CUDA"}
_BACKWARD = re.compile(r"Backward\d*$|^autograd::engine::evaluate_function")


def memory(traces: Sequence[RankTrace], base_ns: int, places: Places) -> dict[str, Any]:
    """Return `owners` (names of kinds), `columns` of blocks, and `series`: of each rank and device its picture."""
    series = []
    for trace in traces:
        moments: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for one in trace.others:
            args = one.get("args")
            if one.get("name") == MEMORY and isinstance(args, dict) and _in_bounds(args.get("Bytes")):
                device = args.get("Device Type", 0), args.get("Device Id", -1)
                if not all(map(_in_bounds, (*device, args.get("Addr"), one.get("ts")))):
                    continue
                moments.setdefault(device, []).append(one)
        series += [_series(trace, device, found, base_ns, places) for device, found in moments.items()]
    names = ["not known" if one is None else one.name.lower().replace("_", " ") for one in ORDER]
    return {"owners": names, "colors": memory_page.COLORS, "columns": COLUMNS, "series": series}


def _in_bounds(value: Any) -> bool:
    """Whether a file says a number here that is one: addresses have 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64


def _series(
    trace: RankTrace, device: tuple[int, int], moments: list[dict[str, Any]], base_ns: int, places: Places
) -> dict[str, Any]:
    recorded = _recorded(trace, moments)
    on_cpu = device[0] == 0
    timeline = MemoryTimeline(
        recorded, [Owned(at, size, Category(kind)) for at, size, kind in trace.owners] if on_cpu else []
    )
    times_us, sizes = timeline.sizes()
    at = max(range(len(sizes)), key=lambda place: sum(sizes[place]))
    points = memory_page.columns(times_us, sizes)
    alive = [block for block in timeline.blocks if (block.born_ns or 0) // 1000 <= times_us[at] < block.died_ns // 1000]
    alive.sort(key=lambda block: -block.nbytes)
    name = _DEVICES.get(device[0], f"device type {device[0]}")
    return {
        "rank": trace.rank,
        "device": name if on_cpu else f"{name} {device[1]}",
        "times(us)": [time - base_ns / 1000 for time, _ in points],
        "sizes": [row[1:] for _, row in points],
        "peak": sum(sizes[at]),
        "peak_at(us)": times_us[at] - base_ns / 1000,
        "highest": [max(row[number + 1] for row in sizes) for number in range(len(ORDER))],
        "blocks": [_block(block, places) for block in alive[:MOST_BLOCKS]],
        "left_out": max(0, len(alive) - MOST_BLOCKS),
    }


def _block(block: MemoryBlock, places: Places) -> list[Any]:
    around = block.around
    name = around.span.name if around else "before the recording" if block.born_ns is None else "no span"
    function = places.nearest(_functions(around))
    return [block.nbytes, ORDER.index(block.category), name, places.number(function) if function else -1]


def _functions(around: Placed | None) -> Iterator[str]:
    """The functions of Python around, the innermost first."""
    while around is not None:
        if around.span.kind is SpanKind.PYTHON:
            yield around.span.name
        around = around.parent


def _recorded(trace: RankTrace, moments: list[dict[str, Any]]) -> Recorded:
    """What was recorded, in times of the aligned clock."""
    threads: dict[Any, int] = {}
    spans: list[Span] = []
    for event in trace.events:
        if not breakdown.on_device(event):
            thread = threads.setdefault(event.thread, len(threads))
            link = event.args.get("Sequence number", -1)
            fields = (event.name, _kind(event), event.start_ns, event.end_ns, thread)
            spans.append(Span(len(spans), *fields, link if isinstance(link, int) else -1, 0, None, instant=False))
    for one in sorted(moments, key=lambda one: one["ts"]):
        thread = threads.setdefault(one.get("tid", 0), len(threads))
        address, nbytes = one["args"]["Addr"], one["args"]["Bytes"]
        times = one["ts"], one["ts"]
        spans.append(Span(len(spans), MEMORY, SpanKind.MEMORY, *times, thread, address, nbytes, None, instant=True))
    last = max((span.end_ns or span.start_ns for span in spans), default=0)
    return Recorded(Recording(spans, {}, 0, 0, 0, 0, 0, trace.process), spans[0].start_ns, last)


def _kind(event: TraceEvent) -> SpanKind:
    if event.category == "python_function":
        return SpanKind.MODULE if event.name.startswith("nn.Module: ") else SpanKind.PYTHON
    if event.name.startswith("Optimizer."):
        return SpanKind.OPTIMIZER
    if words.kind(event) == "data":
        return SpanKind.DATA
    if event.category == "cpu_op":
        return SpanKind.BACKWARD if _BACKWARD.search(event.name) else SpanKind.OP
    return SpanKind.STEP if event.name.startswith(STEP) else SpanKind.USER
