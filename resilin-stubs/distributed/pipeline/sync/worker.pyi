"""resilin.distributed.pipeline.sync.worker. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.worker import *
