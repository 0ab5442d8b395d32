"""resilin.distributed.pipeline.sync.skip.tracker. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.skip.tracker import *
