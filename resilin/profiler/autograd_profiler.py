"""One recording and what is made of it: the names of torch.autograd.profiler. `resilin.profiler` adds schedules."""

from __future__ import annotations

import functools
import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Concatenate, Literal, ParamSpec, TypeVar

from resilin.cuda import is_available
from resilin.profiler import chrome_trace, memory_owners
from resilin.profiler.activities import ProfilerActivity
from resilin.profiler.chrome_trace import About
from resilin.profiler.config import _ExperimentalConfig
from resilin.profiler.event_list import EventList
from resilin.profiler.function_events import FunctionEvent, FunctionEventAvg
from resilin.profiler.memory_owners import Owned
from resilin.profiler.memory_records import MemRecordsAcc
from resilin.profiler.nvtx import emit_itt, emit_nvtx, load_nvprof
from resilin.profiler.record_function import record_function
from resilin.profiler.recorded import Recorded, RecordingOptions, collection_paused
from resilin.profiler.recording import RecordingSession

__all__ = [
    "EventList",
    "FunctionEvent",
    "MemRecordsAcc",
    "emit_itt",
    "emit_nvtx",
    "load_nvprof",
    "profile",
    "record_function",
]

_DEVICES = ("cuda", "xpu", "mtia", "hpu")
_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


def _of_events(
    method: Callable[Concatenate[EventList, _Given], _Returned],
) -> Callable[Concatenate[profile, _Given], _Returned]:
    """A method of a profile that does what `method` does with all of its events."""

    @functools.wraps(method)
    def call(self: profile, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        return method(self._ensure_function_events(), *args, **kwargs)

    return call


class profile:
    """Record all threads of this process from `with` to its end, and tell what happened.

    enabled: with False nothing is recorded. record_shapes, profile_memory, with_stack, with_modules: what is recorded
    beside names and times, at a cost. with_flops: estimate floating-point operations, which records shapes. use_cuda,
    use_device: warn, since devices are not recorded. use_kineto: taken as it is. acc_events: keep the events of
    earlier recordings of this object. custom_trace_id_callback: gives each trace its id. post_processing_timeout_s:
    after so many seconds of work `events()` is given what there is.

    Raises AssertionError when nothing is left to record; entering it UsageError while another profile records.
    """

    def __init__(
        self,
        enabled: bool = True,
        *,
        use_cuda: bool = False,
        use_device: str | None = None,
        record_shapes: bool = False,
        with_flops: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_modules: bool = False,
        use_kineto: bool = False,
        use_cpu: bool = True,
        experimental_config: _ExperimentalConfig | None = None,
        acc_events: bool = False,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
        activity_filters: Mapping[ProfilerActivity, set[str]] | None = None,
    ) -> None:
        self.enabled = enabled
        self.record_shapes = record_shapes or with_flops
        self.with_flops = with_flops
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.with_modules = with_modules
        self.use_cpu = use_cpu
        self.acc_events = acc_events
        self.custom_trace_id_callback = custom_trace_id_callback
        self.post_processing_timeout_s = post_processing_timeout_s
        self.activity_filters = dict(activity_filters or {})
        self.experimental_config = _checked(experimental_config, with_stack)
        self.entered = False
        self.trace_id = ""
        self.recorded: Recorded | None = None
        """What was recorded last; read from the buffer when it is first asked for."""
        self._session: RecordingSession | None = None
        self._finished: RecordingSession | None = None
        self._owned: list[Owned] = []
        self._events: EventList | None = None
        self._earlier: list[FunctionEvent] = []
        self.use_device = None
        if enabled:
            _warn_of_device("cuda" if use_cuda else use_device)
        if use_cuda:
            text = "The attribute `use_cuda` will be deprecated soon, please use ``use_device = 'cuda'`` instead."
            warnings.warn(text, FutureWarning, stacklevel=2)
        if not use_cpu and enabled:
            raise AssertionError("No activities specified for the profiler")
        if post_processing_timeout_s is not None and post_processing_timeout_s < 0:
            raise ValueError("post_processing_timeout_s must be non-negative")

    def __enter__(self) -> profile | None:
        if not self.enabled:
            return None
        if self.entered:
            raise RuntimeError("Profiler context manager is not reentrant")
        self._prepare_trace()
        self._start_trace()
        return self

    def __exit__(self, *exc: object) -> Literal[False]:
        if self.enabled:
            self._stop_trace()
        return False

    def _prepare_trace(self) -> None:
        """Make the buffer, so that starting costs nothing."""
        self.entered = True
        self.trace_id = self.create_trace_id()
        wanted = RecordingOptions(
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
            with_modules=self.with_modules,
        )
        self._session = RecordingSession(wanted, self.experimental_config.buffer_bytes)

    def _start_trace(self) -> None:
        if self._session is None:  # a schedule that records, warms up, and records again
            self._prepare_trace()
        assert self._session is not None
        self._session.start()

    def _stop_trace(self) -> None:
        if self._session is None:
            return
        self._session.stop()
        if self.acc_events and self._events is not None:
            self._earlier = list(self._events)
        self._owned = memory_owners.find() if self.profile_memory else []
        self._finished, self._session = self._session, None
        self._events = self.recorded = None
        if self.acc_events and not self.experimental_config.trace_only:
            self._ensure_function_events()

    def create_trace_id(self) -> str:
        """Return an id for the next trace: what `custom_trace_id_callback` says, or 32 random digits."""
        return self.custom_trace_id_callback() if self.custom_trace_id_callback else f"{uuid.uuid4().int:032X}"

    def toggle_collection_dynamic(self, enabled: bool, activities: Iterable[ProfilerActivity]) -> None:
        """Record nothing from now on, or again. Of anything but the CPU nothing is recorded anyway."""
        if self._session is not None and ProfilerActivity.CPU in set(activities):
            (self._session.resume if enabled else self._session.pause)()

    def _read(self) -> Recorded:
        """What was recorded last."""
        if self.recorded is None:
            if self._finished is None:
                raise AssertionError(
                    "Expected profiling results: nothing was recorded, or the recording has not ended; "
                    "ask in on_trace_ready, or after the `with`"
                )
            self.recorded, self._finished = self._finished.read(), None  # which gives the buffer back
            if self.recorded.recording.dropped:
                text = (
                    f"profiler: {self.recorded.recording.dropped} records did not fit into the buffer of "
                    f"{self.experimental_config.buffer_bytes} bytes, the oldest ones are gone; profile fewer steps, or "
                    "pass experimental_config=_ExperimentalConfig(buffer_bytes=...)"
                )
                warnings.warn(text, RuntimeWarning, stacklevel=4)
        return self.recorded

    def _ensure_function_events(self) -> EventList:
        if self.experimental_config.trace_only:
            raise RuntimeError(
                "events() is not available when trace_only=True in "
                "ExperimentalConfig. Use export_chrome_trace() instead."
            )
        if self._events is None:
            self._events = EventList(
                self._read().events(self.post_processing_timeout_s),
                use_device=self.use_device,
                profile_memory=self.profile_memory,
                with_flops=self.with_flops,
            )
            with collection_paused():
                self._events._build_tree()
            self._events.extend(self._earlier)
            self._earlier = []
        return self._events

    def __repr__(self) -> str:
        return repr(self._ensure_function_events()) if self._is_finished() else "<unfinished resilin.autograd.profile>"

    def __str__(self) -> str:
        return str(self._ensure_function_events()) if self._is_finished() else "<unfinished resilin.autograd.profile>"

    def _is_finished(self) -> bool:
        return self._finished is not None or self.recorded is not None

    @property
    def function_events(self) -> EventList:
        """All events, by start."""
        return self._ensure_function_events()

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of all events outside of their children."""
        return self._ensure_function_events().self_cpu_time_total

    table = _of_events(EventList.table)

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False
    ) -> EventList:
        """Return the sums over events of one name: see `EventList.key_averages`."""
        events = self._ensure_function_events()
        return events.key_averages(group_by_input_shape, group_by_stack_n, group_by_overload_name)

    def total_average(self) -> FunctionEventAvg:
        """Return the sums over all events."""
        return self._ensure_function_events().total_average()

    def export_chrome_trace(
        self,
        path: str | os.PathLike[str],
        metadata: Mapping[str, str] | None = None,
        use_python_export: bool = False,
    ) -> None:
        """Write the last recording in PyTorch's trace format, compressed when `path` ends with ".gz".

        metadata: JSON by key, for the file's head. use_python_export is taken as it is.
        """
        chrome_trace.write(self._read(), path, About(self.trace_id, metadata or {}, self._owned))

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write stacks for flame graphs: see `EventList.export_stacks`. AssertionError without with_stack."""
        if not self.with_stack:
            raise AssertionError("export_stacks() requires with_stack=True")
        self._ensure_function_events().export_stacks(path, metric)


def _checked(config: _ExperimentalConfig | None, with_stack: bool) -> _ExperimentalConfig:
    config = config or _ExperimentalConfig()
    if config.trace_only and with_stack:
        warnings.warn(
            "trace_only=True is incompatible with with_stack=True "
            "(stack traces require event post-processing). Disabling trace_only.",
            stacklevel=3,
        )
        return replace(config, trace_only=False)
    return config


def _warn_of_device(name: str | None) -> None:
    """Warn that a device is not recorded."""
    if name is None:
        return
    if name not in _DEVICES:
        warnings.warn(f"The {name} is not a valid device option.", stacklevel=3)
        return
    if name == "cuda" and is_available():
        text = "what CUDA devices do is not recorded yet, only what the CPU does for it"
    else:
        text = f"{name.upper()} is not available, disabling {name.upper()} profiling"
    warnings.warn(text, stacklevel=3)
