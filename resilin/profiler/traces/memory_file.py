"""Reads a rank's trace from the memory file that its process records into, or did until it was killed."""

from __future__ import annotations

import json
import sys
import time
from decimal import Decimal
from pathlib import Path

from resilin._base import span_file, trace_ring
from resilin.core.machine import span_rings
from resilin.profiler import chrome_trace, source_names
from resilin.profiler.recorded import Recorded, category
from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent


def read(path: Path) -> RankTrace | None:
    """Read one file; None: it holds no span. UsageError says what is wrong with it, OSError: it cannot be read."""
    found = span_file.read(path, span_rings.read)
    recording, about = found.recording, found.about
    if not recording.spans:
        return None
    source_names.shorten(recording.spans, sys.path)
    stop_ns = time.monotonic_ns() if found.alive else _last_ns(recording)
    recorded = Recorded(recording, min(recording.monotonic_ns, recording.spans[0].start_ns), stop_ns)
    clock = f"boot {about.boot}" if about.boot else f"wall clock of {about.host or path.name}"
    to_wall_ns = recorded.wall_ns(0) if about.boot else 0  # times are the monotonic clock's, or the wall clock's
    trace = RankTrace(
        path.name, about.rank, about.host, recording.process, clock, [], [], recorded.start_ns, stop_ns,
        to_wall_ns, about.world_size, found.alive, True, recording.dropped,
    )  # fmt: skip
    if not about.boot:
        trace.start_ns, trace.stop_ns = recorded.wall_ns(trace.start_ns), recorded.wall_ns(stop_ns)
    shift_ns = 0 if about.boot else recorded.wall_ns(0)
    for one, thread, args in chrome_trace.spans(recorded):
        times = (one.start_ns + shift_ns, one.end_ns + shift_ns)
        trace.events.append(TraceEvent(one.span.name, category(one.span.kind), thread, *times, args, one.open))
    for line in chrome_trace.beside_spans(recorded, to_wall_ns):
        other = json.loads(line, parse_float=Decimal)
        if other.get("cat") != "Trace":
            other["ts"] = int(other["ts"] * 1000)
            trace.others.append(other)
    trace.sort()
    trace.learn_rank()
    return trace


def _last_ns(recording: trace_ring.Recording) -> int:
    return max(span.end_ns or span.start_ns for span in recording.spans)
