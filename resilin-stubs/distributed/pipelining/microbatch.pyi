"""resilin.distributed.pipelining.microbatch. Written by scripts/type_stubs.py."""

from resilin.pipeline.microbatch import *
