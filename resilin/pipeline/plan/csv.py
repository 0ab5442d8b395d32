"""Plans in PyTorch's CSV: a row for each rank, a cell for each action, an empty cell for an idle slot.

Both of its forms are read and written: computations alone (`compute_only`), and with communication (`compute_comms`).
"""

from __future__ import annotations

import csv
import io
from os import PathLike
from pathlib import Path

from resilin.errors import UsageError
from resilin.pipeline.plan.action import Action
from resilin.pipeline.plan.plan import PipelinePlan, from_actions


def dumps(plan: PipelinePlan) -> str:
    """Give a plan as CSV."""
    out = io.StringIO(newline="")
    csv.writer(out).writerows([["" if action is None else str(action) for action in row] for row in plan.actions])
    return out.getvalue()


def loads(text: str, source: str = "CSV") -> PipelinePlan:
    """Read a plan; where the stages are, and how many micro-batches there are, follow from its actions.

    It is read, not proved: `validate` does that. UsageError names the row and cell of what is no action.
    """
    rows: dict[int, list[Action | None]] = {}
    try:
        for rank, cells in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True)):
            rows[rank] = [_action(cell, f"{source}, row {rank}, cell {number}") for number, cell in enumerate(cells)]
        return from_actions(rows)
    except csv.Error as error:
        raise UsageError(f"{source}, row {len(rows)}: this is no CSV: {error}") from None


def write(plan: PipelinePlan, path: str | PathLike[str]) -> None:
    """Write a plan to a file, which is replaced."""
    Path(path).write_text(dumps(plan), encoding="utf-8", newline="")


def read(path: str | PathLike[str]) -> PipelinePlan:
    """Read a plan from a file. UsageError when there is none, or none that can be read as one."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: expected a schedule as CSV: {error}") from None
    return loads(text, str(path))


def _action(cell: str, where: str) -> Action | None:
    try:
        return Action.from_str(cell)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
