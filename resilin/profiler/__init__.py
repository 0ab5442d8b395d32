"""Where time goes: the names of torch.profiler."""

from resilin.profiler.activities import DeviceType, ProfilerActivity, kineto_available, supported_activities
from resilin.profiler.config import _ExperimentalConfig as _ExperimentalConfig
from resilin.profiler.profiler import _KinetoProfile as _KinetoProfile
from resilin.profiler.profiler import profile, tensorboard_trace_handler
from resilin.profiler.record_function import record_function
from resilin.profiler.schedules import ProfilerAction, schedule

__all__ = [
    "DeviceType",
    "ProfilerAction",
    "ProfilerActivity",
    "kineto_available",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]
