"""Draws a timed plan as text: a row for each rank, time from left to right. Pure."""

from __future__ import annotations

import math

from resilin.pipeline.plan.action import COMPUTATIONS, Action
from resilin.pipeline.plan.simulate import Timeline

_IDLE = "·"
_GOES_ON = "─"
_WIDEST = 4000  # columns: beyond, a drawing says less than its file


def text(timeline: Timeline) -> str:
    """Draw it in columns as wide as its shortest computation; dots are idle time, a line goes on to an action's end.

    Actions are written as in a plan, without the stage where each rank has one alone.
    """
    unit = _unit(timeline)
    alone = timeline.plan.stages == timeline.plan.ranks
    labels = {
        action: label(action, alone)
        for row in timeline.plan.actions
        for action in row
        if action is not None and action.computation_type in COMPUTATIONS
    }
    columns = max(1, math.ceil(timeline.total / unit - 1e-9))
    width = max([len(label) for label in labels.values()], default=1)
    width = min(width, max(1, _WIDEST // columns)) + 1
    names = [f"rank {rank}" for rank in range(timeline.plan.ranks)]
    margin = max(map(len, names))
    lines = [
        f"{name:<{margin}}  {_row(timeline, rank, unit, width, columns, labels)}" for rank, name in enumerate(names)
    ]
    return "\n".join(line.rstrip() for line in lines)


def label(action: Action, alone: bool) -> str:
    """Give the text of an action in a drawing."""
    texts = [str(part)[len(str(part.stage_index)) :] if alone else str(part) for part in action.parts]
    return "+".join(texts)


def _unit(timeline: Timeline) -> float:
    """How long a column is: the shortest computation."""
    lengths = [
        end - start
        for row, starts, ends in zip(timeline.plan.actions, timeline.starts, timeline.ends, strict=True)
        for action, start, end in zip(row, starts, ends, strict=True)
        if action is not None and action.computation_type in COMPUTATIONS and end > start
    ]
    return min(lengths, default=1.0)


def _row(timeline: Timeline, rank: int, unit: float, width: int, columns: int, labels: dict[Action, str]) -> str:
    line = [f"{_IDLE:<{width}}"] * columns
    row = zip(timeline.plan.actions[rank], timeline.starts[rank], timeline.ends[rank], strict=True)
    for action, start, end in row:
        if action is None or action.computation_type not in COMPUTATIONS or end <= start:
            continue
        first = min(columns - 1, round(start / unit))
        last = max(first + 1, round(end / unit))
        cell = labels[action][: (last - first) * width - 1].ljust(
            (last - first) * width - 1, _GOES_ON if last - first > 1 else " "
        )
        for column in range(first, min(last, columns)):
            at = (column - first) * width
            line[column] = (cell + " ")[at : at + width]
    return "".join(line)
