"""Choose the backend of a group: a pure function of its endpoints, so that all ranks choose alike."""

from __future__ import annotations

from collections.abc import Mapping

from resilin.distributed.backends.base import Backend
from resilin.distributed.backends.hierarchical import HierarchicalBackend
from resilin.distributed.backends.shm.collectives import ShmBackend
from resilin.distributed.backends.shm.memory import Share
from resilin.distributed.backends.socket import SocketBackend
from resilin.distributed.connections.connection import Wire
from resilin.distributed.connections.full_mesh import Topology


def choose(topology: Topology, rank: int, data: Mapping[int, Wire], share: Share) -> Backend:
    """Shared memory on one host, sockets when no two ranks share memory, else the composition of both."""
    size = len(topology.endpoints)
    hosts = topology.hosts()
    if size > 1 and len(hosts) == 1:
        return ShmBackend(rank, size, share)
    flat = SocketBackend(rank, size, data)
    if len(hosts) == size or size == 1:
        return flat
    mine = next(members for members in hosts if rank in members)
    local = ShmBackend(mine.index(rank), len(mine), share, mine) if len(mine) > 1 else None
    return HierarchicalBackend(rank, hosts, flat, local)


def shared_memory_of(backend: Backend) -> ShmBackend | None:
    """The part of `backend`, one that `choose` made, that shares memory with other ranks."""
    found = backend.local if isinstance(backend, HierarchicalBackend) else backend
    return found if isinstance(found, ShmBackend) else None


def inherit(after: Backend, before: Backend, ranks: Mapping[int, int]) -> None:
    """Let `after` use the memory that `before` and its peers have mapped; `before` is of no use afterwards.

    `ranks`: of those that have both groups and kept their mappings, rank in `before` -> rank in `after`.
    """
    one, two = shared_memory_of(before), shared_memory_of(after)
    if one is not None and two is not None:
        two.inherit(one, ranks)
