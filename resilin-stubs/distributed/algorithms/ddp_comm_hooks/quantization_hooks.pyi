"""resilin.distributed.algorithms.ddp_comm_hooks.quantization_hooks. Written by scripts/type_stubs.py."""

from resilin.ddp.comm_hooks.quantization_hooks import *
