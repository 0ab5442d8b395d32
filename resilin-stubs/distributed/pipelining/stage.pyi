"""resilin.distributed.pipelining.stage. Written by scripts/type_stubs.py."""

from resilin.pipeline.stage import *
