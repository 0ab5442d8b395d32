"""Share memory between the ranks of one host: the control segment, peers' arenas, and staging for what lies elsewhere.

Tensors lie in `core.machine.memory`'s arenas, whose descriptors go to each peer once, over its control socket. Memory
from elsewhere is staged through an arena of the group.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from resilin._base import descriptors, host
from resilin._base.clock import Deadline, spell
from resilin.core.machine import memory
from resilin.distributed.backends.base import Aborted
from resilin.distributed.wire import call_phases, loader
from resilin.distributed.wire.frames import Frame
from resilin.distributed.wire.reduce_op import Array
from resilin.errors import CollectiveTimeout, DistNetworkError, PeerLost

_ARENA = struct.Struct("<QQ")  # id, size
_STAGE_ID = 1 << 62  # ids of staging arenas start here; core.machine.memory counts from 0
_STAGE_MIN_BYTES = 1 << 20
_STAGE_BYTES: int = getattr(loader.native, "STAGE_BYTES", 0)
_INLINE_AWAKE_BYTES = 16 << 10
_INLINE_MIN_BYTES = 4096  # smaller tensors are not in arenas
_INLINE_TOTAL_BYTES = 512 << 10
_NOTHING = np.empty(0, np.uint8)
LOST, ABORTED, LEFT = 1, 2, 3  # why the abort word is set

Share = Callable[[int, Frame, bytes, int], bool]
"""(peer, frame, payload, fd): sends a descriptor to a peer; False when that has left the group. PeerLost."""
Place = tuple[int, int]  # arena and offset


class _Stage:
    """Memory of the group for tensors that peers cannot map: one memfd that grows."""

    def __init__(self) -> None:
        self.id = _STAGE_ID
        self.size = 0
        self.fd = -1
        self.bytes: Array = _NOTHING

    def reserve(self, size: int, rank: int) -> None:
        """Make room for `size` bytes; growing starts a new arena. `rank`: of the group, whose memory it is."""
        if size <= self.size:
            return
        self.close()
        self.id += 1
        room = max(_STAGE_MIN_BYTES, 1 << (size - 1).bit_length())
        try:
            self.fd = os.memfd_create("resilin-stage", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, room)
            self.bytes = np.frombuffer(mmap.mmap(self.fd, room), np.uint8)  # unmapped with its last view
        except OSError as error:
            self.close()
            where = f"rank {rank}, making {room} bytes that ranks of this host share"
            raise descriptors.named(error, where) from error
        self.size = room

    def close(self) -> None:
        """Give the memory back; peers' mappings live on until they end."""
        fd, self.fd, self.size, self.bytes = self.fd, -1, 0, _NOTHING
        if fd >= 0:
            os.close(fd)


