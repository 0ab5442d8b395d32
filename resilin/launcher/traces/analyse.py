"""`resilin trace analyse`: where the time of each rank went, in HolisticTraceAnalysis' tables."""

from __future__ import annotations

import argparse

from resilin.launcher import output
from resilin.launcher.traces import files
from resilin.profiler.traces import breakdown, critical_path
from resilin.profiler.traces.meetings import meetings

_TOP = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace analyse`."""
    files.add_arguments(parser)
    parser.add_argument("--top", type=int, default=_TOP, metavar="N", help=f"operators shown of each rank (default {_TOP})")
    parser.add_argument("--steps", action="store_true", help="a row for each step of the profile, too")


def run(args: argparse.Namespace) -> int:
    """Print the tables; UsageError (exit code 2) without traces."""
    found = files.read(args)
    together = meetings(found.ranks)
    path = critical_path.critical_path(found.ranks, together)
    tables = {
        "temporal_breakdown": breakdown.temporal_breakdown(found.ranks, together),
        "comm_comp_overlap": breakdown.comm_comp_overlap(found.ranks),
        "gpu_kernel_breakdown": breakdown.kernel_breakdown(found.ranks, args.top),
        "potential_stragglers": breakdown.potential_stragglers(found.ranks, together),
        "critical_path": critical_path.summary(path, args.top),
    }
    if args.steps or args.json:
        tables["steps"] = breakdown.steps(found.ranks, together)
    if args.json:
        output.show_json({**tables, "notes": found.notes}, indent=2)
        return 0
    for name, rows in tables.items():
        output.show(f"{name.replace('gpu_', '')}:", *(f"  {line}" for line in files.table(rows, left=("name",))), "")
    output.show(*found.notes)
    return 0
