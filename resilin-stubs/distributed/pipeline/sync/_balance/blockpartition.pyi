"""resilin.distributed.pipeline.sync._balance.blockpartition. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync._balance.blockpartition import *