class SharedMemory:
    """One rank's view of what its host shares. `rank` counts the ranks of the host; `members` are theirs in the group.

    `place` and `stage` are called by one thread at a time, with the segment's calls; all else from any thread.
    """

    def __init__(self, rank: int, members: Sequence[int], share: Share) -> None:
        self._rank = rank
        self._members = list(members)
        self._share = share
        self._segment: Any = None  # guarded by _lock until attached
        self._lock = threading.RLock()  # not the condition, whose methods are no single step for an interrupt
        self._changed = threading.Condition(self._lock)  # an arena was mapped, the segment came, or an abort
        self._early: list[tuple[int, bytes, int]] = []  # guarded by _lock: arenas that came before the segment
        self._stopped: tuple[int, int, int] | None = None  # guarded by _lock: the first abort word, and who is dead
        self._sharing = threading.Lock()
        self._shared: set[tuple[int, int]] = set()  # guarded by _sharing: (rank of the host, arena) that were published
        self._known: set[int] = set()  # arenas that all peers have
        self._heritage: tuple[Any, list[int]] | None = None  # guarded by _lock: see inherit
        self.adopted = 0  # arenas of peers that are mapped since an older generation
        self._stage = _Stage()
        self.on_mapped: Callable[[], None] = _ignore  # told of every arena of a peer that was mapped

    # --- the control segment ---

    def attach(self, deadline: Deadline) -> None:
        """Make the control segment and send it to the peers (rank 0), or wait for it."""
        assert loader.native is not None
        if self._segment is not None:
            return
        if self._rank == 0:
            fd = -1
            try:
                fd = os.memfd_create("resilin-dist", os.MFD_CLOEXEC)
                segment = loader.native.Segment(fd, 0, len(self._members), _inline_bytes(len(self._members)))
                for peer in self._members[1:]:
                    if not self._share(peer, Frame.SEGMENT, b"", fd):
                        raise PeerLost(f"rank {peer} closed the connection", [peer])
                    if call_phases.heard:
                        call_phases.reached("data")
            finally:
                if fd >= 0:
                    os.close(fd)
            self._use(segment)
            return
        with self._lock:
            if not self._changed.wait_for(lambda: self._segment is not None or self._is_stopped(), deadline.left()):
                leader = self._members[0]
                raise CollectiveTimeout(
                    f"rank {leader} sent no control segment within {spell(deadline.seconds)}", [leader]
                )
            if self._segment is None:
                raise Aborted

    def segment(self) -> Any:
        """The native segment. Aborted once it is closed."""
        segment = self._segment
        if segment is None:
            raise Aborted
        return segment

    def holds(self) -> bool:
        """Return whether what this rank mapped of its peers is here for `inherit`, not lost with another attempt."""
        return self._segment is not None or self._heritage is not None

    def inherit(self, before: SharedMemory, ranks: Mapping[int, int]) -> None:
        """Take over what `before` has mapped of its peers, and remember what they have mapped of this process.

        `ranks`: rank in the group of `before` -> rank in this one, of those whose memory stays mapped. The control
        segment is not taken over: whoever is left behind has the old one, and can no longer be heard.
        """
        seats = [-1] * len(before._members)
        for old, new in ranks.items():
            if old in before._members and new in self._members:
                seats[before._members.index(old)] = self._members.index(new)
        with before._lock:
            segment, before._segment = before._segment, None
            heritage, before._heritage = before._heritage, None
            early, before._early = before._early, []
        if segment is not None:
            segment.abort(LEFT, before._members[before._rank], -1)
            self._heritage = segment, seats
        elif heritage is not None:
            self._heritage = heritage[0], [-1 if seat < 0 else seats[seat] for seat in heritage[1]]
        self._shared = {(seats[peer], arena) for peer, arena in before._shared if seats[peer] >= 0}
        self._stage, before._stage = before._stage, self._stage
        for old, payload, fd in early:
            if old in ranks:
                self._early.append((ranks[old], payload, fd))
            else:
                os.close(fd)

    def _use(self, segment: Any) -> None:
        with self._lock:
            heritage, self._heritage = self._heritage, None  # who is interrupted from here on has nothing: see `holds`
            if heritage is not None:
                old, seats = heritage
                self.adopted = segment.adopt(old, seats)
                old.close()
            self._segment = segment
            stopped = self._stopped
            self._changed.notify_all()
        if stopped is not None:  # before there was a word to set
            segment.abort(*stopped)
        while self._early:  # nothing is added once there is a segment; `close` frees those behind one that fails
            self._map(*self._early.pop(0))

    # --- peers' memory ---

    def on_fd(self, rank: int, kind: Frame, payload: bytes, fd: int) -> None:
        """A peer shares the memory behind `fd`, which is ours now."""
        assert loader.native is not None
        if kind == Frame.SEGMENT:
            try:
                self._use(loader.native.Segment(fd, self._rank, len(self._members), 0))
            finally:
                os.close(fd)
            return
        with self._lock:
            if self._segment is None:
                self._early.append((rank, payload, fd))
                return
        self._map(rank, payload, fd)

    def _map(self, rank: int, payload: bytes, fd: int) -> None:
        segment = self._segment
        try:
            if segment is not None:
                if len(payload) != _ARENA.size:
                    raise DistNetworkError(f"rank {rank} described its memory in {len(payload)} bytes")
                identity, size = _ARENA.unpack(payload)
                mapped = segment.add_arena(self._members.index(rank), identity, fd, size)
                if not mapped and self._segment is segment:  # else closed meanwhile: nobody needs it
                    raise DistNetworkError(
                        f"{size} bytes of shared memory of rank {rank} cannot be mapped: its file is shorter, or this "
                        "process has no address space (ulimit -v) or mappings (vm.max_map_count) left"
                    )
        finally:
            os.close(fd)
        with self._lock:
            self._changed.notify_all()
        self.on_mapped()

    def mapped(self, rank: int, arena: int) -> bool:
        """Return whether memory that `rank` of this host has published is here."""
        segment = self._segment
        return segment is not None and segment.view(rank, arena, 0, 1) is not None

    def await_arena(self, arrived: Callable[[], bool], rank: int, left_s: float | None) -> None:
        """Block until `arrived`: memory that `rank` of this host has published is on its way to us."""
        with self._lock:
            if not self._changed.wait_for(lambda: arrived() or self._is_stopped(), left_s):
                owner = self._members[rank]
                raise CollectiveTimeout(f"the memory of rank {owner} did not arrive", [owner])
            if self._is_stopped():
                raise Aborted

    # --- own memory ---

    def place(self, array: Array) -> Place | None:
        """Return where `array` lies, peers informed; None when it must be staged."""
        place = memory.locate(array)
        if place is not None and place[0] not in self._known:
            self._publish(place[0], memory.arena_fd(place[0]), memory.arena_size(place[0]))
        return place

    def _publish(self, arena: int, fd: int, size: int) -> None:
        """Send an arena that a call is about to name for the first time to the peers that do not have it.

        Those that have left need none: what waits for them hears of that by itself, and the others go on.
        """
        if arena in self._known:
            return
        with self._sharing:
            for peer, member in enumerate(self._members):
                if peer == self._rank or (peer, arena) in self._shared:
                    continue
                if self._share(member, Frame.ARENA, _ARENA.pack(arena, size), fd):
                    self._shared.add((peer, arena))
            self._known.add(arena)

    def stage_pieces(self) -> tuple[Array, Place]:
        """Memory through which a tensor can pass in pieces, and where it lies."""
        size = 2 * _STAGE_BYTES
        self._stage.reserve(size, self._members[self._rank])
        self._publish(self._stage.id, self._stage.fd, self._stage.size)
        return self._stage.bytes[:size], (self._stage.id, 0)

    def stage(self, arrays: Sequence[Array]) -> tuple[list[Array], list[Place | None]]:
        """Copies of the arrays in the staging arena, and where they lie. They live until the next call."""
        self._stage.reserve(sum(_aligned(array.nbytes) for array in arrays), self._members[self._rank])
        if self._stage.fd >= 0:
            self._publish(self._stage.id, self._stage.fd, self._stage.size)
        at = 0
        copies: list[Array] = []
        places: list[Place | None] = []
        for array in arrays:
            copy = self._stage.bytes[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
            np.copyto(copy, array)
            copies.append(copy)
            places.append((self._stage.id, at) if array.nbytes else None)
            at += _aligned(array.nbytes)
        return copies, places

    # --- end ---

    def _is_stopped(self) -> bool:
        return self._stopped is not None

    def stop(self, code: int, rank: int, dead: bool) -> None:
        """Set the abort word that every wait reads, for all ranks of the host. `dead`: `rank` writes no more."""
        word = code, rank, self._members.index(rank) if dead and rank in self._members else -1
        with self._lock:
            segment = self._segment
            self._stopped = self._stopped or word
            self._changed.notify_all()
        if segment is not None:
            segment.abort(*word)

    def close(self) -> None:
        """Free everything. No call is running."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()
        self._stage.close()
        with self._lock:
            early, self._early = self._early, []
            heritage, self._heritage = self._heritage, None
        if heritage is not None:
            heritage[0].close()
        for _, _, fd in early:
            with contextlib.suppress(OSError):
                os.close(fd)


def _ignore() -> None:
    """Nobody waits."""


def _inline_bytes(ranks: int) -> int:
    """Up to how many bytes travel in the slots: one barrier, but every rank reads all payloads.

    Where ranks share cores a barrier costs a switch of tasks per rank; else it costs less than copying a few pages.
    """
    most: int = loader.native.INLINE_BYTES if ranks > host.cpu_count() else _INLINE_AWAKE_BYTES  # type: ignore[union-attr]
    return max(_INLINE_MIN_BYTES, min(most, _INLINE_TOTAL_BYTES // ranks) & ~63)


def _aligned(size: int) -> int:
    return (size + 63) & ~63
