"""`resilin checkpoint ls`: steps, sizes, who wrote them, complete or torn."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from resilin.errors import UsageError
from resilin.launcher import exit_codes, output

if TYPE_CHECKING:
    from resilin.checkpoint.tools.listing import Listed

_UNITS = ("B", "kB", "MB", "GB", "TB")
_HEADINGS = ("CHECKPOINT", "STATE", "SIZE", "TENSORS", "FILES", "RANKS", "AGE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `ls`."""
    parser.add_argument("path", help="a checkpoint, or a folder of them")
    parser.add_argument("--json", action="store_true", help="print one JSON list")


def run(args: argparse.Namespace) -> int:
    """Print the checkpoints, oldest first. 1 when one is torn or unreadable; UsageError when there is none."""
    from resilin.checkpoint.tools import listing  # loads numpy, as all that reads checkpoints does

    found = listing.list_all(args.path)
    if not found:
        raise UsageError(f"{args.path}: there are no checkpoints")
    if args.json:
        output.show_json([dataclasses.asdict(one) for one in found], indent=2)
    else:
        output.show(*_lines(found))
    return exit_codes.FAILED if any(one.problem for one in found) else exit_codes.OK


def size(nbytes: int) -> str:
    """Bytes for people: three digits and a decimal unit."""
    value, unit = float(nbytes), _UNITS[0]
    for larger in _UNITS[1:]:
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def _lines(found: list[Listed]) -> list[str]:
    rows = [_HEADINGS, *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return table + [one.problem for one in found if one.problem]


def _row(one: Listed) -> tuple[str, ...]:
    return (
        one.name,
        "unreadable" if one.unreadable else "torn" if one.problem else "complete",
        size(one.nbytes),
        _or_dash(one.tensors),
        str(one.files),
        _or_dash(one.world_size),
        "-" if one.age_s is None else _age(one.age_s),
    )


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _age(seconds: float) -> str:
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
