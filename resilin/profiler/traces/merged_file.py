"""Writes the traces of all ranks as one file for Perfetto and chrome://tracing.

Each rank is a process with a number of its own, in the order of ranks; times count from the first event. Arrows lead
from a send to its receive, and within a collective from the rank that entered last to those that waited for it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

from resilin.core.whole_file import write_whole
from resilin.profiler.chrome_trace import microseconds
from resilin.profiler.traces.meetings import meetings, messages
from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent

_COMPRESSION = 5
_BLOCK_CHARS = 1 << 18
_FLOW_IDS = 1 << 32  # a rank's own arrows keep their numbers below this, each rank's above the one before


def write(traces: Sequence[RankTrace], path: Path, notes: Sequence[str] = ()) -> int:
    """Write aligned traces to `path`, compressed when it ends with ".gz": whole, or not at all. Return the arrows made.

    Raises FileNotFoundError when there is no such folder, OSError that names `path` (a full disk, say).
    """
    found = list(arrows(traces))

    def fill(file: BinaryIO) -> None:
        if path.name.endswith(".gz"):
            with gzip.GzipFile("", "wb", _COMPRESSION, file) as packed:
                _fill(packed)
        else:
            _fill(file)

    def _fill(file: Any) -> None:
        block = io.StringIO()
        for text in _texts(traces, found, notes, os.fspath(path)):
            block.write(text)
            if block.tell() >= _BLOCK_CHARS:
                file.write(block.getvalue().encode())
                block = io.StringIO()
        file.write(block.getvalue().encode())

    write_whole(path, fill)
    return len(found)


def _texts(
    traces: Sequence[RankTrace], arrows: Sequence[tuple[_End, _End, str]], notes: Sequence[str], path: str
) -> Iterator[str]:
    base_ns = min((min(t.start_ns, t.events[0].start_ns if t.events else t.start_ns) for t in traces), default=0)
    ranks = [
        {"rank": t.rank, "pid": pid, "host": t.host, "process": t.process, "file": t.source, "owners": t.owners}
        for pid, t in _numbered(traces)
    ]
    about = {"ranks": ranks, "notes": list(notes)}
    yield f'{{\n"schemaVersion": 1,\n"resilin": {json.dumps(about)},\n"displayTimeUnit": "ms",\n'
    yield f'"baseTimeNanoseconds": {base_ns + (traces[0].to_wall_ns if traces else 0)},\n"traceEvents": [\n'
    pids = {id(trace): pid for pid, trace in _numbered(traces)}
    before = ""
    for one in _events(traces, arrows, base_ns, pids):
        yield before + one
        before = ",\n"
    yield f'\n],\n"traceName": {json.dumps(path)}\n}}\n'


_End = tuple[RankTrace, TraceEvent, int]  # an arrow's: on whose event, and when


def _numbered(traces: Sequence[RankTrace]) -> list[tuple[int, RankTrace]]:
    """Each with its number: the rank, or of a second process of a rank one that no rank has."""
    size = 1 + max((trace.rank for trace in traces), default=0)
    found, seen = [], set()
    for trace in traces:
        pid = trace.rank
        while pid in seen:
            pid += size
        seen.add(pid)
        found.append((pid, trace))
    return found


def _events(
    traces: Sequence[RankTrace], arrows: Sequence[tuple[_End, _End, str]], base_ns: int, pids: dict[int, int]
) -> Iterator[str]:
    for order, (pid, trace) in enumerate(_numbered(traces)):
        state = ", killed" if trace.killed else ", running" if trace.alive else ""
        name = f"rank {trace.rank} ({trace.host or 'unknown host'}, process {trace.process}{state})"
        for key, field, value in (
            ("process_name", "name", name),
            ("process_labels", "labels", f"rank {trace.rank}"),
            ("process_sort_index", "sort_index", order),
        ):
            yield json.dumps({"ph": "M", "name": key, "pid": pid, "tid": 0, "ts": 0, "args": {field: value}})
        for event in trace.events:
            yield (
                f'{{"ph": "X", "cat": {json.dumps(event.category)}, "name": {json.dumps(event.name)}, "pid": {pid}, '
                f'"tid": {json.dumps(event.thread)}, "ts": {microseconds(event.start_ns - base_ns)}, '
                f'"dur": {microseconds(event.duration_ns)}, "args": {json.dumps(event.args, default=_plain)}}}'
            )
        yield from _others(trace, order, pid, base_ns)
    for number, (start, end, kind) in enumerate(arrows):
        for letter, (trace, event, at_ns), more in (("s", start, ""), ("f", end, ', "bp": "e"')):
            yield (
                f'{{"ph": "{letter}", "id": {number + 1}, "pid": {pids[id(trace)]}, "tid": {json.dumps(event.thread)}, '
                f'"ts": {microseconds(at_ns - base_ns)}, "cat": "{kind}", "name": "{kind}"{more}}}'
            )


def _others(trace: RankTrace, order: int, pid: int, base_ns: int) -> Iterator[str]:
    """Names of threads, moments, and the rank's own arrows, whose numbers must not meet those of other ranks."""
    for one in trace.others:
        if one.get("ph") == "M" and str(one.get("name", "")).startswith("process_"):
            continue
        if one.get("pid") != trace.process and one.get("ph") != "M":
            continue  # the recorder's own marks
        changed = {**one, "pid": pid}
        if "ts" in one:
            changed["ts"] = 0 if one.get("ph") == "M" else (one["ts"] - base_ns) / 1000
        if "id" in one and one.get("ph") in ("s", "t", "f"):
            changed["id"] = (
                f"{order}:{one['id']}" if isinstance(one["id"], str) else (order + 1) * _FLOW_IDS + one["id"]
            )
        yield json.dumps(changed, default=_plain)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)


def arrows(traces: Sequence[RankTrace]) -> Iterator[tuple[_End, _End, str]]:
    """Yield the arrows between ranks: where each begins and ends, and whether it is of a message or a collective."""
    for message in messages(traces):
        sent, received = message.send, message.receive
        end_ns = max(received.start_ns, min(received.end_ns, sent.start_ns))
        yield (message.sender, sent, sent.start_ns), (message.receiver, received, max(end_ns, sent.start_ns)), "message"
    for meeting in meetings(traces):
        for rank, (trace, event) in meeting.entries.items():
            last = meeting.last_before(rank)
            if last is not None and last[1].start_ns <= event.end_ns:
                there = meeting.entries[last[0]][0]
                yield (there, last[1], last[1].start_ns), (trace, event, last[1].start_ns), "collective"
