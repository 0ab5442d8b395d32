"""What `merge`, `analyse` and `why` have in common: the traces they are given, who reads them, and tables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which traces are meant."""
    parser.add_argument(
        "traces", type=Path, nargs="+", metavar="FOLDER|FILE",
        help="what `resilin trace record` recorded into, or traces that profilers wrote (*.json, *.json.gz); of "
        "several hosts together",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


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
