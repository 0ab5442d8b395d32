"""resilin.distributed.pipeline.sync.skip.namespace. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.skip.namespace import *
