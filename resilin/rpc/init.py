"""Begin RPC in this process."""

from __future__ import annotations

import contextlib
import logging
import threading
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from resilin._base import env, host_port, log
from resilin._base.clock import Deadline, spell
from resilin.distributed.group.rendezvous import store_of
from resilin.distributed.stores import FileStore, PrefixStore, Store, TCPStore
from resilin.distributed.stores.tcp import ServerGone
from resilin.errors import DistStoreError, RpcError, UsageError, UsageTypeError
from resilin.rpc import backend_registry, current
from resilin.rpc.constants import MEET_S
from resilin.rpc.membership import rounds
from resilin.rpc.options import RpcBackendOptions
from resilin.rpc.worker_info import check_name

_LOG = log.logger("rpc.init")
_END_S = 1.0  # for a store that may be gone, with worker 0
_lock = threading.Lock()
_served: list[Store] = []  # guarded by _lock: this process is its server; others may begin again before it has ended


def is_available() -> bool:
    """Return whether there is RPC: yes."""
    return True


def init_rpc(
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    """Make this process a worker, which can call and be called when this returns.

    name: unique; letters, digits, `_`, `:` and `-`, below 128. rank: its id, unique. world_size: how many workers there
    are, all of which call this; None makes a group that workers join and leave one by one. The store through
    which they meet is that of `rpc_backend_options.init_method`, by default
    MASTER_ADDR and MASTER_PORT.
    Raises: RpcError where RPC is initialized already or a name or id is not unique; UsageError for a bad name or a
    missing rank; SecretRequired where others than this host's processes should come, but the job has no secret.
    """
    if backend is not None and not backend_registry.is_member(backend):
        raise UsageTypeError("Argument backend must be a member of BackendType")
    if rpc_backend_options is not None and not isinstance(rpc_backend_options, RpcBackendOptions):
        raise UsageTypeError("Argument rpc_backend_options must be an instance of RpcBackendOptions")
    if backend is None and rpc_backend_options is not None:
        backend = _backend_for(rpc_backend_options)
    backend = backend_registry.BackendType.TENSORPIPE if backend is None else backend
    options = rpc_backend_options or backend_registry.construct_rpc_backend_options(backend)
    check_name(name)
    if current.agent is not None:
        raise RpcError("RPC is already initialized")
    limit = options.rpc_timeout or MEET_S
    deadline = Deadline(limit)
    gone: ServerGone | None = None
    while True:
        try:
            store, rank = _store(options, rank, world_size or None, deadline.left() or 0.0)
            try:
                store.set_timeout(timedelta(seconds=limit if gone is None else deadline.left() or 0.0))
                place = _place(store, world_size)
                _init_rpc_backend(backend, place, name, rank, world_size or None, options)
            except BaseException:
                store.close()
                raise
            break
        except DistStoreError as error:
            # a process group of rank 0 may have ended just after its store, at the same port, had let us in
            gone = error if isinstance(error, ServerGone) else gone
            if isinstance(error, ServerGone) and rank != 0 and not deadline.passed():
                continue
            if gone is not None:
                raise DistStoreError(
                    f"init_rpc, worker {name!r} (id {rank}): {gone}; no other store of rank 0 came there within "
                    f"{spell(limit)}: did rank 0 end?"
                ) from None
            raise
    with _lock:
        kept, _served[:] = _served[:], []
        if isinstance(store, TCPStore) and rank == 0:
            _served.append(store)
        else:
            current.at_end.append(store.close)
    if world_size:
        current.at_end.append(partial(_end, place, store))
    for each in kept:
        each.close()


def _end(place: Store, store: Store) -> None:
    """Note that a round of a static world is over; where its store is lost, nobody comes to it either."""
    store.set_timeout(timedelta(seconds=_END_S))
    with contextlib.suppress(DistStoreError):
        rounds.end(place)


def _backend_for(options: RpcBackendOptions) -> Any:
    for candidate in backend_registry.BackendType:
        if isinstance(options, type(backend_registry.construct_rpc_backend_options(candidate))):
            if candidate.name != "TENSORPIPE":
                log.event(_LOG, logging.WARNING, "the options choose the RPC backend", backend=candidate.name)
            return candidate
    raise UsageTypeError(f"Could not infer backend for options {options!r:.80}")


def _place(store: Store, world_size: int | None) -> Store:
    """The part of the store in which this round of `init_rpc` meets."""
    if not world_size:  # whoever replaces a worker of a job, in a later generation, comes to those that live
        return PrefixStore("rpc_prefix_dynamic", store)
    return rounds.present(store, env.get("RESILIN_GENERATION") or "")


def _store(options: RpcBackendOptions, rank: int, world_size: int | None, limit: float) -> tuple[Store, int]:
    if world_size is not None:
        store, rank, _ = store_of(options.init_method, rank, world_size, limit)
        return store, rank
    url = urlsplit(options.init_method)
    if rank < 0:
        given = env.get_int("RANK") if url.scheme == "env" else None
        if given is None:
            raise UsageError("init_rpc: rank parameter missing: a group without world_size needs each worker's rank")
        rank = given
    if url.scheme == "file":
        return FileStore(url.path, -1, limit), rank
    if url.scheme == "env":
        address = host_port.host(env.require("MASTER_ADDR", "init_rpc needs the address of rank 0"), "MASTER_ADDR")
        port = int(env.require("MASTER_PORT", "init_rpc needs the port of rank 0"))
    elif url.scheme == "tcp":
        where = host_port.parse(url.netloc, f"init_rpc({options.init_method!r})", lowest_port=0)
        address, port = where.host, where.port
    else:
        raise UsageError(
            f"init_rpc: expected init_method env://, tcp://host:port or file:///path, got {options.init_method!r}"
        )
    return TCPStore(address, port, None, rank == 0, limit, multi_tenant=True), rank


def _init_rpc_backend(
    backend: Any = None,
    store: Any = None,
    name: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Make the agent, with a store that is there."""
    expected: tuple[tuple[Any, type | tuple[type, ...]], ...] = (
        (store, Store),
        (name, str),
        (rank, int),
        (world_size, (int, type(None))),
        (rpc_backend_options, RpcBackendOptions),
    )
    for given, kind in expected:
        if not isinstance(given, kind):
            raise UsageError(f"Argument {given!r:.80} must be of type {kind} but got type {type(given)}")
    if current.agent is not None:
        raise RpcError("RPC is already initialized")
    current.agent = backend_registry.init_backend(
        backend, store=store, name=name, rank=rank, world_size=world_size, rpc_backend_options=rpc_backend_options
    )
