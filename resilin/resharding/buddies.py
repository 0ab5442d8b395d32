"""Who keeps a second copy of whose slices, and how it gets there.

node A   0 ─> 2    1 ─> 3        a rank's buddy is on another node where there is one, and every rank is
node B   2 ─> 0    3 ─> 1        the buddy of one: its protégé
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin._base import fault_points, host
from resilin.core.tensor import Tensor
from resilin.distributed.api import records
from resilin.distributed.api.reconfigurable import Lot, Outline
from resilin.distributed.wire.packing import ByteStream
from resilin.errors import CollectiveMismatch, DistError

CHUNK_BYTES = 1 << 20  # of small slices: packed, sent and unpacked while it is in a cache
DIRECT_BYTES = 64 << 10  # slices from here on go as they are: the receiver copies them once, straight from their memory
_HEADER_TAG, _OUTLINE_TAG, _DATA_TAG = ((1 << 31) - 8 + n for n in range(3))  # far from those that people choose


@dataclass(frozen=True, slots=True)
class News:
    """What a rank tells its buddy of the slices that come next: an outline, or what has changed since the last one."""

    outline: Outline | None
    changes: tuple[tuple[str, int, Any], ...] = ()
    """Name of a value, place of an entry in it, and how that entry ends now."""


def choose(hosts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The buddy of every rank, given the ranks of each host. Pure; nobody's when there is one rank: empty.

    Each rank is the buddy of one. With ranks in the order of their hosts, it is the one half of all ranks further on:
    that is another host, unless one has more than half of the ranks (then as many ranks as can be have it elsewhere),
    and ranks that leave together because they are neighbours have their buddies among those that stay.
    """
    order = [rank for host in hosts for rank in host]
    total, largest = len(order), max(map(len, hosts))
    if total < 2:
        return ()
    shift = largest if total // 2 < largest < total else total // 2
    buddies = {rank: order[(place + shift) % total] for place, rank in enumerate(order)}
    return tuple(buddies[rank] for rank in range(total))


class Pairing:
    """This rank's end of the exchange in one group: to its buddy, and from its protégé.

    active: whether there are any.
    """

    def __init__(self, group: dist.ProcessGroup, active: bool = True) -> None:
        self.group = group
        self.buddies = choose(group.topology.hosts()) if active else ()
        self._told: Outline | None = None  # what the buddy knows of the slices that come next
        self._heard: Outline | None = None  # what the protégé's look like

    @property
    def protege(self) -> int:
        """The rank whose buddy this one is. Only where there are several ranks."""
        return self.buddies.index(self.group.rank())

    def exchange(self, own: Lot, room: Callable[[Outline], Lot]) -> Lot:
        """Give `own` to the buddy, receive the protégé's of the same version into the `room` for it: all ranks call it.

        Cost: the bytes of one rank's slices are sent and received, large ones in one message each, small ones packed.
        Raises CollectiveMismatch when the two ranks are not at the same version; else as any collective.
        """
        fault_points.reached("buddy")
        outline = self._swap_outlines(own.outline())
        if outline.version != own.version:
            raise CollectiveMismatch(
                f"divided state, rank {self.group.rank()}: version {own.version} after this step, rank "
                f"{self.protege} has {outline.version}; all ranks must call step() equally often"
            )
        lot = room(outline)
        going, coming = own.arrays(), lot.arrays()
        self._swap_packed(*(ByteStream([one for one in each if one.nbytes < DIRECT_BYTES]) for each in (going, coming)))
        self._swap_direct(*([one for one in each if one.nbytes >= DIRECT_BYTES] for each in (going, coming)))
        fault_points.reached("buddy")
        return lot

    def _swap_outlines(self, own: Outline) -> Outline:
        """Tell the buddy what comes; what comes from the protégé. Names are sent when they have changed."""
        text = records.dump(News, _news(self._told, own))
        header = np.array([*own.version, len(text)], np.int64)
        theirs = np.empty(3, np.int64)
        self._both(header, theirs, _HEADER_TAG)
        *version, size = theirs.tolist()
        if not 0 < size <= host.memory_bytes():
            raise DistError(
                f"divided state, rank {self.group.rank()}: rank {self.protege} announces {size} bytes that say "
                "what its slices are; all ranks must run the same version of resilin"
            )
        body = np.empty(size, np.uint8)
        self._both(np.frombuffer(text, np.uint8), body, _OUTLINE_TAG)
        self._told = own
        news = records.load(News, body, self.protege, self.group)
        try:
            self._heard = _changed(self._heard, news)
        except (LookupError, TypeError) as error:
            raise DistError(
                f"divided state, rank {self.group.rank()}: rank {self.protege} changes what it has not said before "
                f"({type(error).__name__}: {error!s:.200}); all ranks must run the same version of resilin"
            ) from None
        return replace(self._heard, version=(version[0], version[1]))

    def _swap_direct(self, out: Sequence[Any], into: Sequence[Any]) -> None:
        for going, coming in zip_longest(out, into, fillvalue=np.empty(0)):
            self._both(going, coming, _DATA_TAG)
            fault_points.reached("buddy")

    def _swap_packed(self, out: ByteStream, into: ByteStream) -> None:
        sent, received = np.empty((2, min(CHUNK_BYTES, max(out.nbytes, into.nbytes))), np.uint8)
        for start in range(0, max(out.nbytes, into.nbytes), CHUNK_BYTES):
            going = sent[: max(0, min(out.nbytes - start, CHUNK_BYTES))]
            coming = received[: max(0, min(into.nbytes - start, CHUNK_BYTES))]
            out.read(start, start + len(going), going)
            self._both(going, coming, _DATA_TAG)
            into.write(start, coming)
            fault_points.reached("buddy")

    def _both(self, going: Any, coming: Any, tag: int) -> None:
        """Send one array to the buddy while the protégé's comes; empty ones do not travel."""
        work = None
        if going.size:
            to = self.buddies[self.group.rank()]
            work = dist.isend(Tensor._wrap(going), group_dst=to, group=self.group, tag=tag)
        if coming.size:
            dist.recv(Tensor._wrap(coming), group_src=self.protege, group=self.group, tag=tag)
        if work is not None:
            work.wait()


def _news(before: Outline | None, now: Outline) -> News:
    """Counters change in every step, names and extents hardly ever, and cost more than the counters."""
    if before is None or before.covers != now.covers or before.values.keys() != now.values.keys():
        return News(now)
    if list(before.extents.items()) != list(now.extents.items()):  # the order counts: in it the elements come
        return News(now)
    changes = []
    for name, entries in now.values.items():
        former = before.values[name]
        if not (type(entries) is type(former) is tuple and len(entries) == len(former)):
            return News(now)
        for place, (old, new) in enumerate(zip(former, entries, strict=True)):
            if old != new:
                if not (type(old) is type(new) is tuple and new and old[:-1] == new[:-1]):
                    return News(now)
                changes.append((name, place, new[-1]))
    return News(None, tuple(changes))


def _changed(before: Outline | None, news: News) -> Outline:
    """The outline after `news`. LookupError or TypeError where they belong to none that was said `before`."""
    if news.outline is not None:
        return news.outline
    if before is None:
        raise LookupError("nothing")
    values = {**before.values}
    for name, place, end in news.changes:
        entries = values[name]
        values[name] = (*entries[:place], (*entries[place][:-1], end), *entries[place + 1 :])
    return replace(before, values=values)
