"""resilin.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook. Written by scripts/type_stubs.py."""

from resilin.ddp.comm_hooks.ddp_zero_hook import *
