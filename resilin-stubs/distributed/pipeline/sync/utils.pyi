"""resilin.distributed.pipeline.sync.utils. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.utils import *
