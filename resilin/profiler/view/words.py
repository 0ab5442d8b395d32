"""What the page says of a single span beside its name: shapes, sizes, groups; its kind. Pure."""

from __future__ import annotations

import json
from typing import Any

from resilin.profiler.traces import breakdown
from resilin.profiler.traces.meetings import is_collective, is_message
from resilin.profiler.traces.rank_trace import STEP, TraceEvent

KINDS = ("compute", "communication", "data", "other", "python", "step", "memory", "together")
"""Of spans; the last: short ones that are drawn as one."""
_MOST_CHARS = 400
_JSON = json.JSONEncoder(default=float)  # numbers with a point are Decimal in traces
_OF_KERNELS = (
    ("grid", "grid"), ("block", "block"), ("registers per thread", "registers per thread"),
    ("est. achieved occupancy %", "% occupancy"), ("bytes", "bytes"), ("memory bandwidth (GB/s)", "GB/s"),
)  # fmt: skip


def kind(event: TraceEvent) -> str:
    """Return one of KINDS."""
    if event.category == "python_function":
        return "python"
    return "step" if event.name.startswith(STEP) else breakdown.category(event) or "other"


def shapes(event: TraceEvent) -> str:
    """Return the shapes that an operation was given, or how much a collective or message carries; empty: not known."""
    args = event.args
    if is_collective(event):
        size = f", group of {args['Group size']}" if "Group size" in args and not is_message(event) else ""
        return cut(f"{args.get('In msg nelems', '?')} x {args.get('dtype', '?')}{size}")
    dims = args.get("Input Dims")
    return cut(plain(dims)) if dims else ""


def details(event: TraceEvent) -> str:
    """Return what else is known of a span, in one line; empty: nothing."""
    args = event.args
    if is_message(event):
        return cut(f"rank {args['Src Rank']} to rank {args['Dst Rank']}, {shapes(event)}")
    if is_collective(event):
        return cut(f"#{args.get('Seq', '?')} of group {args.get('Process Group Name', '?')!r}, {shapes(event)}")
    if breakdown.on_device(event):
        return cut(", ".join(f"{word} {plain(args[name])}" for name, word in _OF_KERNELS if name in args))
    return shapes(event)


def plain(value: Any) -> str:
    """Return a value of a trace as text."""
    return value if isinstance(value, str) else _JSON.encode(value)


def cut(text: str) -> str:
    """Return a text that is not too long for a page with thousands of them."""
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."
