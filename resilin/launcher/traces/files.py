"""What `merge`, `analyse` and `why` have in common: the traces they are given, who reads them, and tables."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

LAST = "of the newest spans only, back to so many seconds before the last one; of a job that runs: just now"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which traces are meant."""
    parser.add_argument(
        "traces", type=Path, nargs="+", metavar="FOLDER|FILE",
        help="what `resilin trace record` recorded into, or traces that profilers wrote (*.json, *.json.gz); of "
        "several hosts together",
    )  # fmt: skip
    parser.add_argument("--last", type=number, default=0.0, metavar="SECONDS", help=LAST)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def number(text: str) -> float:
    """A number, 0 or more."""
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"expected a number, 0 or more, got {text!r}")


def reports() -> ModuleType:
    """Who reads traces: `resilin.profiler.traces.reports`."""
    from resilin.profiler.traces import reports  # loads numpy, as all of the profiler does

    return reports


def table(rows: Sequence[Mapping[str, Any]], *, left: Sequence[str] = ()) -> list[str]:
    """Rows for people: numbers to the right, the columns in `left` to the left."""
    if not rows:
        return ["(none)"]
    names = list(rows[0])
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
    return [
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for cell, width, name in zip(row, widths, names, strict=True)
        ).rstrip()
        for row in cells
    ]


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
