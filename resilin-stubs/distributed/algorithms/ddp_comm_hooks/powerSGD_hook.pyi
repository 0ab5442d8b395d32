"""resilin.distributed.algorithms.ddp_comm_hooks.powerSGD_hook. Written by scripts/type_stubs.py."""

from resilin.ddp.comm_hooks.powerSGD_hook import *
