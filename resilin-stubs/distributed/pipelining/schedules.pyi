"""resilin.distributed.pipelining.schedules. Written by scripts/type_stubs.py."""

from resilin.pipeline.schedules import *
