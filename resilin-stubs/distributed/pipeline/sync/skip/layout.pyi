"""resilin.distributed.pipeline.sync.skip.layout. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.skip.layout import *
