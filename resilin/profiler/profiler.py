"""Profiles of training: which steps are recorded, and what happens with each recording."""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections.abc import Callable
from typing import Any

from resilin.errors import UsageError
from resilin.profiler import autograd_profiler, schedules
from resilin.profiler.activities import Activities, ProfilerActivity, parse_activities, supported_activities
from resilin.profiler.config import _ExperimentalConfig
from resilin.profiler.distributed_info import distributed_info
from resilin.profiler.event_list import EventList
from resilin.profiler.memory_timeline import MemoryTimeline
from resilin.profiler.record_function import record_function
from resilin.profiler.recorded import STEP
from resilin.profiler.schedules import ProfilerAction, Schedule

_NONE, _WARMUP = ProfilerAction.NONE, ProfilerAction.WARMUP
_RECORD, _SAVE = ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE
_CLEARS = (
    "Warning: Profiler clears events at the end of each cycle. Only events from the current cycle will be reported. "
    "To keep events across cycles, set acc_events=True."
)
_said: set[str] = set()


class _KinetoProfile:
    """Record from `start` to `stop`, again and again; `profile` adds steps."""

    def __init__(
        self,
        *,
        activities: Activities | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: _ExperimentalConfig | None = None,
        execution_trace_observer: Any = None,
        acc_events: bool = False,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
    ) -> None:
        if execution_trace_observer is not None:
            raise UsageError(
                "profile: execution_trace_observer is not supported, there are no execution traces to replay; "
                "pass None, and use export_chrome_trace"
            )
        self.activities = supported_activities()
        self.activity_filters: dict[ProfilerActivity, set[str]] = {}
        if activities is not None:
            self.activities, self.activity_filters = parse_activities(activities)
        self.record_shapes = record_shapes
        self.with_flops = with_flops
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.with_modules = with_modules
        self.experimental_config = experimental_config
        self.execution_trace_observer = None
        self.acc_events = acc_events
        self.custom_trace_id_callback = custom_trace_id_callback
        self.post_processing_timeout_s = post_processing_timeout_s
        self.profiler: autograd_profiler.profile | None = None
        self.mem_tl: MemoryTimeline | None = None
        devices = ("CUDA", "XPU", "MTIA", "HPU")
        self.use_device = next((name.lower() for name in devices if ProfilerActivity[name] in self.activities), None)
        self.preset_metadata: dict[str, str] = {}
        self._trace_metadata: dict[str, str] = {}

    def start(self) -> None:
        """Record from now on."""
        self.prepare_trace()
        self.start_trace()

    def stop(self) -> None:
        """Record no more."""
        self.stop_trace()

    def prepare_trace(self) -> None:
        """Get ready for `start_trace`: all that takes time."""
        if self.profiler is not None and not self.acc_events:
            _warn_once(_CLEARS)
        if self.profiler is None or not self.acc_events:
            self.profiler = autograd_profiler.profile(
                use_cpu=ProfilerActivity.CPU in self.activities,
                use_device=self.use_device,
                record_shapes=self.record_shapes,
                with_flops=self.with_flops,
                profile_memory=self.profile_memory,
                with_stack=self.with_stack,
                with_modules=self.with_modules,
                use_kineto=True,
                experimental_config=self.experimental_config,
                acc_events=self.acc_events,
                custom_trace_id_callback=self.custom_trace_id_callback,
                post_processing_timeout_s=self.post_processing_timeout_s,
                activity_filters=self.activity_filters,
            )
        self.profiler._prepare_trace()

    def start_trace(self) -> None:
        """Record from now on, after `prepare_trace`. UsageError while another profile of this process records."""
        self._made("starting trace")._start_trace()
        for name in ("profile_memory", "with_stack", "record_shapes", "with_modules", "with_flops"):
            if getattr(self, name):
                self._trace_metadata[name] = "1"
        info = distributed_info()
        if info is not None:
            self._trace_metadata["distributedInfo"] = json.dumps(info)
        self._trace_metadata |= self.preset_metadata

    def stop_trace(self) -> None:
        """Record no more."""
        self._made("stopping trace")._stop_trace()

    def _made(self, what: str) -> autograd_profiler.profile:
        if self.profiler is None:
            raise AssertionError(f"Profiler must be initialized before {what}")
        return self.profiler

    def export_chrome_trace(self, path: str | os.PathLike[str], use_python_export: bool = False) -> None:
        """Write the last recording in PyTorch's trace format, compressed when `path` ends with ".gz".

        Whole or not at all: OSError that names `path`, and no file, when the disk is full.
        """
        profiler = self._made("exporting chrome trace")
        profiler.export_chrome_trace(path, self._trace_metadata, use_python_export)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write stacks for flame graphs. metric: "self_cpu_time_total" or "self_cuda_time_total"."""
        self._made("exporting stacks").export_stacks(path, metric)

    def export_memory_timeline(self, path: str | os.PathLike[str], device: str | None = None) -> None:
        """Write how much memory was in use over time, and for what. Needs profile_memory; the device is "cpu".

        A `path` that ends with .html: a page with a picture. .raw.json.gz: each change, as (nanoseconds, action, bytes,
        category). .json, .json.gz: [microseconds, [0, bytes of each category]]. docs/profiler.md says what is known.
        Raises ValueError without profile_memory, or for another device.
        """
        if not self.profile_memory:
            raise ValueError("export_memory_timeline: profile_memory=True required for memory profiling.")
        if device not in (None, "cpu"):
            raise ValueError(f"export_memory_timeline: expected device 'cpu', whose memory is recorded, got {device!r}")
        profiler = self._made("exporting the memory timeline")
        self.mem_tl = MemoryTimeline(profiler._read(), profiler._owned)
        self.mem_tl.write(path)

    def toggle_collection_dynamic(self, enable: bool, activities: Any) -> None:
        """Record nothing from now on, or again: `activities` says of what, ProfilerActivity.CPU."""
        if self.profiler is not None:
            self.profiler.toggle_collection_dynamic(enable, activities)

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False
    ) -> EventList:
        """Return the sums over events of one name, apart by the shapes of inputs and the innermost functions if wanted.

        Shapes need record_shapes, functions with_stack.
        """
        profiler = self._made("getting key averages")
        return profiler.key_averages(group_by_input_shape, group_by_stack_n, group_by_overload_name)

    def events(self) -> EventList:
        """Return all events of the last recording by start."""
        return self._made("accessing events").function_events

    def add_metadata(self, key: str, value: str) -> None:
        """Put a text of the user's at the head of the trace file."""
        self._trace_metadata[key] = json.dumps(value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Put a value of the user's, which is JSON, at the head of the file. Raises ValueError when it is none."""
        self._trace_metadata[key] = _json(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """As `add_metadata_json`, for all traces that are started after this. Raises ValueError when it is no JSON."""
        self.preset_metadata[key] = _json(key, value)


def _json(key: str, value: str) -> str:
    try:
        json.loads(value)
    except ValueError as error:
        raise ValueError(f"metadata {key!r}: expected JSON, got {value!r} ({error}); json.dumps makes it") from None
    return value


def _warn_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=4)


class profile(_KinetoProfile):
    """Record what the program does, in all of its threads, and tell where time went.

    schedule: says for each step what to do (see `schedule`); `step()` begins the next one. Without it, everything is
    recorded. on_trace_ready: called with the profile whenever a recording is ready. activities: groups of things to
    record; what a CUDA device does is left out, asking for it warns. record_shapes: inputs of operations.
    profile_memory: memory taken and given back. with_stack: the Python functions around. with_modules: the modules.
    with_flops: an estimate of floating-point operations. acc_events: `events()` goes over all cycles. use_cuda: older,
    see activities.

    Raises AssertionError when there is nothing to record; starting it UsageError while another profile records.
    """

    def __init__(
        self,
        *,
        activities: Activities | None = None,
        schedule: Schedule | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: _ExperimentalConfig | None = None,
        execution_trace_observer: Any = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
    ) -> None:
        if use_cuda is not None:
            text = "`use_cuda` is deprecated, use `activities` argument instead"
            warnings.warn(text, FutureWarning, stacklevel=2)
        super().__init__(
            activities=activities,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            experimental_config=experimental_config,
            execution_trace_observer=execution_trace_observer,
            acc_events=acc_events,
            custom_trace_id_callback=custom_trace_id_callback,
            post_processing_timeout_s=post_processing_timeout_s,
        )
        if not self.activities:
            raise AssertionError("No valid profiler activities found")
        self.schedule = schedule or schedules.always
        self.record_steps = schedule is not None
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self.step_rec_fn: record_function | None = None
        self.current_action = self._scheduled(0)
        # (before, now) -> what to do in between; now None: the end
        begin, ready = [self.prepare_trace, self.start_trace], [self.stop_trace, self._trace_ready]
        wrong = "Incorrect schedule: {} followed by {}".format
        self.action_map: dict[tuple[ProfilerAction, ProfilerAction | None], list[Callable[[], Any]]] = {
            (_NONE, _NONE): [],
            (_NONE, _WARMUP): [self.prepare_trace],
            (_NONE, _RECORD): begin,
            (_NONE, _SAVE): begin,
            (_WARMUP, _NONE): [lambda: _warn(wrong("WARMUP", "NONE")), self.start_trace, self.stop_trace],
            (_WARMUP, _WARMUP): [],
            (_WARMUP, _RECORD): [self.start_trace],
            (_WARMUP, _SAVE): [self.start_trace],
            (_RECORD, _NONE): [lambda: _warn(wrong("RECORD", "NONE")), self.stop_trace],
            (_RECORD, _WARMUP): [lambda: _warn(wrong("RECORD", "WARMUP")), self.stop_trace],
            (_RECORD, _RECORD): [],
            (_RECORD, _SAVE): [],
            (_SAVE, _NONE): ready,
            (_SAVE, _WARMUP): [*ready, self.prepare_trace],
            (_SAVE, _RECORD): [*ready, *begin],
            (_SAVE, _SAVE): [*ready, *begin],
            (_WARMUP, None): [self.start_trace, self.stop_trace],
            (_RECORD, None): ready,
            (_SAVE, None): ready,
        }

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin with step 0, or after `stop` with the step at which it stopped."""
        self._transit_action(_NONE, self.current_action)
        self._begin_step()

    def stop(self) -> None:
        """End the step, and the recording under way: it is ready."""
        self._end_step()
        self._transit_action(self.current_action, None)

    def step(self) -> None:
        """Say that the next step begins. Raises ValueError, and changes nothing, for what no schedule may return."""
        self._end_step()
        action = self._scheduled(self.step_num + 1)
        self.step_num += 1
        before, self.current_action = self.current_action, action
        self._transit_action(before, action)
        self._begin_step()

    def _begin_step(self) -> None:
        if self.record_steps:
            self.step_rec_fn = record_function(f"{STEP}{self.step_num}")
            self.step_rec_fn.__enter__()

    def _end_step(self) -> None:
        marked, self.step_rec_fn = self.step_rec_fn, None
        if marked is not None:
            marked.__exit__(None, None, None)

    def _scheduled(self, step: int) -> ProfilerAction:
        action = self.schedule(step)
        if action is ProfilerAction.DEVICE_STOPPED:
            raise ValueError(
                "ProfilerAction.DEVICE_STOPPED is set internally by the "
                "profiler and must not be returned by a user-provided schedule"
            )
        return action

    def set_custom_trace_id_callback(self, callback: Callable[[], str] | None) -> None:
        """Let `callback` give the next traces their ids."""
        self.custom_trace_id_callback = callback
        if self.profiler is not None:
            self.profiler.custom_trace_id_callback = callback

    def get_trace_id(self) -> str | None:
        """Return the current trace's id, None before the first."""
        return None if self.profiler is None else self.profiler.trace_id

    def _trace_ready(self) -> None:
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _transit_action(self, before: ProfilerAction, now: ProfilerAction | None) -> None:
        for act in self.action_map.get((before, now), ()):
            act()


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False, use_python_export: bool = False
) -> Callable[[_KinetoProfile], None]:
    """Return an `on_trace_ready` that writes each trace to a file of `dir_name`, a folder that it makes.

    Its name is `<worker_name>.<nanoseconds>.pt.trace.json`, with .gz when compressed; worker_name is by default
    `<host>_<process>`. The training goes on when a trace cannot be written: that is warned of, with the reason.
    Raises RuntimeError when the folder cannot be made.
    """

    def write(profiler: _KinetoProfile) -> None:
        try:
            os.makedirs(dir_name, exist_ok=True)
        except OSError as error:
            raise RuntimeError(f"Can't create directory: {dir_name} ({error})") from error
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        path = os.path.join(dir_name, f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}")
        try:
            profiler.export_chrome_trace(path, use_python_export=use_python_export)
        except OSError as error:
            warnings.warn(f"profiler: no trace at {path}, {error}; the training goes on", RuntimeWarning, stacklevel=2)

    return write
