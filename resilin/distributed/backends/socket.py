"""Run collectives over one stream socket per pair of ranks.

The native walk (native/stream.hpp) overlaps the steps of a schedule, reduces what arrives while it is in cache, and
sleeps until a fair amount has come. Without native code `exchange` does one step after the other, with numpy's
arithmetic and the same bits, on any POSIX host.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from resilin._base.clock import SYSTEM, Deadline
from resilin.distributed.backends.base import Aborted, judge, judge_sizes
from resilin.distributed.backends.scheduled import Opening, ScheduledBackend, Transfer
from resilin.distributed.connections.connection import Meter, Wire
from resilin.distributed.wire import call_phases, loader, schedules
from resilin.distributed.wire.cost_model import TOGETHER
from resilin.distributed.wire.frames import DESCRIPTOR_BYTES
from resilin.distributed.wire.reduce_op import DTYPE_CODES, ReduceOp, array_bytes
from resilin.distributed.wire.sockets import tune
from resilin.errors import CollectiveMismatch, CollectiveTimeout, PeerLost

_SOCKET_BUFFER_BYTES = 4 << 20
_PIECE_BYTES = 1 << 20  # most bytes per system call, so that both directions of an exchange take turns
_FOREVER_S = 1e9
_FOLLOWING = struct.Struct("<q")  # how many bytes follow a descriptor
_DONE, _GONE, _LATE, _STOPPED, _STUCK, _MISMATCH, _MISFIT = range(7)  # native/stream.hpp: Flow


class SocketBackend(ScheduledBackend):
    """The data connections of one rank. `sockets` maps each peer's number to its connection.

    A `connection.Wire` stays the caller's: it outlives an abort, for the next generation, so nothing here shuts or
    closes it. Other sockets are owned from here on.
    `members` are the group's ranks behind the numbers 0 to size-1, for error messages.
    """

    name = "stream"

    def __init__(
        self, rank: int, size: int, sockets: Mapping[int, socket.socket], members: Sequence[int] | None = None
    ) -> None:
        super().__init__(rank, size, members)
        self._sockets = {peer: sock if isinstance(sock, Wire) else Wire(sock) for peer, sock in sockets.items()}
        self._owned = [wire for peer, wire in self._sockets.items() if wire is not sockets[peer]]
        self._aborted = False
        self._waking = threading.RLock()  # a signal handler may abort while the same thread holds it
        self._wake_r, self._wake_w = os.pipe()  # readable once something other than a socket changed
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        for sock in self._sockets.values():
            sock.setblocking(False)
            tune(sock)
            if sock.family == socket.AF_UNIX:
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        numbers = [self._sockets[peer].fileno() if peer in self._sockets else -1 for peer in range(size)]
        self._native: Any = None if loader.native is None else loader.native.Streams(numbers)
        self._meters: dict[int, Meter] = {}
        for peer, wire in self._sockets.items():
            if self._native is not None:
                sent, received = partial(self._native.sent, peer), partial(self._native.received, peer)
                self._meters[peer] = wire.metered(sent, received)

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend."""
        self._aborted = True
        if (native := self._native) is not None:
            native.stop()
        self._wake()

    def peer_left(self, rank: int) -> None:
        """See Backend. Its data ends with the end of its stream, or where it said (`Wire.ends_at`)."""
        peer = self._members.index(rank) if rank in self._members else -1
        native, meter = self._native, self._meters.get(peer)
        if native is not None and meter is not None and self._sockets[peer].ends_at is not None:
            native.end(peer, self._sockets[peer].end_of(meter))
        self._wake()

    def _wake(self) -> None:
        with self._waking, contextlib.suppress(BlockingIOError):  # full: it wakes anyway
            if self._wake_w >= 0:
                os.write(self._wake_w, b"!")

    def close(self) -> None:
        """See Backend."""
        self._native = None  # and with it its descriptor
        while self._meters:
            peer, meter = self._meters.popitem()
            self._sockets[peer].settle(meter)
        for wire in self._owned:
            wire.close()
        with self._waking:  # forgotten first: after an interrupt here they are not closed twice
            ends, self._wake_r, self._wake_w = {self._wake_r, self._wake_w} - {-1}, -1, -1
            for end in ends:
                os.close(end)

    def flow(
        self,
        transfers: Sequence[Transfer],
        op: ReduceOp | None,
        deadline: Deadline,
        opening: Opening | None = None,
    ) -> None:
        """See ScheduledBackend."""
        if self._native is None or (opening is not None and self._size > TOGETHER):
            super().flow(transfers, op, deadline, opening)
            return
        sends = [(i, t.to, array_bytes(t.out), None) for i, t in enumerate(transfers) if t.out is not None]
        arrivals = [
            (i, t.source, array_bytes(t.into), None if t.own is None else array_bytes(t.own))
            for i, t in enumerate(transfers)
            if t.into is not None
        ]
        dtype = next((DTYPE_CODES[t.own.dtype] for t in transfers if t.own is not None), 0)
        self._walk(sends, arrivals, dtype, ReduceOp.SUM if op is None or op is ReduceOp.AVG else op, deadline, opening)

    def _walk(
        self,
        sends: list[Any],
        arrivals: list[Any],
        dtype: int,
        op: ReduceOp,
        deadline: Deadline,
        opening: Opening | None = None,
    ) -> None:
        left = deadline.left()
        until = SYSTEM.monotonic() + (_FOREVER_S if left is None else left)
        if opening is None:
            status, to, source = self._native.walk(sends, arrivals, dtype, int(op), until)
        else:
            sizes = [] if opening.sizes is None else opening.sizes.reshape(-1).tolist()
            word = opening.mine.pack()
            status, to, source, heard = self._native.open(word, sizes, sends, arrivals, dtype, int(op), until)
        if status == _DONE:
            return
        if status == _MISMATCH:
            judge(enumerate(heard[at : at + DESCRIPTOR_BYTES] for at in range(0, len(heard), DESCRIPTOR_BYTES)))
        if status == _MISFIT:
            judge_sizes(np.frombuffer(heard, np.int64).reshape(self._size, 2, self._size))
        if status == _STOPPED or self._aborted:
            raise Aborted(self._named(to, source))
        if status == _GONE:
            raise self._gone(max(to, source))
        if status == _LATE:
            raise self._late(to, source)
        raise AssertionError(f"a schedule that cannot go on: {sends}, {arrivals}")

    def _open(self, opening: Opening, deadline: Deadline) -> None:
        """See ScheduledBackend. What native code says: the call, how many bytes follow, an all_to_all's sizes.

        Peers with native code let data follow at once, too; this rank does not.
        """
        if self._size > TOGETHER:
            super()._open(opening, deadline)
            return
        word = opening.mine.pack()
        sizes = b"" if opening.sizes is None else opening.sizes.tobytes()
        out = memoryview(word + _FOLLOWING.pack(len(sizes)) + sizes)
        said = {self._rank: word}
        coming = {}
        for to, source in schedules.pairwise(self._rank, self._size):
            head = bytearray(len(word) + _FOLLOWING.size)
            self.exchange(to, out, source, memoryview(head), deadline)
            said[source] = bytes(head[: len(word)])
            (coming[source],) = _FOLLOWING.unpack(head[len(word) :])
        try:
            judge(sorted(said.items()))
            if call_phases.heard:
                call_phases.reached("agreed")
            if opening.sizes is not None:
                table = np.empty((self._size, *opening.sizes.shape), np.int64)
                table[self._rank] = opening.sizes
                for source in coming:
                    self.exchange(None, None, source, array_bytes(table[source]), deadline)
                    coming[source] -= len(sizes)
                judge_sizes(table)
        except CollectiveMismatch:
            for source, size in coming.items():
                waste = memoryview(bytearray(max(0, min(size, _PIECE_BYTES))))
                for start in range(0, size, _PIECE_BYTES):
                    self.exchange(None, None, source, waste[: size - start], deadline)
            raise

    def exchange(
        self, to: int | None, out: memoryview | None, source: int | None, into: memoryview | None, deadline: Deadline
    ) -> None:
        """See ScheduledBackend."""
        if self._native is not None:
            sends = [] if out is None else [(0, to, out, None)]
            self._walk(sends, [] if into is None else [(0, source, into, None)], 0, ReduceOp.SUM, deadline)
            return
        sending = out if out is not None and len(out) else None
        receiving = into if into is not None and len(into) else None
        while sending is not None or receiving is not None:
            moved = False
            if self._aborted:
                raise Aborted(self._named(None if sending is None else to, None if receiving is None else source))
            try:
                if sending is not None and to is not None:
                    count = self._try(to, self._sockets[to].send, sending[:_PIECE_BYTES])
                    moved = count > 0
                    sending = sending[count:] if count < len(sending) else None
                if receiving is not None and source is not None:
                    count = self._try(source, self._sockets[source].recv_into, receiving[:_PIECE_BYTES])
                    moved = moved or count > 0
                    receiving = receiving[count:] if count < len(receiving) else None
            except ValueError as error:  # the socket was closed under us
                raise Aborted from error
            if moved and call_phases.heard:
                call_phases.reached("data")
            if not moved:
                self._wait(to if sending is not None else None, source if receiving is not None else None, deadline)

    def _try(self, peer: int, attempt: Callable[[memoryview], int], piece: memoryview) -> int:
        try:
            count = attempt(piece)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._gone(peer) from error
        if count == 0:
            raise self._gone(peer)
        return count

    def _gone(self, peer: int) -> Exception:
        rank, wire = self._members[peer], self._sockets[peer]
        wire.broken = wire.broken or wire.ends_at is None
        return Aborted() if self._aborted else PeerLost(f"rank {rank} closed the connection", [rank])

    def _wait(self, to: int | None, source: int | None, deadline: Deadline) -> None:
        poller = select.poll()
        poller.register(self._wake_r, select.POLLIN)
        if to is not None:
            poller.register(self._sockets[to], select.POLLOUT)
        if source is not None:
            both = select.POLLIN | (select.POLLOUT if to == source else 0)
            poller.register(self._sockets[source], both)
        left = deadline.left()
        events = poller.poll(None if left is None else left * 1000 + 1)
        if any(fd == self._wake_r for fd, _ in events):
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_r, 4096)
        if deadline.passed():
            if self._aborted:
                raise Aborted(self._named(to, source))
            raise self._late(to, source)

    def _named(self, *peers: int | None) -> set[int]:
        return {self._members[peer] for peer in peers if peer is not None and peer >= 0}

    def _late(self, *peers: int | None) -> CollectiveTimeout:
        late = self._named(*peers)
        names = " and ".join(f"rank {rank}" for rank in sorted(late))
        return CollectiveTimeout(f"{names} did not answer", late)
