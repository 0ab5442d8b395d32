"""resilin.distributed.pipeline.sync._balance.profile. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync._balance.profile import *
