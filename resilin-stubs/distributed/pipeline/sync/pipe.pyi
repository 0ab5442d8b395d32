"""resilin.distributed.pipeline.sync.pipe. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.pipe import *
