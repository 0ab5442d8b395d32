"""What programs import of the profiler from here."""

from resilin.profiler import ProfilerActivity, _ExperimentalConfig

__all__ = ["ProfilerActivity", "_ExperimentalConfig"]
