"""Communication hooks for `DistributedDataParallel.register_comm_hook`; names of torch's ddp_comm_hooks."""

from resilin.ddp.comm_hooks import default_hooks

__all__ = ["default_hooks"]
