"""resilin.distributed.pipelining. Written by scripts/type_stubs.py."""

from resilin.pipeline import *
from resilin.distributed.pipelining import microbatch as microbatch
from resilin.distributed.pipelining import schedules as schedules
from resilin.distributed.pipelining import stage as stage
