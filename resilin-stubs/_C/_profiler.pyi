"""resilin._C._profiler. Written by scripts/type_stubs.py."""

from resilin.profiler import ProfilerActivity as ProfilerActivity
from resilin.profiler.config import _ExperimentalConfig as _ExperimentalConfig
