"""resilin.distributed.distributed_c10d. Written by scripts/type_stubs.py."""

from resilin.distributed import *
