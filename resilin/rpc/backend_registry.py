"""Register kinds of agents; this library's is TENSORPIPE, by the name that programs give."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from resilin.distributed.stores import Store
from resilin.errors import RpcError, UsageTypeError
from resilin.rpc.constants import DEFAULT_INIT_METHOD, DEFAULT_RPC_TIMEOUT_SEC
from resilin.rpc.group import start
from resilin.rpc.options import RpcBackendOptions, TensorPipeRpcBackendOptions


class BackendValue(NamedTuple):
    """What makes the options of a kind of agent, and the agent."""

    construct_rpc_backend_options_handler: Callable[..., Any]
    init_backend_handler: Callable[..., Any]


class _Kinds(enum.Enum):
    """The kinds of agents there are."""

    def __repr__(self) -> str:
        return f"BackendType.{self.name}"


def _with(members: dict[str, BackendValue]) -> Any:
    make: Any = _Kinds  # whose functional form type checkers do not know
    made = make("BackendType", members)
    made.__doc__ = _Kinds.__doc__
    return made


BackendType: Any = _with({})


def backend_registered(backend_name: str) -> bool:
    """Return whether there is a kind of agent called `backend_name`."""
    return backend_name in BackendType.__members__


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., Any],
    init_backend_handler: Callable[..., Any],
) -> Any:
    """Add a kind of agent; return its member of `BackendType`, which is a new enum then. RpcError for a taken name.

    construct_rpc_backend_options_handler(rpc_timeout=, init_method=, ...) makes its options, init_backend_handler
    (store=, name=, rank=, world_size=, rpc_backend_options=) the agent.
    """
    global BackendType
    if backend_registered(backend_name):
        raise RpcError(f"RPC backend {backend_name}: already registered")
    value = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    present = {member.name: member.value for member in BackendType}
    BackendType = _with({**present, backend_name: value})
    return BackendType[backend_name]


def construct_rpc_backend_options(
    backend: Any,
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC,
    init_method: str = DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> Any:
    """Return options for agents of the kind `backend`."""
    return backend.value.construct_rpc_backend_options_handler(
        rpc_timeout=rpc_timeout, init_method=init_method, **kwargs
    )


def init_backend(backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Return an agent of the kind `backend`, which serves."""
    return backend.value.init_backend_handler(*args, **kwargs)


def is_member(backend: Any) -> bool:
    """Return whether `backend` is a kind of agent, also of an enum before later ones were registered."""
    return isinstance(backend, _Kinds)


def _start(store: Store, name: str, rank: int, world_size: int | None, rpc_backend_options: RpcBackendOptions) -> Any:
    if not isinstance(store, Store):
        raise UsageTypeError(f"`store` must be a c10d::Store. {store!r:.80}")
    if not isinstance(rpc_backend_options, TensorPipeRpcBackendOptions):
        raise UsageTypeError(
            f"`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`. {rpc_backend_options!r:.80}"
        )
    return start.start(store, name, rank, world_size, rpc_backend_options)


register_backend("TENSORPIPE", TensorPipeRpcBackendOptions, _start)
