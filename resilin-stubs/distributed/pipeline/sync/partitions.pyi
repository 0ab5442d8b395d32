"""resilin.distributed.pipeline.sync.partitions. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.partitions import *
