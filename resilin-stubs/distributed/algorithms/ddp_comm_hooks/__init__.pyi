"""resilin.distributed.algorithms.ddp_comm_hooks. Written by scripts/type_stubs.py."""

from resilin.ddp.comm_hooks import *
from resilin.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook as ddp_zero_hook
from resilin.distributed.algorithms.ddp_comm_hooks import debugging_hooks as debugging_hooks
from resilin.distributed.algorithms.ddp_comm_hooks import default_hooks as default_hooks
from resilin.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_localSGD_hook
from resilin.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD_hook
from resilin.distributed.algorithms.ddp_comm_hooks import quantization_hooks as quantization_hooks
