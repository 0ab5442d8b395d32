"""Writes a trace that chrome://tracing, Perfetto, TensorBoard and HolisticTraceAnalysis read: PyTorch's format.

Event by event, so that the text is never in memory as a whole. Times are microseconds with three digits, whole
nanoseconds, so spans nest as exactly as they were recorded. Keys are followed by `": "`: HolisticTraceAnalysis finds
the rank by a pattern that wants the blank.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilin._base import span_file
from resilin._base.trace import SpanKind
from resilin.core.whole_file import write_whole
from resilin.profiler.inputs import Inputs
from resilin.profiler.memory_owners import Owned
from resilin.profiler.nesting import Placed
from resilin.profiler.recorded import MEMORY, Recorded, category
from resilin.version import __version__

BASE_S = 7889238  # a quarter of a year; times count from the start of one, which leaves digits for nanoseconds
_LANES = 1000  # a lane beside thread 7 is the "thread" 7001
_LAST_THREAD = (1 << 31) - 1  # the recording itself: viewers show the first thread first
_COMPRESSION = 5  # of gzip: half the time of 9, some percent longer
_BLOCK_BYTES = 1 << 18


@dataclass(frozen=True)
class About:
    """What stands in the file beside the events."""

    trace_id: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Values are JSON."""
    owned: Sequence[Owned] = ()
    """Memory of parameters, gradients and optimizers, for those who draw memory over time."""


def write(recorded: Recorded, path: str | os.PathLike[str], about: About) -> None:
    """Write the trace to `path`, compressed when that ends with ".gz": whole, or not at all.

    Raises FileNotFoundError when there is no such folder, OSError that names `path`.
    """
    path = os.fspath(path)

    def fill(file: Any) -> None:
        if path.endswith(".gz"):
            with gzip.GzipFile("", "wb", _COMPRESSION, file) as packed:
                _fill(packed)
        else:
            _fill(file)

    def _fill(file: Any) -> None:
        block = io.StringIO()
        for text in _texts(recorded, path, about):
            block.write(text)
            if block.tell() >= _BLOCK_BYTES:
                file.write(block.getvalue().encode())
                block = io.StringIO()
        file.write(block.getvalue().encode())

    write_whole(path, fill)


def _texts(recorded: Recorded, path: str, about: About) -> Iterator[str]:
    """The file, piece by piece."""
    base_ns = recorded.wall_ns(recorded.start_ns) // (BASE_S * 10**9) * BASE_S * 10**9
    recording = recorded.recording
    own = {
        "version": __version__,
        "dropped": recording.dropped,
        "lost_arguments": recording.lost_arguments,
        "lost_names": recording.lost_names,
        "boot": span_file.boot(),  # with the next line: what aligns the clocks of ranks on one machine, exactly
        "wall_minus_monotonic_ns": recording.wall_ns - recording.monotonic_ns,
        "paths": [folder for folder in sys.path if folder],  # which names of functions leave out
    }
    if about.owned:
        own["owners"] = [[one.address, one.nbytes, one.category.value] for one in about.owned]
    yield '{\n"schemaVersion": 1,\n"deviceProperties": [],\n'
    yield f'"trace_id": {json.dumps(about.trace_id)},\n'
    for key, value in about.metadata.items():
        yield f"{json.dumps(key)}: {value},\n"
    yield f'"resilin": {json.dumps(own)},\n"host_name": {json.dumps(socket.gethostname())},\n'
    yield f'"displayTimeUnit": "ms",\n"baseTimeNanoseconds": {base_ns},\n"traceEvents": [\n'
    before = ""
    for event in _Events(recorded, base_ns).all():
        yield before + event
        before = ",\n"
    yield f'\n],\n"traceName": {json.dumps(path)}\n}}\n'


def spans(recorded: Recorded) -> Iterator[tuple[Placed, int, dict[str, Any]]]:
    """Yield each span, the thread that it is shown on, and its arguments, as they would be written."""
    events = _Events(recorded, 0)
    for number, one in enumerate(recorded.placed):
        yield one, events.thread(one), events.args(number, one)


def beside_spans(recorded: Recorded, base_ns: int) -> Iterator[str]:
    """Write everything else: names of threads, arrows, memory, the recording. Times count from `base_ns`."""
    yield from _Events(recorded, base_ns).beside_spans()


def microseconds(nanoseconds: int) -> str:
    """Write whole nanoseconds as microseconds, exactly."""
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}"


