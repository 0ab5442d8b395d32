"""Everything that the page shows, as values that JSON can hold: computed once, the page only draws. Pure.

What is told of ranks is what `resilin trace analyse` and `why` tell.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from resilin.profiler.recorded import collection_paused
from resilin.profiler.traces import reports
from resilin.profiler.traces.folder import Traces
from resilin.profiler.traces.rank_trace import RankTrace
from resilin.profiler.view import kernels, memory, operators, timeline, words
from resilin.profiler.view.places import Places
from resilin.version import __version__

TOP = 20  # parts of the critical path, operators of a rank
MOST_STEPS = 2000  # rows: of a long profile the first ones
LEAST_NS = 1_000_000  # shorter waits have no line
AFTER_NS = 5_000_000_000  # as `resilin trace why` has it
MOST_WAITS = 50


class Opens(Enum):
    """What a click on a place does."""

    NOTHING = "nothing"
    """Of a file that others may read: it has no names of folders of this machine but those in the trace."""
    LINK = "link"
    """It follows a link that VS Code answers."""
    EDITOR = "editor"
    """It asks the server for the user's own editor."""


def make(found: Traces, title: str, sources: Sequence[Path]) -> tuple[dict[str, Any], Places]:
    """Return the report, and the places that it names by number. sources: folders beneath which files are found."""
    places = Places(sources)
    base_ns = min((trace.events[0].start_ns for trace in found.ranks if trace.events), default=0)
    with collection_paused():
        tables = reports.tables(found, TOP)
        waits = reports.waits(found, LEAST_NS, AFTER_NS)
        report: dict[str, Any] = {
            "title": title,
            "version": __version__,
            "ranks": [_rank(trace) for trace in found.ranks],
            "notes": tables.pop("notes"),
            "tables": tables,
            "waits": {
                "hang": waits["hang"],
                "totals": waits["totals"][:TOP],
                "longest": sorted(waits["causes"], key=lambda each: -int(each["waited_ns"]))[:MOST_WAITS],
            },
            "operators": operators.operators(found.ranks, places),
            "kernels": kernels.kernels(found.ranks),
            "memory": memory.memory(found.ranks, base_ns, places),
            "timeline": timeline.timeline(found.ranks, base_ns, places),
        }
    if len(tables["steps"]) > MOST_STEPS:
        report["notes"].append(f"steps: the first {MOST_STEPS} of {len(tables['steps'])} rows are shown")
        tables["steps"] = tables["steps"][:MOST_STEPS]
    return report, places


def to_json(report: dict[str, Any], places: Places, opens: Opens) -> str:
    """Return the report as JSON, with what opens the places that are known here."""
    listed = [
        {
            "text": words.cut(one.text),
            "link": one.link if opens is Opens.LINK else "",
            "opens": opens is Opens.EDITOR and one.path is not None,
        }
        for one in places.found
    ]
    return json.dumps({**report, "places": listed}, separators=(",", ":"), default=float)


def _rank(trace: RankTrace) -> dict[str, Any]:
    state = "killed" if trace.killed else "running" if trace.alive else ""
    return {
        "rank": trace.rank,
        "host": trace.host,
        "process": trace.process,
        "state": state,
        "file": trace.source,
        "spans": len(trace.events),
        "dropped": trace.dropped,
    }
