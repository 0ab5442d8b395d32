"""Communication hooks for `DistributedDataParallel.register_comm_hook`; modules and names of torch's ddp_comm_hooks."""

from resilin.ddp.comm_hooks import (
    ddp_zero_hook,
    debugging_hooks,
    default_hooks,
    onebit_hook,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
    topk_hook,
)
from resilin.ddp.comm_hooks.hook_type import DDPCommHookType, register_ddp_comm_hook

__all__ = [
    "DDPCommHookType",
    "ddp_zero_hook",
    "debugging_hooks",
    "default_hooks",
    "onebit_hook",
    "post_localSGD_hook",
    "powerSGD_hook",
    "quantization_hooks",
    "register_ddp_comm_hook",
    "topk_hook",
]
