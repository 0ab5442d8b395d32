"""Options that PyTorch calls experimental, and what they do here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilin._base.trace_ring import DEFAULT_BYTES


@dataclass(frozen=True)
class _ExperimentalConfig:
    """`experimental_config` of a profile. What is not told of here is taken and does nothing."""

    profiler_metrics: Sequence[str] = ()
    profiler_measure_per_kernel: bool = False
    verbose: bool = False
    performance_events: Sequence[str] = ()
    enable_cuda_sync_events: bool = False
    adjust_profiler_step: bool = False
    disable_external_correlation: bool = False
    profile_all_threads: bool = False
    """All threads of the process are always recorded."""
    capture_overload_names: bool = False
    record_python_gc_info: bool = False
    expose_kineto_event_metadata: bool = False
    custom_profiler_config: str = ""
    adjust_timestamps: bool = False
    trace_only: bool = False
    """Files of the trace are all that is wanted: `events()` raises."""
    buffer_bytes: int = DEFAULT_BYTES
    """How much memory a recording may take, at least 65536. Once it is full, new events take the place of old ones."""
