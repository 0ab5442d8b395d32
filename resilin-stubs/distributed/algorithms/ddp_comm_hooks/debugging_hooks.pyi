"""resilin.distributed.algorithms.ddp_comm_hooks.debugging_hooks. Written by scripts/type_stubs.py."""

from resilin.ddp.comm_hooks.debugging_hooks import *
