"""A list of events: who called whom, averages, tables and files of it."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from resilin.core.whole_file import write_whole
from resilin.profiler import tables
from resilin.profiler.activities import DeviceType
from resilin.profiler.function_events import FunctionEvent, FunctionEventAvg

_BACKWARD = 1  # scope
_SPACES = str.maketrans(" ;\t\n", "____")


class EventList(list[Any]):
    """FunctionEvents in the order in which they began, or FunctionEventAvgs as `key_averages` gives them."""

    def __init__(
        self,
        events: Iterable[Any] = (),
        *,
        use_device: str | None = None,
        profile_memory: bool = False,
        with_flops: bool = False,
    ) -> None:
        super().__init__(events)
        self._use_device = use_device
        self._profile_memory = profile_memory
        self._with_flops = with_flops
        self._tree_built = False

    def __str__(self) -> str:
        return self.table()

    def _build_tree(self) -> None:
        """Say of each event who called it, drop those that say again what the caller says, give backward its stacks."""
        self._populate_cpu_children()
        self._remove_dup_nodes()
        self._set_backward_stacktraces()
        self._tree_built = True

    def _populate_cpu_children(self) -> None:
        """Make of each event that lies within another one of its thread a child of the innermost such."""
        events = [event for event in self if not event.is_async and event.device_type is DeviceType.CPU]
        events.sort(key=attrgetter("thread"))
        for _, group in itertools.groupby(events, key=attrgetter("thread", "node_id")):
            around: list[FunctionEvent] = []
            for event in sorted(group, key=lambda event: (event.time_range.start, -event.time_range.end)):
                within = event.time_range
                while around:
                    outer = around[-1].time_range
                    if within.start < outer.end and within.end <= outer.end:
                        around[-1].append_cpu_child(event)
                        event.set_cpu_parent(around[-1])
                        break
                    around.pop()
                around.append(event)

    def _remove_dup_nodes(self) -> None:
        """Drop an event that is the only child of one of the same name, which takes its children and kernels."""
        while True:
            again = {
                id(event)
                for event in self
                if event.cpu_parent is not None
                and event.cpu_parent.name == event.name
                and len(event.cpu_parent.cpu_children) == 1
            }
            if not again:
                return
            for event in self:
                parent = event.cpu_parent
                if id(event) in again:
                    parent.cpu_children = event.cpu_children
                    parent.kernels = event.kernels
                    for child in event.cpu_children:
                        child.cpu_parent = parent
            self[:] = [event for event in self if id(event) not in again]

    def _set_backward_stacktraces(self) -> None:
        """Give what ran in backward the stack of the forward operation that it belongs to."""
        nodes: dict[int, FunctionEvent | None] = {}
        stacks: dict[tuple[int, int], Any] = {}
        for event in self:
            if _backward_node(event, nodes) is None and event._stack is not None:
                stacks.setdefault((event.sequence_nr, event.thread), event._stack)
        for event in self:
            node = nodes[id(event)]
            if node is not None:
                assert node.fwd_thread is not None, f"{node.name}: a node of backward names no forward thread"
                event.stack = stacks.get((node.sequence_nr, node.fwd_thread), [])

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of all events outside of their children."""
        total: float = sum(event.self_cpu_time_total for event in self)
        return total

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int | None = 100,
        max_src_column_width: int | None = 75,
        max_name_column_width: int | None = 55,
        max_shapes_column_width: int | None = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """Return the events as a table of text.

        sort_by: an attribute, the largest first: `cpu_time`, `cpu_time_total`, `self_cpu_time_total`,
        `cpu_memory_usage`, `self_cpu_memory_usage`, `count`, or with "device" or "cuda" for "cpu".
        row_limit: -1 or None for all. time_unit: "s", "ms" or "us" for all times; by default each has its own.
        """
        return tables.build_table(
            self,
            tables.TableLayout(
                max_src_column_width, max_name_column_width, max_shapes_column_width, header, top_level_events_only
            ),
            sort_by=sort_by,
            row_limit=row_limit,
            profile_memory=self._profile_memory,
            with_flops=self._with_flops,
            time_unit=time_unit,
        )

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the events for chrome://tracing; `profile.export_chrome_trace` writes what was recorded, and more."""
        device = self._use_device or "cuda"

        def entries() -> Iterable[dict[str, Any]]:
            arrows = itertools.count()
            for event in self:
                if event.trace_name is None:
                    continue
                thread = event.thread
                if event.is_remote:
                    thread = f" node_id:{event.node_id}, thread_id:{event.thread} "
                start = {"name": event.trace_name, "ts": event.time_range.start, "tid": thread, "pid": "CPU functions"}
                yield {**start, "ph": "X", "dur": event.time_range.elapsed_us(), "args": {}}
                for _ in event.kernels:
                    yield {**start, "ph": "s", "id": next(arrows), "cat": f"cpu_to_{device}", "args": {}}

        def write(file: Any) -> None:
            before = b"["
            for entry in entries():
                file.write(before + json.dumps(entry).encode())
                before = b",\n"
            file.write(b"[]" if before == b"[" else b"]")

        write_whole(path, write)

    def supported_export_stacks_metrics(self) -> list[str]:
        """Return what `export_stacks` can count."""
        return [f"self_{device}_time_total" for device in ("cpu", "cuda", "xpu", "privateuse1")]

    def export_stacks(self, path: str | os.PathLike[str], metric: str) -> None:
        """Write one line a call for flame graphs: the functions around it, the outermost first, and whole microseconds.

        Calls without a stack, or of less than a microsecond, are left out. Raises ValueError for an unknown metric.
        """
        if metric not in self.supported_export_stacks_metrics():
            raise ValueError(f"metric should be one of: {self.supported_export_stacks_metrics()}, got {metric!r}")
        attribute = tables.attribute(metric)

        def write(file: Any) -> None:
            shown: dict[str, str] = {}
            for event in self:
                worth = int(getattr(event, attribute))
                functions = event.stack if worth > 0 else None
                if functions:
                    for entry in functions:
                        if entry not in shown:
                            shown[entry] = entry.translate(_SPACES)
                    line = ";".join([shown[entry] for entry in reversed(functions)])
                    file.write(f"{line} {worth}\n".encode())

        write_whole(path, write)

    def key_averages(
        self, group_by_input_shapes: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False
    ) -> EventList:
        """Return the sums over events of one name, in the order in which these came up.

        group_by_input_shapes: apart by the shapes of inputs. group_by_stack_n: apart by so many functions around.
        """
        assert self._tree_built, "key_averages: expected the events of a profile, whose callers are known"
        sums: dict[tuple[str, ...], FunctionEventAvg] = {}
        for event in self:
            parts = [event.key, event.node_id, event.device_type, event.is_legacy, event.is_user_annotation]
            if group_by_overload_name:
                parts.append(event.overload_name)
            if group_by_input_shapes:
                parts.append(event.input_shapes)
            key = (*map(str, parts), *(event.innermost(group_by_stack_n) if group_by_stack_n > 0 else ()))
            sums.setdefault(key, FunctionEventAvg()).add(event)
        found = EventList(
            sums.values(),
            use_device=self._use_device,
            profile_memory=self._profile_memory,
            with_flops=self._with_flops,
        )
        for average in found:
            average.stack = average.innermost(group_by_stack_n)
            if not group_by_input_shapes:
                average.input_shapes = ""
            if not group_by_overload_name:
                average.overload_name = ""
        return found

    def total_average(self) -> FunctionEventAvg:
        """Return the sums over all events, under the key "Total"."""
        total = FunctionEventAvg()
        for event in self:
            total.key = None
            total.add(event)
        total.key = "Total"
        return total


def _backward_node(event: FunctionEvent, known: dict[int, FunctionEvent | None]) -> FunctionEvent | None:
    """The node of backward that the event is, or ran in. known: what was found of others, by id."""
    way: list[FunctionEvent] = []
    around: FunctionEvent | None = event
    while around is not None and around.scope != _BACKWARD and id(around) not in known:
        way.append(around)
        around = around.cpu_parent
    found = around if around is None or around.scope == _BACKWARD else known[id(around)]
    known[id(event)] = found
    for each in way:
        known[id(each)] = found
    return found
