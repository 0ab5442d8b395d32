"""Hold what a backend is made from: who is in the group, and ways to talk before (or without) its own connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from resilin._base.clock import Deadline
from resilin._base.framing import MAX_FRAME_BYTES
from resilin.distributed.backends.base import Aborted, Backend
from resilin.distributed.stores.base import Store
from resilin.distributed.wire.reduce_op import Array
from resilin.distributed.wire.tags import SETUP
from resilin.errors import CollectiveTimeout, DistNetworkError, GroupAborted


class Messages(Protocol):
    """A group's own point-to-point messages: those of `ProcessGroup`."""

    def isend(self, array: Array, tensor: Any, to: int, tag: int) -> Any:
        """Send `array` (of `tensor`) to rank `to`: a Work, until whose end it must not change."""

    def receive(self, array: Array, source: int, tag: int, done: Callable[[], None] | None = None) -> Any:
        """Post a receive into `array`: a Work."""


class Peers:
    """Point-to-point bytes between the ranks of a group, over its control sockets. One thread at a time.

    Calls are part of the group's collectives: every rank makes them in the same order.
    """

    def __init__(self, messages: Messages, rank: int, size: int) -> None:
        self._messages = messages
        self._rank = rank
        self._size = size

    def exchange(
        self, to: int | None, out: memoryview | None, source: int | None, into: memoryview | None, deadline: Deadline
    ) -> None:
        """Send `out` to rank `to` while filling `into` from rank `source`, as ScheduledBackend.exchange."""
        works = []
        try:
            if source is not None and into is not None and len(into):
                works.append(self._messages.receive(np.frombuffer(into, np.uint8), source, SETUP))
            if to is not None and out is not None and len(out):
                sent = np.frombuffer(out, np.uint8)
                works.append(self._messages.isend(sent, sent, to, SETUP))
            for work in works:
                work.wait(deadline.left())
        except GroupAborted as error:  # the group knows why
            raise Aborted from error
        except CollectiveTimeout as error:
            names = " and ".join(f"rank {rank}" for rank in sorted(error.ranks))
            raise CollectiveTimeout(f"{names} did not answer", error.ranks) from None

    def all_gather(self, data: bytes, deadline: Deadline) -> list[bytes]:
        """Every rank's `data`, in rank order; sizes may differ. Every rank calls this at the same place.

        Rank 0 collects and sends the whole to each: meant for addresses and the like.
        """
        if self._rank:
            self._put(0, data, deadline)
            return _split(self._get(0, deadline), self._size)
        parts = [data] + [self._get(peer, deadline) for peer in range(1, self._size)]
        whole = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        for peer in range(1, self._size):
            self._put(peer, whole, deadline)
        return parts

    def _put(self, to: int, data: bytes, deadline: Deadline) -> None:
        size = len(data).to_bytes(8, "little")
        self.exchange(to, memoryview(size), None, None, deadline)
        self.exchange(to, memoryview(data), None, None, deadline)

    def _get(self, source: int, deadline: Deadline) -> bytes:
        size = bytearray(8)
        self.exchange(None, None, source, memoryview(size), deadline)
        announced = int.from_bytes(size, "little")
        if announced > MAX_FRAME_BYTES:
            raise DistNetworkError(
                f"rank {source} announced {announced} bytes of addresses, the limit is {MAX_FRAME_BYTES}"
            )
        data = bytearray(announced)
        self.exchange(None, None, source, memoryview(data), deadline)
        return bytes(data)


def _split(whole: bytes, count: int) -> list[bytes]:
    parts, at = [], 0
    for _ in range(count):
        size = int.from_bytes(whole[at : at + 8], "little")
        parts.append(whole[at + 8 : at + 8 + size])
        at += 8 + size
    return parts


@dataclass(frozen=True, kw_only=True)
class BackendContext:
    """One rank's view when a backend is made; equal on all ranks but for `group_rank`. Names as in PyTorch."""

    group_rank: int
    group_size: int
    global_ranks_in_group: Sequence[int]
    """The members' ranks in the world."""
    group_id: str
    """The group's name."""
    generation: int
    """Of the group: a number that grows when ranks join or leave and the group is made anew."""
    device_type: str
    """The tensors it will be given, for which the group made it: "cpu", "cuda"."""
    timeout: timedelta
    """The default limit of a collective."""
    deadline: Deadline
    """When making the backend must be done."""
    peers: Peers
    """The group's own messages: to exchange addresses; or to be all that the backend needs."""
    cpu: Backend | None
    """The group's backend of the CPU, for one of another device: to agree on calls, to exchange sizes."""
    make_store: Callable[[], Store]
    """A key-value store for this backend alone, served by rank 0 and closed with the group. Every rank calls it."""

    @property
    def store(self) -> Store:
        """Make a store, as `make_store()`."""
        return self.make_store()
