"""resilin.cuda.memory. Written by scripts/type_stubs.py."""

from resilin.cuda import empty_cache as empty_cache
from resilin.cuda import max_memory_allocated as max_memory_allocated
from resilin.cuda import max_memory_reserved as max_memory_reserved
from resilin.cuda import mem_get_info as mem_get_info
from resilin.cuda import memory_allocated as memory_allocated
from resilin.cuda import memory_reserved as memory_reserved
from resilin.cuda import memory_stats as memory_stats
from resilin.cuda import memory_summary as memory_summary
from resilin.cuda import reset_peak_memory_stats as reset_peak_memory_stats
from resilin.cuda import set_per_process_memory_fraction as set_per_process_memory_fraction
