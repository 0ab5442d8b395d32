"""resilin.autograd.profiler. Written by scripts/type_stubs.py."""

from resilin.profiler.autograd_profiler import *
