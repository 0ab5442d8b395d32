"""resilin.distributed.pipeline.sync.checkpoint. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.checkpoint import *
