"""Switches recording on and off: a bounded buffer, whoever writes into it, and what is read from it."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
import time

from resilin._base import trace, trace_ring
from resilin.core.machine import span_rings
from resilin.errors import UsageError
from resilin.profiler import remote_spans, source_names
from resilin.profiler.module_spans import ModuleSpans
from resilin.profiler.recorded import Recorded, RecordingOptions, collection_paused

_lock = threading.RLock()  # of two profilers that start at once, one is refused; __del__ may come amid any line


def _is_busy() -> bool:
    return trace.recorder_of(trace.Layer.PROFILE) is not None


def _end_in_child() -> None:
    """A forked child is in no profile: its parent's cannot be stopped there, and would keep it from its own."""
    global _lock
    _lock = threading.RLock()  # of a thread that is not in the child, perhaps
    trace.record_with(None, trace.Layer.PROFILE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_in_child)


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
        if _is_busy():
            gc.collect()  # a profile that nobody can stop any more may wait for it, in cycles
        with _lock:
            if _is_busy():
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

    def __del__(self) -> None:
        if hasattr(self, "_recorder"):
            self.pause()

    def read(self) -> Recorded:
        """Return what was recorded. It costs some microseconds an event."""
        with collection_paused():
            recording = span_rings.read(self._buffer)
        source_names.shorten(recording.spans, sys.path)
        remote_spans.settle(recording)
        return Recorded(recording, self.start_ns, self.stop_ns, self._wanted)
