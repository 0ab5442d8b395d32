"""resilin.distributed.pipeline.sync._balance. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync._balance import *
from resilin.distributed.pipeline.sync._balance import blockpartition as blockpartition
from resilin.distributed.pipeline.sync._balance import profile as profile
