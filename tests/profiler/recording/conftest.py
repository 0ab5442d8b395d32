"""Recording for the length of a block."""

import contextlib
import mmap

import pytest

from resilin._base import trace, trace_ring
from resilin.core.kernels.loader import native


class Found:
    """What was recorded: `spans`, once the block has ended."""

    def __init__(self):
        self.spans = []
        self.threads = {}

    def named(self, name):
        """The spans of that name, in the order in which they began."""
        return [span for span in self.spans if span.name == name]

    def names(self, kind=None):
        """The names of all spans, or those of one kind."""
        return [span.name for span in self.spans if kind is None or span.kind == kind]


@pytest.fixture
def recorded():
    """A block that is recorded; options are those of the native recorder."""

    @contextlib.contextmanager
    def record(**options):
        found = Found()
        buffer = mmap.mmap(-1, 8 << 20)
        ring = trace_ring.Ring(buffer)
        trace.record_with(ring if native is None else native.Recorder(buffer, **options))
        try:
            yield found
        finally:
            trace.record_with(None)
            recording = trace_ring.read(buffer)
            found.spans, found.threads = recording.spans, recording.threads

    return record
