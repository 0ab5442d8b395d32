"""Run collectives between processes, with torch.distributed's names. See README.md beside this file.

`group.connect` and `listener.Listener` make groups without a key-value store;
`init_process_group` makes the default group the way PyTorch does.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from resilin.core.tensor import Tensor
from resilin.distributed import algorithms as algorithms
from resilin.distributed import group
from resilin.distributed.api.coalescing import _coalescing_manager, all_gather_coalesced, all_reduce_coalesced
from resilin.distributed.api.collectives import (
    all_gather,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    gather_single,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
    tree_all_reduce,
)
from resilin.distributed.api.experimental import _get_reconfigure_handle, _reconfigure, _supports_reconfigure
from resilin.distributed.api.monitored_barrier import monitored_barrier
from resilin.distributed.api.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from resilin.distributed.api.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from resilin.distributed.api.subgroups import (
    SHRINK_ABORT,
    SHRINK_DEFAULT,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    shrink_group,
    split_group,
)
from resilin.distributed.backends.registry import (
    Backend,
    BackendConfig,
    get_default_backend_for_device,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_ucc_available,
    is_xccl_available,
)
from resilin.distributed.connections import listener
from resilin.distributed.group.default_group import (
    GroupMember,
    _get_process_group_name,
    default_group,
    default_pg_timeout,
    destroy_process_group,
    get_backend,
    get_backend_config,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_pg_count,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    init_process_group,
    is_available,
    is_initialized,
    is_torchelastic_launched,
    set_default_group,
    set_timeout,
    use_group,
)
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.group.rendezvous import register_rendezvous_handler, rendezvous
from resilin.distributed.remote_device import _remote_device
from resilin.distributed.stores import CoordinationStore, FileStore, HashStore, PrefixStore, Store, TCPStore
from resilin.distributed.wire import shard_tree
from resilin.distributed.wire.reduce_op import ReduceOp, _make_nccl_premul_sum, reduce_op, supports_complex
from resilin.distributed.work.future import Future, collect_all, wait_all
from resilin.distributed.work.work import Work
from resilin.errors import DistBackendError, DistError, DistNetworkError, DistStoreError, QueueEmptyError

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.ddp import GradBucket as GradBucket
    from resilin.distributed import autograd as autograd
    from resilin.distributed import checkpoint as checkpoint
    from resilin.distributed import constants as constants
    from resilin.distributed import distributed_c10d as distributed_c10d
    from resilin.distributed import elastic as elastic
    from resilin.distributed import launch as launch
    from resilin.distributed import launcher as launcher
    from resilin.distributed import nn as nn
    from resilin.distributed import optim as optim
    from resilin.distributed import pipeline as pipeline
    from resilin.distributed import pipelining as pipelining
    from resilin.distributed import rpc as rpc
    from resilin.distributed import run as run


class _CallablePackage(ModuleType):
    """Answers as PyTorch's function of this name, too: `torch.dist(a, b)` is a distance."""

    def __call__(self, input: Tensor, other: Tensor, p: float = 2) -> Tensor:
        """Return the p-norm of `input - other`, as `input.dist(other, p)` does."""
        if not isinstance(input, Tensor):
            raise TypeError(f"dist(): expected a Tensor, got {type(input).__name__}")
        distance: Tensor = input.dist(other, p)
        return distance


sys.modules[__name__].__class__ = _CallablePackage

__all__ = [
    "SHRINK_ABORT",
    "SHRINK_DEFAULT",
    "Backend",
    "BackendConfig",
    "CoordinationStore",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "Future",
    "GroupMember",
    "HashStore",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "QueueEmptyError",
    "ReduceOp",
    "Store",
    "TCPStore",
    "Work",
    "_coalescing_manager",
    "_get_process_group_name",
    "_get_reconfigure_handle",
    "_make_nccl_premul_sum",
    "_reconfigure",
    "_remote_device",
    "_supports_reconfigure",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "collect_all",
    "default_group",
    "default_pg_timeout",
    "destroy_process_group",
    "gather",
    "gather_object",
    "gather_single",
    "get_backend",
    "get_backend_config",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "listener",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "register_rendezvous_handler",
    "rendezvous",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_default_group",
    "set_timeout",
    "shard_tree",
    "shrink_group",
    "split_group",
    "supports_complex",
    "tree_all_reduce",
    "use_group",
    "wait_all",
]
