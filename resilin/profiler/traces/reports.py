"""What `resilin trace merge`, `analyse` and `why` find, as values that JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resilin.errors import UsageError
from resilin.profiler.recorded import collection_paused
from resilin.profiler.traces import (
    blame,
    breakdown,
    chrome_file,
    clocks,
    critical_path,
    folder,
    hang_causes,
    merged_file,
)
from resilin.profiler.traces.blame import Blame
from resilin.profiler.traces.folder import Traces
from resilin.profiler.traces.meetings import meetings


def aligned(paths: Sequence[Path], last_ns: int = 0, most_bytes: int = chrome_file.MOST_BYTES) -> Traces:
    """Read traces and bring them to one clock; of the last `last_ns`, 0: of all. UsageError when none can be read.

    most_bytes: of the text of each trace that a profiler wrote; what is longer is left out, which is noted.
    """
    with collection_paused():
        found = folder.read(paths, most_bytes)
    found.notes += clocks.align(found.ranks)
    if last_ns:
        since_ns = max(trace.stop_ns for trace in found.ranks) - last_ns
        for trace in found.ranks:
            trace.cut(since_ns)
        found.ranks = [trace for trace in found.ranks if trace.events]
    return found


def merge(paths: Sequence[Path], out: Path, last_ns: int = 0) -> dict[str, Any]:
    """Write one file of all ranks' traces, see `merged_file`. UsageError without traces, or if it cannot be written."""
    found = aligned(paths, last_ns)
    if out.resolve() in found.files or out.resolve() in [place.resolve() for place in paths]:
        raise UsageError(f"{out}: it is one of the traces to be merged; write to another file")
    try:
        arrows = merged_file.write(found.ranks, out, found.notes)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror or error}") from None
    return {
        "file": str(out),
        "ranks": [trace.rank for trace in found.ranks],
        "events": sum(len(trace.events) for trace in found.ranks),
        "arrows": arrows,
        "notes": found.notes,
    }


def analyse(paths: Sequence[Path], top: int, last_ns: int = 0) -> dict[str, Any]:
    """Return HolisticTraceAnalysis' tables, lists of rows; `top`: operators of each rank, and parts of the path."""
    return tables(aligned(paths, last_ns), top)


def tables(found: Traces, top: int) -> dict[str, Any]:
    """Return the tables of traces that were read."""
    together = meetings(found.ranks)
    path = critical_path.critical_path(found.ranks, together)
    return {
        "temporal_breakdown": breakdown.temporal_breakdown(found.ranks, together),
        "comm_comp_overlap": breakdown.comm_comp_overlap(found.ranks),
        "gpu_kernel_breakdown": breakdown.kernel_breakdown(found.ranks, top),
        "potential_stragglers": breakdown.potential_stragglers(found.ranks, together),
        "critical_path": critical_path.summary(path, top),
        "steps": breakdown.steps(found.ranks, together),
        "notes": found.notes,
    }


def why(paths: Sequence[Path], least_ns: int, after_ns: int, last_ns: int = 0) -> dict[str, Any]:
    """Return who made others wait: `hang`, `causes` of single waits, and `totals`. See `blame` and `hang_causes`."""
    return waits(aligned(paths, last_ns), least_ns, after_ns)


def waits(found: Traces, least_ns: int, after_ns: int) -> dict[str, Any]:
    """Return who made others wait in traces that were read."""
    hang = hang_causes.find(found.ranks, after_ns)
    causes = Blame(found.ranks).causes(least_ns)
    return {
        "hang": asdict(hang),
        "causes": [asdict(each) for each in causes],
        "totals": blame.totals(causes),
        "notes": found.notes,
    }
