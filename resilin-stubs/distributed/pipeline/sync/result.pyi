"""resilin.distributed.pipeline.sync.result. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.result import *
