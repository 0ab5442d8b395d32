"""resilin.distributed.algorithms.ddp_comm_hooks.default_hooks. Written by scripts/type_stubs.py."""

from resilin.ddp.comm_hooks.default_hooks import *
