"""What PyTorch's `_get_ddp_logging_data` tells, made of `stats()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import resilin.distributed as dist
from resilin.ddp import errors
from resilin.ddp.grad_bucket import Hook
from resilin.distributed.api.join import _JoinConfig
from resilin.nn import Module

_TIMES = {
    "forward_compute_time": "forward_s",
    "backward_compute_time": "backward_s",
    "backward_comm_time": "communication_s",
}


class Logged(Protocol):
    """What is told here of a DistributedDataParallel."""

    module: Module
    process_group: dist.ProcessGroup
    bucket_bytes_cap: int
    broadcast_buffers: bool
    find_unused_parameters: bool
    gradient_as_bucket_view: bool
    static_graph: bool
    _sync_batch_norm: bool
    _comm_hook: Hook | None
    _join_config: _JoinConfig

    def stats(self) -> Mapping[str, Any]:
        """Return what this rank did since construction."""


def logging_data(ddp: Logged) -> dict[str, Any]:
    """PyTorch's names; sizes in bytes, times in nanoseconds (of the last step, with "avg_" the mean of all).

    Times and buckets are 0 and "" where nothing is reduced: in a world of one, and with shards.
    """
    stats = ddp.stats()
    named = [(name, param) for name, param in ddp.module.named_parameters() if param.requires_grad]
    sizes = ", ".join(map(str, stats.get("bucket_bytes", ())))
    rebuilt = bool(stats.get("rebuilt", False))
    steps = stats.get("backwards", 0)
    times = {name: int(1e9 * stats.get(f"last_{key}", 0.0)) for name, key in _TIMES.items()}
    means = {f"avg_{name}": int(1e9 * stats.get(key, 0.0) / max(steps, 1)) for name, key in _TIMES.items()}
    hidden = {
        "backward_compute_comm_overlap_time": _hidden(stats, "last_", 1),
        "avg_backward_compute_comm_overlap_time": _hidden(stats, "", max(steps, 1)),
    }
    return {
        "world_size": stats["world_size"],
        "rank": stats["rank"],
        "module_name": type(ddp.module).__name__,
        "backend_name": str(dist.get_backend(ddp.process_group)),
        "iteration": steps,
        "num_parameter_tensors": len(named),
        "total_parameter_size_bytes": sum(param.numel() * param.element_size() for _, param in named),
        "dtypes": ", ".join(sorted({str(param.dtype) for _, param in named})),
        "bucket_cap_bytes": ddp.bucket_bytes_cap,
        "bucket_sizes": sizes,
        "has_rebuilt_buckets": rebuilt,
        "rebuilt_bucket_sizes": sizes if rebuilt else "",
        "broadcast_buffers": ddp.broadcast_buffers,
        "find_unused_parameters": ddp.find_unused_parameters,
        "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
        "static_graph": ddp.static_graph,
        "has_sync_bn": ddp._sync_batch_norm,
        "comm_hook": "" if ddp._comm_hook is None else errors.hook_name(ddp._comm_hook),
        "join_uneven_inputs": ddp._join_config.enable,
        **times,
        **means,
        **hidden,
    }


def _hidden(stats: Any, prefix: str, steps: int) -> int:
    """Nanoseconds of communication that ran beside backward."""
    seconds = stats.get(f"{prefix}communication_s", 0.0) - stats.get(f"{prefix}exposed_s", 0.0)
    return int(1e9 * seconds / steps)
