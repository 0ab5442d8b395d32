"""resilin.distributed.pipeline.sync.pipeline. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.pipeline import *
