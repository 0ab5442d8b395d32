"""Events as a table of text, laid out as PyTorch lays it out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from resilin.errors import UsageError
from resilin.profiler.activities import DeviceType
from resilin.profiler.formatting import format_memory, format_time, format_time_share

COLUMN = 12
GAP = "  "
_FLOPS = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")
_DEVICES = (DeviceType.CUDA, DeviceType.PrivateUse1, DeviceType.MTIA, DeviceType.XPU)


@dataclass(frozen=True)
class TableLayout:
    """How wide columns may be (in characters, None: as wide as it takes), and what stands above them."""

    source_width: int | None = 75
    name_width: int | None = 55
    shapes_width: int | None = 80
    header: str | None = None
    top_level_events_only: bool = False


def attribute(name: str) -> str:
    """Return an event's attribute for a name that may speak of one kind of device."""
    for kind in ("cuda", "xpu", "privateuse1"):
        name = name.replace(kind, "device")
    return name


def build_table(
    events: Sequence[Any],
    layout: TableLayout,
    *,
    sort_by: str | None = None,
    row_limit: int | None = 100,
    profile_memory: bool = False,
    with_flops: bool = False,
    time_unit: str | None = None,
) -> str:
    """Return the table, with a line break at its end; of no events the empty string.

    Raises AttributeError when events have no `sort_by`.
    """
    if not events:
        return ""
    if sort_by is not None:
        key = attribute(sort_by)
        events = sorted(events, key=lambda event: getattr(event, key), reverse=True)
    table = _Table(events, layout, profile_memory, with_flops, time_unit)
    shown = [event for event in events if not (layout.top_level_events_only and event.cpu_parent is not None)]
    return table.render(shown if row_limit is None or row_limit < 0 else shown[:row_limit])


