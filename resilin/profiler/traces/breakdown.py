"""Where each rank's time went, in HolisticTraceAnalysis' tables and column names, for CPU runs as well. Pure.

A moment counts once. Where operations run, it is compute, whatever else goes on; else, in a collective or message, it
is communication, of which waiting is the part before the last rank had entered; else loading of data; else any other
span; else idle. Together these are the rank's time, to the nanosecond. Traces of devices: kernels are what counts,
from the first one's begin to the last one's end; copies are neither compute nor communication.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from resilin.profiler.traces import intervals
from resilin.profiler.traces.innermost import Timeline
from resilin.profiler.traces.intervals import Interval
from resilin.profiler.traces.meetings import Meeting, is_collective
from resilin.profiler.traces.rank_trace import STEP, RankTrace, TraceEvent, step_number

Row = dict[str, Any]
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_TYPES = {"compute": "COMPUTATION"}  # as HolisticTraceAnalysis calls it; all others are our words
_DEVICE_COMMUNICATION = re.compile(r"(^nccl)|(^hip)|(^hccl)|(ncclKernel)|(^cuda_ipc)")
_DATA = re.compile(r"DataLoader|^data[.:]")
_STEP_AS_COMPUTE = re.compile(r"^Optimizer\.")


def on_device(event: TraceEvent) -> bool:
    """Whether it ran on a device: a kernel, or a copy."""
    return event.category in _DEVICE


def category(event: TraceEvent) -> str:
    """Return compute, communication, data, memory (a device's copies), other, or "" for what only surrounds others."""
    if event.category in _DEVICE:
        if event.category != "kernel":
            return "memory"
        return "communication" if _DEVICE_COMMUNICATION.search(event.name) else "compute"
    if is_collective(event) or event.name.startswith(("gloo:", "nccl:")):
        return "communication"
    if event.category == "cpu_op" or _STEP_AS_COMPUTE.search(event.name):
        return "compute"
    if _DATA.search(event.name):
        return "data"
    return "" if event.name.startswith(STEP) or event.category == "python_function" else "other"


class Breakdown:
    """Of one rank: for each category the times that it covers, none of them twice."""

    def __init__(self, trace: RankTrace, together: Sequence[Meeting] = ()) -> None:
        self.rank = trace.rank
        self.window = _window(trace)
        found: dict[str, list[Interval]] = {}
        for event in _counted(trace):
            kind = "other" if event.category in _DEVICE and event.category != "kernel" else category(event)
            if kind:
                found.setdefault(kind, []).append((event.start_ns, event.end_ns))
        covers = {
            kind: intervals.union(intervals.clip(found.get(kind, ()), *self.window))
            for kind in ("compute", "communication", "data", "other")
        }
        self.compute, self.communication = covers["compute"], covers["communication"]
        self.exposed = intervals.without(self.communication, self.compute)
        self.hidden = intervals.common(self.communication, self.compute)
        self.waiting = intervals.common(self.exposed, _waits(trace, together))
        taken = intervals.union([*self.compute, *self.exposed])
        self.data = intervals.without(covers["data"], taken)
        taken = intervals.union([*taken, *self.data])
        self.other = intervals.without(covers["other"], taken)
        self.idle = intervals.without([self.window], intervals.union([*taken, *self.other]))

    def row(self, start_ns: int | None = None, end_ns: int | None = None) -> Row:
        """Return the rank's times, of all or of a part of its window, in microseconds and percent."""
        low, high = self.window if start_ns is None or end_ns is None else (start_ns, end_ns)

        def us(covered: Sequence[Interval]) -> float:
            return intervals.total(intervals.within(covered, low, high)) / 1000

        whole = (high - low) / 1000
        idle, compute = us(self.idle), us(self.compute)
        non_compute = us(self.exposed) + us(self.data) + us(self.other)

        def share(part: float) -> float:
            return round(100 * part / whole, 2) if whole else 0.0

        return {
            "rank": self.rank,
            "idle_time(us)": idle,
            "compute_time(us)": compute,
            "non_compute_time(us)": non_compute,
            "kernel_time(us)": whole,
            "exposed_communication_time(us)": us(self.exposed),
            "hidden_communication_time(us)": us(self.hidden),
            "waiting_time(us)": us(self.waiting),
            "data_time(us)": us(self.data),
            "other_time(us)": us(self.other),
            "idle_time_pctg": share(idle),
            "compute_time_pctg": share(compute),
            "non_compute_time_pctg": share(non_compute),
        }


def _window(trace: RankTrace) -> Interval:
    """From the first event, or where a cut went through it, to the last one's end: the rest is not the program's."""
    counted = _counted(trace)
    if not counted:
        return trace.start_ns, trace.stop_ns
    return max(counted[0].start_ns, trace.start_ns), max(event.end_ns for event in counted)


def _counted(trace: RankTrace) -> list[TraceEvent]:
    """What ran on devices, where something did; else everything."""
    return [event for event in trace.events if event.category in _DEVICE] or trace.events


def _waits(trace: RankTrace, together: Sequence[Meeting]) -> list[Interval]:
    """When the process was in a collective that others had yet to enter."""
    found = []
    for meeting in together:
        for rank, (whose, event) in meeting.entries.items():
            if whose is trace:
                last = meeting.last_before(rank)
                if event.open and any(one not in meeting.entries for one in meeting.waits_for(rank)):
                    found.append((event.start_ns, event.end_ns))  # for somebody who never came
                elif last is not None:
                    found.append((event.start_ns, min(last[1].start_ns, event.end_ns)))
    return intervals.union(found)


def temporal_breakdown(traces: Sequence[RankTrace], together: Sequence[Meeting]) -> list[Row]:
    """Return a row for each rank."""
    return [Breakdown(trace, together).row() for trace in traces]


def steps(traces: Sequence[RankTrace], together: Sequence[Meeting]) -> list[Row]:
    """Return a row for each rank and step of the profile."""
    found = []
    for trace in traces:
        whole = Breakdown(trace, together)
        for event in trace.events:
            if event.name.startswith(STEP):
                number = step_number(event.name)
                step = event.name.removeprefix(STEP) if number is None else number
                found.append({"step": step, **whole.row(event.start_ns, event.end_ns)})
    return found


def comm_comp_overlap(traces: Sequence[RankTrace]) -> list[Row]:
    """Return how much of each rank's communication went on while it computed."""
    rows = []
    for trace in traces:
        found = Breakdown(trace)
        whole, hidden = intervals.total(found.communication), intervals.total(found.hidden)
        rows.append({"rank": trace.rank, "comp_comm_overlap_pctg": round(100 * hidden / whole, 2) if whole else 0.0})
    return rows


def kernel_breakdown(traces: Sequence[RankTrace], count: int) -> list[Row]:
    """Return the `count` operators of each rank that took most time of their own."""
    rows = []
    for trace in traces:
        with_device = any(event.category in _DEVICE for event in trace.events)
        times: dict[tuple[str, str], list[int]] = {}
        for event, own_ns in own_times(trace).values():
            kind = category(event)
            if kind and (not with_device or event.category in _DEVICE):
                times.setdefault((event.name, _TYPES.get(kind, kind.upper())), []).append(own_ns)
        rows += sorted((_kernel(trace.rank, *key, own) for key, own in times.items()), key=lambda r: -r["sum (us)"])[
            :count
        ]
    return rows


def _kernel(rank: int, name: str, kind: str, times: Sequence[int]) -> Row:
    us = [time / 1000 for time in times]
    deviation = statistics.stdev(us) if len(us) > 1 else 0.0
    spread = {
        "max (us)": max(us),
        "min (us)": min(us),
        "stddev": round(deviation, 3),
        "mean (us)": statistics.fmean(us),
    }
    return {"name": name, "sum (us)": sum(us), **spread, "calls": len(us), "kernel_type": kind, "rank": rank}


def own_times(trace: RankTrace) -> Mapping[int, tuple[TraceEvent, int]]:
    """Return, by the identity of each event that has any, the event and its time outside of those within it."""
    found: dict[int, tuple[TraceEvent, int]] = {}
    for events in trace.by_thread.values():
        for start, end, event in Timeline(events).pieces:
            if event is not None:
                found[id(event)] = event, found.get(id(event), (event, 0))[1] + end - start
    return found


def potential_stragglers(traces: Sequence[RankTrace], together: Sequence[Meeting]) -> list[Row]:
    """Return for each rank how often it entered last and how long the others waited then; the worst first."""
    rows: dict[int, Row] = {
        trace.rank: {"rank": trace.rank, "times_last": 0, "others_waited(us)": 0.0, "waited(us)": 0.0}
        for trace in traces
    }
    for meeting in together:
        for rank in meeting.entries:
            last = meeting.last_before(rank)
            if last is None or rank not in rows or last[0] not in rows:
                continue
            waited = (min(last[1].start_ns, meeting.entries[rank][1].end_ns) - meeting.entries[rank][1].start_ns) / 1000
            rows[rank]["waited(us)"] += waited
            rows[last[0]]["others_waited(us)"] += waited
        lasts = {last[0] for rank in meeting.entries if (last := meeting.last_before(rank)) is not None}
        for rank in lasts & rows.keys():
            rows[rank]["times_last"] += 1
    whole = sum(row["others_waited(us)"] for row in rows.values())
    for row in rows.values():  # twice its share, and more than a hundredth of the time
        window = max((_window(t)[1] - _window(t)[0] for t in traces if t.rank == row["rank"]), default=0) / 1000
        fair = whole / len(rows)
        row["straggler"] = len(rows) > 1 and row["others_waited(us)"] > max(1.5 * fair, 0.01 * window * (len(rows) - 1))
    return sorted(rows.values(), key=lambda row: -row["others_waited(us)"])
