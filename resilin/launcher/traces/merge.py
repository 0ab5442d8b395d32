"""`resilin trace merge`: one file for Perfetto and chrome://tracing of the traces of all ranks."""

from __future__ import annotations

import argparse
from pathlib import Path

from resilin.launcher import output
from resilin.launcher.traces import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin trace merge`."""
    files.add_arguments(parser)
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("merged.trace.json.gz"), metavar="FILE",
        help="what is written, compressed when it ends with .gz (default: %(default)s)",
    )  # fmt: skip
    parser.epilog = "Returns 0 when all ranks are in the file, 1 when something was left out or is missing: it is said."


def run(args: argparse.Namespace) -> int:
    """Write the file. UsageError (exit code 2) without traces, or where it cannot be written."""
    found = files.reports().merge(args.traces, args.out, int(args.last * 1e9))
    if args.json:
        output.show_json(found)
    else:
        count = len(found["ranks"])
        many = f"{count} ranks" if count != 1 else "1 rank"
        output.show(
            f"{found['file']}: {many}, {found['arrows']} arrows, for https://ui.perfetto.dev and chrome://tracing"
        )
        if found["notes"]:
            output.show(*found["notes"])
    return 1 if any(not note.startswith("clocks: ranks") for note in found["notes"]) else 0
