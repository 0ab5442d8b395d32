"""resilin.autograd.profiler_util. Written by scripts/type_stubs.py."""

from resilin.profiler.formatting import format_memory as _format_memory
from resilin.profiler.formatting import format_time as _format_time
from resilin.profiler.formatting import format_time_share as _format_time_share
from resilin.profiler.event_list import EventList as EventList
from resilin.profiler.function_events import EventMetadata as EventMetadata
from resilin.profiler.function_events import FormattedTimesMixin as FormattedTimesMixin
from resilin.profiler.function_events import FunctionEvent as FunctionEvent
from resilin.profiler.function_events import FunctionEventAvg as FunctionEventAvg
from resilin.profiler.function_events import Interval as Interval
from resilin.profiler.function_events import Kernel as Kernel
from resilin.profiler.memory_records import MemRecordsAcc as MemRecordsAcc
_format_memory = _format_memory
_format_time = _format_time
_format_time_share = _format_time_share
