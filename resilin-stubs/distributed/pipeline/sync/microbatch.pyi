"""resilin.distributed.pipeline.sync.microbatch. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.microbatch import *
