"""Call functions of other workers and refer to their values, with torch.distributed.rpc's names; docs/rpc.md."""

from resilin.distributed.work.future import Future
from resilin.errors import OwnerLost, PeerLost, RemoteError, RpcError, RpcTimeout
from resilin.rpc import api, backend_registry, constants, functions, options
from resilin.rpc.api import (
    RRef,
    _all_gather,
    _get_current_rpc_agent,
    _is_current_rpc_agent_set,
    _set_rpc_timeout,
    _wait_all,
    get_rpc_timeout,
    get_worker_info,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
    stats,
)
from resilin.rpc.backend_registry import BackendType
from resilin.rpc.channels.base import Block, Packed, TensorChannel
from resilin.rpc.debug import _get_debug_info, _rref_context_get_debug_info
from resilin.rpc.init import _init_rpc_backend, init_rpc, is_available
from resilin.rpc.options import RpcBackendOptions, TensorPipeRpcBackendOptions
from resilin.rpc.published.api import Subscription, publish, subscribe
from resilin.rpc.published.publication import Publication
from resilin.rpc.worker_info import WorkerInfo

__all__ = [
    "BackendType",
    "Block",
    "Future",
    "OwnerLost",
    "Packed",
    "PeerLost",
    "Publication",
    "RRef",
    "RemoteError",
    "RpcBackendOptions",
    "RpcError",
    "RpcTimeout",
    "Subscription",
    "TensorChannel",
    "TensorPipeRpcBackendOptions",
    "WorkerInfo",
    "_all_gather",
    "_get_current_rpc_agent",
    "_get_debug_info",
    "_init_rpc_backend",
    "_is_current_rpc_agent_set",
    "_rref_context_get_debug_info",
    "_set_rpc_timeout",
    "_wait_all",
    "api",
    "backend_registry",
    "constants",
    "functions",
    "get_rpc_timeout",
    "get_worker_info",
    "init_rpc",
    "is_available",
    "options",
    "publish",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "stats",
    "subscribe",
]
