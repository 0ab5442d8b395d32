"""resilin.accelerator.memory. Written by scripts/type_stubs.py."""

from resilin.accelerator import empty_cache as empty_cache
from resilin.accelerator import get_memory_info as get_memory_info
from resilin.accelerator import max_memory_allocated as max_memory_allocated
from resilin.accelerator import max_memory_reserved as max_memory_reserved
from resilin.accelerator import memory_allocated as memory_allocated
from resilin.accelerator import memory_reserved as memory_reserved
from resilin.accelerator import memory_stats as memory_stats
from resilin.accelerator import reset_peak_memory_stats as reset_peak_memory_stats
