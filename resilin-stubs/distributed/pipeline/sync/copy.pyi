"""resilin.distributed.pipeline.sync.copy. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.copy import *
