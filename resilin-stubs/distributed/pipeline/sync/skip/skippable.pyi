"""resilin.distributed.pipeline.sync.skip.skippable. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.skip.skippable import *
