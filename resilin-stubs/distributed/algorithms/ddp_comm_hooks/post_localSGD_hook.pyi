"""resilin.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook. Written by scripts/type_stubs.py."""

from resilin.ddp.comm_hooks.post_localSGD_hook import *