class _Events:
    """The lines of `traceEvents`."""

    def __init__(self, recorded: Recorded, base_ns: int) -> None:
        self._recorded = recorded
        self._process = recorded.recording.process
        self._shift_ns = recorded.wall_ns(0) - base_ns  # from the monotonic clock to the file's
        self._ends: dict[int, float] = {}  # of spans that may be parents, by number: as a reader adds them up

    def all(self) -> Iterator[str]:
        """Every line, in order: names of threads, spans by start, arrows, memory, the recording itself."""
        yield from self._names()
        for number, one in enumerate(self._recorded.placed):
            yield self._span(number, one)
        yield from self._after_spans()

    def beside_spans(self) -> Iterator[str]:
        """The lines that are no spans."""
        yield from self._names()
        yield from self._after_spans()

    def _after_spans(self) -> Iterator[str]:
        yield from self._arrows()
        yield from self._memory(len(self._recorded.placed))
        yield from self._window()

    def _time(self, monotonic_ns: int) -> str:
        return microseconds(monotonic_ns + self._shift_ns)

    def thread(self, one: Placed) -> int:
        """Return the thread that a span is shown on: its own, or a lane beside it."""
        return one.span.thread * _LANES + one.lane if one.lane else one.span.thread

    def _names(self) -> Iterator[str]:
        start = self._time(self._recorded.start_ns)

        def meta(name: str, thread: int, key: str, value: Any, process: Any = self._process) -> str:
            about = f'"ts": {start}, "pid": {json.dumps(process)}, "tid": {thread}'
            return f'{{"ph": "M", "name": "{name}", {about}, "args": {{"{key}": {json.dumps(value)}}}}}'

        yield meta("process_name", 0, "name", "python")
        yield meta("process_labels", 0, "labels", "CPU")
        yield meta("process_sort_index", 0, "sort_index", self._process)
        known = self._recorded.recording.threads
        threads = {(self.thread(one), one.span.thread, one.lane) for one in self._recorded.placed}
        threads |= {(span.thread, span.thread, 0) for span in self._recorded.memory}
        for shown, thread, lane in sorted(threads):
            beside = f", beside it {lane}" if lane else ""
            yield meta("thread_name", shown, "name", f"thread {thread} ({known.get(thread, 'python')}){beside}")
            yield meta("thread_sort_index", shown, "sort_index", thread * _LANES + lane)
        yield meta("process_sort_index", 0, "sort_index", 0x20000000, "Spans")

    def _span(self, number: int, one: Placed) -> str:
        kind = one.span.kind
        start = self._time(one.start_ns)
        length = self._length(one, float(start))
        return (
            f'{{"ph": "X", "cat": "{category(kind)}", "name": {json.dumps(one.span.name)}, "pid": {self._process}, '
            f'"tid": {self.thread(one)}, "ts": {start}, "dur": {length}, '
            f'"args": {json.dumps(self.args(number, one), default=str)}}}'
        )

    def _length(self, one: Placed, start: float) -> str:
        """As recorded, or a nanosecond less: in a reader's floating-point numbers, too, it ends within its parent.

        And not after its end as a number of its own, at which the next one may begin.
        """
        length_ns, most = one.end_ns - one.start_ns, float(self._time(one.end_ns))
        if one.parent is not None:
            most = min(most, self._ends[one.parent.span.number])
        while length_ns and start + length_ns / 1000 > most:
            length_ns -= 1
        self._ends[one.span.number] = start + length_ns / 1000
        return microseconds(length_ns)

    def args(self, number: int, one: Placed) -> dict[str, Any]:
        """Return a span's arguments; `number`: its place in the file."""
        span = one.span
        args = dict(span.args or {})
        inputs = args.pop("inputs", None)
        if span.kind is SpanKind.PYTHON or span.kind is SpanKind.MODULE:
            around = one.function
            args |= {"Python parent id": around.span.number + 1 if around else None, "Python id": span.number + 1}
            if span.kind is SpanKind.MODULE:
                args["Python module id"] = int(number_at_end(span.name))
        else:
            args = {"External id": span.number + 1, "Record function id": 0, **args}
        if span.kind in (SpanKind.OP, SpanKind.BACKWARD) and span.link >= 0:
            forward = self._recorded.forward_of.get(span.link) if span.kind is SpanKind.BACKWARD else None
            args |= {"Sequence number": span.link, "Fwd thread id": forward.span.thread if forward else 0}
        if inputs is not None:
            given = Inputs(inputs)
            args |= {
                "Concrete Inputs": given.concrete,
                "Input type": given.dtypes,
                "Input Strides": given.strides,
                "Input Dims": given.structured_shapes,
            }
        if one.open:
            args["finished"] = False
        args["Ev Idx"] = number
        return args

    def _arrows(self) -> Iterator[str]:
        """From operations to their nodes in backward."""
        number = 0
        for one in self._recorded.placed:
            forward = self._recorded.forward_of.get(one.span.link) if one.span.kind is SpanKind.BACKWARD else None
            if forward is None or forward.start_ns > one.start_ns:
                continue
            number += 1
            for letter, end, more in (("s", forward, ""), ("f", one, ', "bp": "e"')):
                yield (
                    f'{{"ph": "{letter}", "id": {number}, "pid": {self._process}, "tid": {self.thread(end)}, '
                    f'"ts": {self._time(end.start_ns)}, "cat": "fwdbwd", "name": "fwdbwd"{more}}}'
                )

    def _memory(self, number: int) -> Iterator[str]:
        total = 0
        for place, span in enumerate(self._recorded.memory, number):
            total += span.value
            args = {
                "Total Reserved": 0,
                "Total Allocated": total,
                "Bytes": span.value,
                "Device Id": -1,
                "Device Type": 0,
                "Addr": span.link,
                "finished": False,
                "Ev Idx": place,
                **(span.args or {}),
            }
            yield (
                f'{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "{MEMORY}", "pid": {self._process}, '
                f'"tid": {span.thread}, "ts": {self._time(span.start_ns)}, "args": {json.dumps(args, default=str)}}}'
            )

    def _window(self) -> Iterator[str]:
        start_ns, stop_ns = self._recorded.start_ns, self._recorded.stop_ns
        start = self._time(start_ns)
        yield (
            # PyTorch's process is "Spans" here, at which speedscope ends: it wants numbers
            f'{{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": {self._process}, '
            f'"tid": {_LAST_THREAD}, "ts": {start}, "dur": {microseconds(stop_ns - start_ns)}, '
            f'"args": {{"Op count": 0}}}}'
        )
        yield (
            '{"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", '
            f'"tid": "Trace PyTorch Profiler", "ts": {start}}}'
        )
        stop = self._time(stop_ns)
        yield f'{{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": {stop}}}'


def number_at_end(name: str) -> str:
    """Return the digits behind the last underscore: of "nn.Module: Linear_3" 3; "0" where there are none."""
    digits = name.rpartition("_")[2]
    return digits if digits.isdigit() else "0"
