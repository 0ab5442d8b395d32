"""`resilin trace analyse`: where the time of each rank went, in HolisticTraceAnalysis' tables."""

from __future__ import annotations

import argparse

from resilin.launcher import output
from resilin.launcher.traces import files

_TOP = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace analyse`."""
    files.add_arguments(parser)
    parser.add_argument(
        "--top", type=int, default=_TOP, metavar="N", help=f"operators shown of each rank (default {_TOP})"
    )
    parser.add_argument("--steps", action="store_true", help="a row for each step of the profile, too")


def run(args: argparse.Namespace) -> int:
    """Print the tables; UsageError (exit code 2) without traces."""
    found = files.reports().analyse(args.traces, args.top, int(args.last * 1e9))
    if args.json:
        output.show_json(found, indent=2)
        return 0
    notes = found.pop("notes")
    for name, rows in found.items():
        if name != "steps" or args.steps:
            output.show(
                f"{name.removeprefix('gpu_')}:", *(f"  {line}" for line in files.table(rows, left=("name",))), ""
            )
    if notes:
        output.show(*notes)
    return 0
