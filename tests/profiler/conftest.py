"""What PyTorch's profiler does and prints, and recordings made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilin._base import trace
from resilin._base.trace import Kind
from resilin._base.trace_ring import Recording, Span
from resilin.profiler.recorded import Recorded, RecordingOptions

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="session")
def pytorch():
    """What PyTorch does: see tests/fixtures/make_torch_profiler.py."""
    return json.loads((FIXTURES / "torch_profiler.json").read_text())


@pytest.fixture(autouse=True)
def nobody_records_afterwards():
    """A test that leaves a profile on fails, and does not disturb the next one."""
    yield
    left = trace.record_with(None)
    assert left is None, "the test left a profile on"


class Made:
    """A recording made by hand: times in microseconds, from 0 to `stop`."""

    def __init__(self):
        self.spans = []

    def span(self, name, start, end, kind=Kind.OP, thread=1, link=-1, **args):
        """Add a span; `end` None: it is open."""
        closed = None if end is None else int(end * 1000)
        number = len(self.spans)
        self.spans.append(
            Span(number, name, kind, int(start * 1000), closed, thread, link, 0, args or None, instant=False)
        )
        return self

    def memory(self, at, nbytes, address=1, thread=1):
        """Add a moment at which memory was taken, or with less than 0 bytes given back."""
        fields = (int(at * 1000), int(at * 1000), thread, address, nbytes, None)
        self.spans.append(Span(len(self.spans), "[memory]", Kind.MEMORY, *fields, instant=True))
        return self

    def recorded(self, stop=1000, **wanted):
        """The recording. The wall clock stood at 1_700_000_000 s when the monotonic one stood at 0."""
        spans = sorted(self.spans, key=lambda span: (span.start_ns, -(span.end_ns or 1 << 63), span.number))
        recording = Recording(spans, {1: "MainThread", 2: "backward"}, 0, 0, 0, 0, 1_700_000_000 * 10**9, 4711)
        return Recorded(recording, 0, stop * 1000, RecordingOptions(**wanted))


@pytest.fixture
def made():
    """An empty recording to be filled by hand."""
    return Made()
