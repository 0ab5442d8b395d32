"""Let ranks meet: what an init method means, and handlers for schemes of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from resilin._base import env, host_port
from resilin.distributed.backends import mpi
from resilin.distributed.stores.base import Store
from resilin.distributed.stores.file import FileStore
from resilin.distributed.stores.tcp import TCPStore
from resilin.distributed.work.work import seconds
from resilin.errors import UsageError

Handler = Callable[..., Iterator[tuple[Store, int, int]]]
_HANDLERS: dict[str, Handler] = {}
_OWN = ("env", "tcp", "file", "mpi")


def register_rendezvous_handler(scheme: str, handler: Handler) -> None:
    """Let init methods `scheme://...` be used: `handler(url, timeout=timedelta)` yields (store, rank, world size).

    Rank and number of ranks that were given stand in the query of the url: `?rank=1&world_size=2`. The store belongs to
    the group that is made, which closes it. UsageError for a scheme that is taken.
    """
    if scheme in _OWN or scheme in _HANDLERS:
        raise UsageError(f"register_rendezvous_handler: {scheme}:// has a handler already")
    _HANDLERS[scheme] = handler


def rendezvous(
    url: str, rank: int = -1, world_size: int = -1, timeout: timedelta | float = 300.0, **kwargs: Any
) -> Iterator[tuple[Store, int, int]]:
    """Yields once: the store that an init method means, which the caller closes, this rank, and the number of ranks.

    Rank and number of ranks of the url or the environment are taken when they are not given. Other keywords are for
    handlers of `register_rendezvous_handler`. Raises as `init_process_group`.
    """
    yield store_of(url, rank, world_size, seconds(timeout) or 0.0, **kwargs)


def store_of(init_method: str, rank: int, world_size: int, limit: float, **kwargs: Any) -> tuple[Store, int, int]:
    """The store that an init method means, with the rank and world size it may carry."""
    try:
        url = urlsplit(init_method)
        query = parse_qs(url.query)
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(
            f"init_process_group: expected env://, tcp://host:port or file:///path, got {init_method!r}: {error}"
        ) from None
    if url.scheme in ("env", "tcp", "file"):
        given = {name: _queried(name, query, init_method) for name in ("rank", "world_size") if name in query}
        rank = given.get("rank", rank) if rank < 0 else rank
        world_size = given.get("world_size", world_size) if world_size < 0 else world_size
    if url.scheme == "env":
        if rank < 0:
            rank = _integer("RANK")
        if world_size < 0:
            world_size = _integer("WORLD_SIZE")
        check_rank(rank, world_size)
        given_address = env.require("MASTER_ADDR", "init_method env:// needs the address of rank 0")
        address = host_port.host(given_address, "environment variable MASTER_ADDR")
        port = _integer("MASTER_PORT")
        return TCPStore(address, port, None, rank == 0, limit, multi_tenant=True), rank, world_size
    if url.scheme == "mpi":
        return mpi.meet(limit)
    if url.scheme in _HANDLERS:
        more = urlencode({"rank": rank, "world_size": world_size}) if rank >= 0 or world_size > 0 else ""
        whole = url._replace(query="&".join(part for part in (url.query, more) if part))
        return next(iter(_HANDLERS[url.scheme](whole.geturl(), timeout=timedelta(seconds=limit), **kwargs)))
    if url.scheme not in ("tcp", "file"):
        known = ", ".join(f"{scheme}://" for scheme in (*_OWN, *_HANDLERS))
        raise UsageError(f"init_process_group: unknown init_method {init_method!r}; use one of {known}")
    if rank < 0 or world_size < 1:
        raise UsageError(f"init_process_group({init_method!r}): give rank and world_size")
    check_rank(rank, world_size)
    if url.scheme == "tcp":
        where = host_port.parse(url.netloc, f"init_process_group({init_method!r})", lowest_port=0)
        return TCPStore(where.host, where.port, None, rank == 0, limit, multi_tenant=True), rank, world_size
    if not url.path or url.netloc not in ("", "localhost"):
        raise UsageError(
            f"init_process_group: expected file:///path, with three slashes and an absolute path, got {init_method!r}"
        )
    return FileStore(url.path, world_size, limit), rank, world_size


def meeting_place(init_method: str) -> str:
    """What tells where ranks meet from other places: of `env://` that is in the environment."""
    if not init_method.startswith("env:"):
        return init_method
    return f"{init_method} {env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')}"


def check_rank(rank: int, world_size: int) -> None:
    """UsageError unless there is such a rank."""
    if rank < 0 or world_size < 1 or rank >= world_size:
        raise UsageError(f"init_process_group: rank {rank} of world_size {world_size} is not possible")


def _queried(name: str, query: Mapping[str, list[str]], init_method: str) -> int:
    try:
        return int(query[name][0])
    except ValueError:
        raise UsageError(
            f"init_process_group({init_method!r}): {name}: expected an integer, got {query[name][0]!r}"
        ) from None


def _integer(name: str) -> int:
    value = env.get_int(name)
    if value is None:
        raise UsageError(
            f"environment variable {name} is not set, but init_method env:// needs it (or use elastic-run)"
        )
    return value