class _Table:
    """What all rows of a table share: its columns, its totals, the scale of its numbers."""

    def __init__(
        self, events: Sequence[Any], layout: TableLayout, profile_memory: bool, with_flops: bool, time_unit: str | None
    ) -> None:
        self.layout, self.unit, self.memory = layout, time_unit, profile_memory
        self.device = events[0].use_device
        self.device_time = any(event.self_device_time_total > 0 for event in events)
        if self.device_time and not self.device:
            raise UsageError("table: events have times of a device, expected `use_device` to say of which")
        self.device_memory = self.device and any(event.self_device_memory_usage > 0 for event in events)
        self.overloads = any(event.overload_name for event in events)
        self.shapes = any(event.input_shapes for event in events)
        self.nodes = any(event.node_id != -1 for event in events)
        self.total_us = sum(event.self_cpu_time_total for event in events)
        self.device_total_us = sum(event.self_device_time_total for event in events if _counts_for_device(event))
        flops = [event.flops for event in events if with_flops and event.flops and event.flops > 0]
        self.flops_power = _thousands(min(flops)) if flops else None
        self.name_width = _at_most(layout.name_width, max(len(event.key) for event in events) + 4)
        self.shapes_width = _at_most(layout.shapes_width, max(len(str(event.input_shapes)) for event in events) + 4)
        entries = [len(entry) for event in events if event.stack for entry in event.stack]
        self.source_width = _at_most(layout.source_width, max(entries) + 4) if entries else 0
        self.columns = self._columns()

    def _columns(self) -> list[tuple[str, int, str]]:
        """Title, width and side of each column."""
        device = self.device.upper() if self.device else "None"
        titles = ["Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
        if self.device_time:
            titles += [f"Self {device}", f"Self {device} %", f"{device} total", f"{device} time avg"]
        if self.memory:
            titles += ["CPU Mem", "Self CPU Mem"]
            if self.device_memory:
                titles += [f"{device} Mem", f"Self {device} Mem"]
        titles.append("# of Calls")
        if self.nodes:
            titles.append("Node ID")
        columns = [("Name", self.name_width, ">")]
        if self.overloads:
            columns.append(("Overload Name", self.name_width, ">"))
        columns += [(title, COLUMN, ">") for title in titles]
        # PyTorch writes FLOPs below "Source Location" when there are both; here each has its own column
        if self.shapes:
            columns.append(("Input Shapes", self.shapes_width, ">"))
        if self.source_width:
            columns.append(("Source Location", self.source_width, "<"))
        if self.flops_power is not None:
            columns.append((f"Total {_FLOPS[self.flops_power]}", COLUMN, ">"))
        return columns

    def line(self, cells: Sequence[Any]) -> str:
        """One line of the table."""
        columns = zip(cells, self.columns, strict=True)
        return "".join(f"{cell!s:{side}{width}}{GAP}" for cell, (_, width, side) in columns)

    def render(self, events: Sequence[Any]) -> str:
        """The whole table, with `events` as its rows."""
        rule = "".join("-" * width + GAP for _, width, _ in self.columns)
        double = "=" * (len(rule) - len(GAP))
        lines = []
        if self.layout.header is not None:
            lines += [double, self.layout.header]
        if self.layout.top_level_events_only:
            lines += [double, "This report only display top-level ops statistics"]
        lines += [rule, self.line([title for title, _, _ in self.columns]), rule]
        for event in events:
            lines += self._rows(event)
        lines += [rule, f"Self CPU time total: {format_time(self.total_us, self.unit)}"]
        if self.device_time:
            lines.append(f"Self {self.device.upper()} time total: {format_time(self.device_total_us, self.unit)}")
        return "\n".join(lines) + "\n"

    def _rows(self, event: Any) -> list[str]:
        """The event's line, and one for each more function of its stack, with an empty one behind."""
        cells = [self._name(event.key)]
        if self.overloads:
            cells.append(self._name(event.overload_name))
        cells += [*self._times(event), *self._counts(event)]
        if self.shapes:
            cells.append(str(event.input_shapes)[: self.shapes_width])
        if self.source_width:
            cells.append(self._source(event.stack[0]) if event.stack else "")
        if self.flops_power is not None:
            cells.append(f"{event.flops / 1000**self.flops_power:8.3f}" if event.flops and event.flops > 0 else "--")
        lines = [self.line(cells)]
        if self.source_width:
            rest = [self._source(entry) for entry in (event.stack or ())[1:]]
            at = [title for title, _, _ in self.columns].index("Source Location")
            lines += [self.line([entry if place == at else "" for place in range(len(cells))]) for entry in [*rest, ""]]
        return lines

    def _times(self, event: Any) -> list[str]:
        event.self_cpu_percent = format_time_share(event.self_cpu_time_total, self.total_us)
        event.total_cpu_percent = 0 if event.is_async else format_time_share(event.cpu_time_total, self.total_us)
        unit = self.unit
        cells = [
            event.self_cpu_percent,
            format_time(event.self_cpu_time_total, unit),
            event.total_cpu_percent,
            format_time(event.cpu_time_total, unit),
            format_time(event.cpu_time, unit),
        ]
        if self.device_time:
            event.total_device_percent = format_time_share(event.self_device_time_total, self.device_total_us)
            cells += [
                format_time(event.self_device_time_total, unit),
                event.total_device_percent,
                format_time(event.device_time_total, unit),
                format_time(event.device_time, unit),
            ]
        return cells

    def _counts(self, event: Any) -> list[Any]:
        cells: list[Any] = []
        if self.memory:
            cells += [format_memory(event.cpu_memory_usage), format_memory(event.self_cpu_memory_usage)]
            if self.device_memory:
                cells += [format_memory(event.device_memory_usage), format_memory(event.self_device_memory_usage)]
        cells.append(event.count)
        if self.nodes:
            cells.append(event.node_id)
        return cells

    def _name(self, name: str) -> str:
        most = self.layout.name_width
        return name if most is None or len(name) < most - 3 else name[: most - 3] + "..."

    def _source(self, entry: str) -> str:
        if len(entry) <= self.source_width:
            return entry
        kept = entry[len(entry) - self.source_width :]
        return "..." + kept[3:] if len(kept) > 3 else kept


def _at_most(limit: int | None, width: int) -> int:
    return width if limit is None else min(width, limit)


def _thousands(flops: int) -> int:
    """How many times a number of FLOPs can be divided by 1000, within the names that there are."""
    return int(max(0.0, min(math.log10(flops) / 3, len(_FLOPS) - 1)))


def _counts_for_device(event: Any) -> bool:
    if event.device_type is DeviceType.CPU:
        return bool(event.is_legacy)
    return event.device_type in _DEVICES and not event.is_user_annotation
