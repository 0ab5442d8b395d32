"""`resilin trace merge`: one file for Perfetto and chrome://tracing of the traces of all ranks."""

from __future__ import annotations

import argparse
from pathlib import Path

from resilin.errors import UsageError
from resilin.launcher import output
from resilin.launcher.traces import files
from resilin.profiler.traces import merged_file


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
    inside = [place for place in args.traces if place.is_dir() and _within(args.out, place)]
    if args.out.exists() and (inside or args.out in args.traces):
        raise UsageError(f"{args.out}: it lies among the traces and would be read as one; remove it, or write elsewhere")
    found = files.read(args)
    try:
        arrows = merged_file.write(found.ranks, args.out, found.notes)
    except OSError as error:
        raise UsageError(f"{args.out}: cannot be written: {error.strerror or error}") from None
    ranks = [trace.rank for trace in found.ranks]
    if args.json:
        events = sum(len(trace.events) for trace in found.ranks)
        output.show_json({"file": str(args.out), "ranks": ranks, "events": events, "arrows": arrows, "notes": found.notes})
    else:
        many = f"{len(ranks)} ranks" if len(ranks) != 1 else "1 rank"
        output.show(f"{args.out}: {many}, {arrows} arrows; open it at https://ui.perfetto.dev or chrome://tracing")
        output.show(*found.notes)
    return 1 if any(not note.startswith("clocks: ranks") for note in found.notes) else 0


def _within(path: Path, place: Path) -> bool:
    return path.resolve().is_relative_to(place.resolve())
