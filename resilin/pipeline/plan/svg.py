"""Draws a timed plan as SVG: a row for each rank, a block for each computation, as long as it takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    COMPUTATIONS,
    FORWARD,
    FULL_BACKWARD,
    Action,
    ComputationType,
)
from resilin.pipeline.plan.draw import label
from resilin.pipeline.plan.simulate import Timeline

# Of the first stages of a rank and of its later ones: colours that are apart for those who see fewer colours, too.
_COLOURS: dict[ComputationType, tuple[str, str]] = {
    FORWARD: ("#9ecae1", "#4292c6"),
    FULL_BACKWARD: ("#fdd0a2", "#f16913"),
    BACKWARD_INPUT: ("#fdae6b", "#d94801"),
    BACKWARD_WEIGHT: ("#c7e9c0", "#41ab5d"),
}
_NAMES = {
    FORWARD: "F: forward",
    FULL_BACKWARD: "B: backward",
    BACKWARD_INPUT: "I: gradients of inputs",
    BACKWARD_WEIGHT: "W: gradients of weights",
}
_ROW, _GAP, _LEFT, _TOP = 26, 4, 60, 34


def svg(timeline: Timeline, title: str = "", width: int = 1200) -> str:
    """Draw it `width` pixels wide. Blocks say in their tooltips when they start and end."""
    plan = timeline.plan
    scale = (width - _LEFT - 10) / (timeline.total or 1.0)
    height = _TOP + plan.ranks * (_ROW + _GAP) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title or _title(timeline))}</text>',
    ]
    for rank in range(plan.ranks):
        top = _TOP + rank * (_ROW + _GAP)
        lines.append(f'<text x="6" y="{top + 17}">rank {rank}</text>')
        lines.append(f'<rect x="{_LEFT}" y="{top}" width="{width - _LEFT - 10}" height="{_ROW}" fill="#f0f0f0"/>')
        lines += _blocks(timeline, rank, top, scale)
    lines += _legend(timeline, height - 12)
    return "\n".join([*lines, "</svg>", ""])


def _title(timeline: Timeline) -> str:
    plan = timeline.plan
    return (
        f"{plan.schedule or 'pipeline'}: {plan.ranks} ranks, {plan.stages} stages, {plan.microbatches} micro-batches; "
        f"bubble {100 * timeline.bubble:.1f} %"
    )


def _blocks(timeline: Timeline, rank: int, top: int, scale: float) -> Iterator[str]:
    plan = timeline.plan
    first = next(iter(plan.stages_of(rank)), 0)
    row = zip(plan.actions[rank], timeline.starts[rank], timeline.ends[rank], strict=True)
    for action, start, end in row:
        if action is None or action.computation_type not in COMPUTATIONS or end <= start:
            continue
        share = _ROW / len(action.parts)  # what overlaps lies in one block, one above the other
        for number, part in enumerate(action.parts):
            colour = _COLOURS[part.computation_type][part.stage_index != first]
            x, y, length = _LEFT + start * scale, top + number * share, (end - start) * scale
            yield (
                f"<g><title>{escape(str(action))}: {start:g} to {end:g}</title>"
                f'<rect x="{x:.2f}" y="{y:.2f}" width="{length:.2f}" height="{share:.2f}" fill="{colour}" '
                'stroke="white"/>'
                f"{_text(part, plan.stages == plan.ranks, x, y, length, share)}</g>"
            )


def _text(part: Action, alone: bool, x: float, y: float, length: float, height: float) -> str:
    written = label(part, alone)
    if length < 7 * len(written):
        written = str(part.microbatch_index)
    if length < 7 * len(written):
        return ""
    size = min(11.0, height - 2)
    return (
        f'<text x="{x + length / 2:.2f}" y="{y + height / 2 + size / 3:.2f}" font-size="{size:g}" text-anchor="middle">'
        f"{escape(written)}</text>"
    )


def _legend(timeline: Timeline, bottom: int) -> Iterator[str]:
    there = {part.computation_type for row in timeline.plan.actions for a in row if a is not None for part in a.parts}
    x = _LEFT
    for kind, name in _NAMES.items():
        if kind in there:
            for colour in _COLOURS[kind]:
                yield f'<rect x="{x}" y="{bottom - 9}" width="10" height="10" fill="{colour}"/>'
                x += 12
            yield f'<text x="{x}" y="{bottom}">{name}</text>'
            x += 12 + 6 * len(name)
    yield f'<text x="{x}" y="{bottom}">lighter: the first stage of a rank; grey: idle</text>'
