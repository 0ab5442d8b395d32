"""Say what carries messages in this process: its queues, and the transports, the preferred first."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from resilin.errors import UsageError
from resilin.rpc.transports import loader
from resilin.rpc.transports.base import Lost, Queues, Transport, WorkerIdentity
from resilin.rpc.transports.native_queues import NativeQueues
from resilin.rpc.transports.thread_queues import ThreadQueues

Make = Callable[[WorkerIdentity, Queues, Lost], Transport]
# name -> where it is; each is loaded by the workers alone that use it
_PLACES = {
    "host": ("resilin.rpc.transports.host", "HostTransport"),
    "zeromq": ("resilin.rpc.transports.zeromq", "ZeroMQTransport"),
    "grpc": ("resilin.rpc.transports.grpc", "GrpcTransport"),
}
_ONLY_NAMED = ("grpc",)  # where options ask for them
_TAKES = {"zeromq": ("encrypt", "num_lanes"), "grpc": ("encrypt", "tls")}  # of the options that `chosen` has


def make_queues() -> Queues:
    """Return the queues of a worker: native ones where there is native code."""
    return NativeQueues() if loader.native is not None else ThreadQueues()


def chosen(
    wanted: tuple[str, ...] | None,
    encrypt: bool | None = None,
    tls: Mapping[str, str] | None = None,
    num_lanes: int | None = None,
) -> list[Make]:
    """Return the transports of those names, the preferred first; None: those of a worker that says nothing.

    encrypt, tls, num_lanes: of those that take them. UsageError for a name that is none here.
    """
    there = [name for name in _PLACES if name != "host" or loader.native is not None]
    for name in wanted or ():
        if name not in there:
            raise UsageError(
                f"TensorPipeRpcBackendOptions(transports=...): there is no {name!r} here; there are {', '.join(there)}"
            )
    names = [name for name in there if name not in _ONLY_NAMED] if wanted is None else wanted
    if tls is not None and "grpc" not in names:
        raise UsageError("TensorPipeRpcBackendOptions(tls=...): is gRPC's; name it in transports=")
    options = {"encrypt": encrypt, "tls": tls, "num_lanes": num_lanes}
    return [_load(name, {option: options[option] for option in _TAKES.get(name, ())}) for name in names]


def _load(name: str, options: Mapping[str, Any]) -> Make:
    module, kind = _PLACES[name]
    return partial(getattr(importlib.import_module(module), kind), **options)
