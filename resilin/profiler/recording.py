"""Switches recording on and off: a bounded buffer, whoever writes into it, and what is read from it."""

from __future__ import annotations

import mmap
import sys
import threading
import time

from resilin._base import trace, trace_ring
from resilin.core.machine import span_rings
from resilin.errors import UsageError
from resilin.profiler import remote_spans, source_names
from resilin.profiler.module_spans import ModuleSpans
from resilin.profiler.recorded import Recorded, RecordingOptions, collection_paused

_lock = threading.Lock()  # of two profilers that start at once, one is refused


class RecordingSession:
    """One recording of this process, of all its threads. It is started once and stopped once."""

    def __init__(self, wanted: RecordingOptions, buffer_bytes: int = trace_ring.DEFAULT_BYTES) -> None:
        """Make the buffer. Raises UsageError below 64 KiB."""
        trace_ring.sizes(buffer_bytes)
        self._wanted = wanted
        # pages are taken as they are written; private: what a forked child writes is not mixed in
        self._buffer = mmap.mmap(-1, buffer_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._recorder = span_rings.make_recorder(
            self._buffer,
            record_shapes=wanted.record_shapes or wanted.with_flops,
            with_stack=wanted.with_stack,
            profile_memory=wanted.profile_memory,
            with_modules=wanted.with_modules,
        )
        self._modules: ModuleSpans | None = None
        self.start_ns = 0
        self.stop_ns = 0

    def start(self) -> None:
        """Record from now on. UsageError while another one of this process records."""
        with _lock:
            if trace.recorder_of(trace.Layer.PROFILE) is not None:
                raise UsageError(
                    "profiler: expected one profile at a time, another one is recording in this process; "
                    "stop it first (leave its `with`, or call its stop())"
                )
            self.start_ns = time.monotonic_ns()
            self._record()

    def _record(self) -> None:
        if self._wanted.with_modules or self._wanted.with_stack:
            self._modules = ModuleSpans(self._recorder)
        trace.record_with(self._recorder)

    def pause(self) -> None:
        """Record nothing until `resume`; who records whenever no profile does goes on."""
        with _lock:
            if trace.recorder_of(trace.Layer.PROFILE) is self._recorder:
                trace.record_with(None)
                if self._modules is not None:
                    self._modules.close()
                    self._modules = None

    def resume(self) -> None:
        """Record again. UsageError while another profile records."""
        with _lock:
            recording = trace.recorder_of(trace.Layer.PROFILE)
            if recording not in (None, self._recorder):
                raise UsageError("profiler: another profile began to record while this one was paused; stop it first")
            if recording is None:
                self._record()

    def stop(self) -> None:
        """Record no more."""
        self.pause()
        self.stop_ns = time.monotonic_ns()

    def read(self) -> Recorded:
        """Return what was recorded. It costs some microseconds an event."""
        with collection_paused():
            recording = span_rings.read(self._buffer)
        source_names.shorten(recording.spans, sys.path)
        remote_spans.settle(recording)
        return Recorded(recording, self.start_ns, self.stop_ns, self._wanted)
