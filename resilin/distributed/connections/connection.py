"""Hold the authenticated connections to one peer, which outlive a group.

Both sockets know where they stand after any interruption: the control socket is read frame by frame, whoever reads it
next goes on in the middle of one, and the data socket counts its bytes. So the next generation can throw away exactly
what the one before has left in them (see `renewal`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from resilin._base import descriptors
from resilin.distributed.connections.handshake import Renewal
from resilin.distributed.connections.listener import Endpoint
from resilin.distributed.wire import sockets
from resilin.distributed.wire.after_fork import track
from resilin.distributed.wire.frames import HEADER, Frame
from resilin.errors import DistNetworkError

MAX_TEXT_BYTES = 64 << 10
READ_BYTES = 64 << 10
_MAX_FDS = 16
_TURNS, _TURN_S = 200, 0.005
T = TypeVar("T")
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Sink(Protocol):
    """Declare where the bytes of a message go (`p2p_matching.Incoming`)."""

    def take(self, receive: Callable[[memoryview], int]) -> int:
        """Let `receive(into)`, which never blocks, read the next bytes: how many it has read."""

    def advance(self, count: int) -> bool:
        """Account for `count` bytes read; True when the message is complete."""

    def left(self) -> int:
        """Return how many bytes are still to come."""


class Waste:
    """A sink for what nobody wants any more."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._bin = memoryview(bytearray(min(size, READ_BYTES)))

    def take(self, receive: Callable[[memoryview], int]) -> int:
        """See Sink."""
        return receive(self._bin[: self._left])

    def advance(self, count: int) -> bool:
        """See Sink."""
        self._left -= count
        return self._left == 0

    def left(self) -> int:
        """See Sink."""
        return self._left


@dataclass(frozen=True, eq=False)
class Meter:
    """Counts of bytes that native code moves over a wire."""

    sent: Callable[[], int]
    received: Callable[[], int]


class Wire(socket.socket):
    """A data socket that counts its bytes: those of its own methods, and those that meters count for others.

    `ends_at` is set once the peer has left for another generation: how many bytes it sent in all. Reading stops there
    as at the end of a file, and sending fails as to a closed socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        track(self).setblocking(False)
        self.sent = 0
        self.received = 0
        self.ends_at: int | None = None
        self.broken = False  # an error or the end of the stream was met, or an interrupt before a byte was counted
        self._meters: list[Meter] = []

    def metered(self, sent: Callable[[], int], received: Callable[[], int]) -> Meter:
        """Count what somebody else moves from now on; both start at 0."""
        self._meters.append(Meter(sent, received))
        return self._meters[-1]

    def end_of(self, meter: Meter) -> int:
        """Return what `meter` shows when the last byte of a peer that left has been received through it."""
        others = sum(each.received() for each in self._meters if each is not meter)
        return max(0, (self.ends_at or 0) - self.received - others)

    def settle(self, *meters: Meter) -> None:
        """Nobody moves bytes through `meters` (none: all) any more: add what they counted."""
        for meter in meters or tuple(self._meters):
            if meter in self._meters:
                sent, received = meter.sent(), meter.received()
                self.sent, self.received = self.sent + sent, self.received + received
                self._meters.remove(meter)  # a signal handler may raise after a call: from here on it is counted once

    def renew(self) -> None:
        """Nobody uses it any more: ready for whoever comes next."""
        self.settle()
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)  # native code sleeps for more

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send as a socket does."""
        if self.ends_at is not None:
            raise BrokenPipeError("the peer left for another generation")
        try:
            count = super().send(data, flags)
            self.sent += count
        except BlockingIOError:
            raise
        except BaseException:
            self.broken = True
            raise
        return count

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive as a socket does."""
        end = self.ends_at
        if end is not None:
            nbytes = min(nbytes or len(buffer), end - self.received)
            if nbytes <= 0:
                return 0
        try:
            count = super().recv_into(buffer, nbytes, flags)
            self.received += count
        except BlockingIOError:
            raise
        except BaseException:
            self.broken = True
            raise
        self.broken = self.broken or (count == 0 and len(buffer) > 0)
        return count

    def shut(self) -> None:
        """Hang up; whoever reads or writes returns."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


class PeerConnection:
    """One peer's connections. Read by one thread at a time; `rank` is the peer's in the group that uses it now."""

    def __init__(self, endpoint: Endpoint, rank: int, sock: socket.socket) -> None:
        self.endpoint = endpoint
        self.rank = rank
        self.sock = sock
        self.wire: Wire | None = None
        self.sending = threading.RLock()  # held while a frame is written; re-entrant: see `write`
        self.sender: int | None = None  # the thread that is in the middle of a frame
        self.stuck = False  # whether that waits for the peer to take bytes
        self.open = True  # whether the peer can hear us, and has not ended its side
        self.torn = False  # a send was given up half-way: the peer can make no sense of what follows
        self.spoiled = False  # something came that makes no sense, or reading was interrupted
        self.goodbye = False
        self.renewal: Renewal | None = None  # the last that came: the peer has left for that generation
        self.arenas: deque[tuple[bytes, int]] = deque()  # descriptors that came between generations; ours
        self._header = bytearray()
        self._frame: tuple[Frame, int, int] | None = None
        self._body = bytearray()
        self._sink: Sink | None = None
        self._fds: deque[int] = deque()
        self._lost_fds = False  # whether the kernel dropped some that came, for want of room in this process
        self._least = sockets.Least(sock)
        track(sock).setblocking(False)
        sockets.tune(sock)

    @property
    def usable(self) -> bool:
        """Return whether the next generation may use it."""
        return self.open and not self.torn and not self.spoiled

    @property
    def has_left(self) -> bool:
        """Return whether the peer has left the group on purpose: with a goodbye, or for another generation."""
        return self.goodbye or self.renewal is not None

    def next_kind(self) -> Frame:
        """The kind of the next frame, left unread. Raises as `next_frame`."""
        return self._carefully(self._next_kind)

    def next_frame(self, message: Callable[[int, int], Sink]) -> tuple[Frame, int, bytes]:
        """Kind, tag and body of the next frame; `message(tag, length)` says where a P2P message goes.

        Raises: BlockingIOError: not all there yet, call again; EOFError, OSError: the peer is gone; DistNetworkError,
        ValueError: what it sent makes no sense.
        """
        return self._carefully(lambda: self._next_frame(message))

    def _carefully(self, read: Callable[[], T]) -> T:
        """`read()`. After anything but a wish to wait, an interrupt say, nobody knows what has been read."""
        try:
            return read()
        except BlockingIOError:
            raise
        except BaseException:
            self.spoiled = True
            raise

    def _next_kind(self) -> Frame:
        if self._frame is None:
            self._fill(self._header, HEADER.size)
            return Frame(HEADER.unpack(self._header)[0])
        return self._frame[0]

    def _next_frame(self, message: Callable[[int, int], Sink]) -> tuple[Frame, int, bytes]:
        if self._frame is None:
            self._fill(self._header, HEADER.size)
            kind, tag, length = HEADER.unpack(self._header)
            self._header.clear()
            self._body.clear()
            self._frame = Frame(kind), tag, length
            if kind == Frame.P2P:
                self._sink = message(tag, length)
            elif length > MAX_TEXT_BYTES:
                raise DistNetworkError(f"rank {self.rank} announced a control frame of {length} bytes")
        kind, tag, length = self._frame
        if self._sink is not None:
            self._pour(self._sink)
        else:
            self._fill(self._body, length)
        self._frame = self._sink = None
        return kind, tag, bytes(self._body)

    def take_fd(self, kind: Frame) -> int:
        """The descriptor that came with a frame; the caller's now."""
        if not self._fds and self._lost_fds:
            raise DistNetworkError(
                f"this process has no file descriptor left to take the memory that rank {self.rank} shares: "
                + descriptors.ADVICE
            )
        if not self._fds:
            raise DistNetworkError(f"rank {self.rank} sent frame {kind.name} without a descriptor")
        return self._fds.popleft()

    def disown(self) -> None:
        """Throw away the rest of a message that is half-way in: its receiver has given up."""
        if self._sink is not None:
            self._sink = Waste(self._sink.left())

    def tell(self, kind: Frame, text: str) -> None:
        """Send a frame without waiting for the peer, which is hung up on instead when it cannot take all of it now."""
        data = text.encode()[:MAX_TEXT_BYTES]
        frame, sent = HEADER.pack(kind, 0, len(data)) + data, 0

        def put() -> None:
            nonlocal sent
            sent = self.sock.send(frame)

        if self.open and self.sender != threading.get_ident():  # else a signal handler has interrupted a frame
            with contextlib.suppress(OSError):
                self.write(lambda: self._take_turn() and not self.torn, put)
        if sent < len(frame):
            self.hang_up()

    def write(self, turn: Callable[[], bool], put: Callable[[], None]) -> None:
        """One frame: `put()`, if `turn()` says so, which acquires `sending`. What `put` raises leaves half a frame.

        Not in the middle of another one of this thread. A signal handler may raise between any two instructions, also
        just after `sending` was acquired and before that is noted anywhere; but the lock itself knows its owner.
        """
        me = threading.get_ident()
        try:
            if turn():
                self.sender = me
                put()
                self.sender = None
        finally:
            if self.sender == me:
                self.torn, self.sender = True, None
            try:  # noqa: SIM105 - `with suppress` begins with a call, after which a handler may raise
                self.sending.release()
            except RuntimeError:  # `turn` did not get it
                pass

    def _take_turn(self) -> bool:
        """Acquire `sending`. False when a thread of this rank is stuck in the middle of a frame."""
        for _ in range(_TURNS):
            if self.sending.acquire(blocking=False):
                return True
            if self.stuck:
                return False
            if self.sending.acquire(timeout=_TURN_S):  # a frame on its way: microseconds, more on a busy machine
                return True
        return False

    def hang_up(self) -> None:
        """The peer hears the end of the control socket; whoever sends there returns with an error."""
        self.open = False
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Hang up on both sockets, as a death would."""
        self.hang_up()
        if self.wire is not None:
            self.wire.shut()

    def close(self) -> None:
        """Free the sockets and the descriptors that came."""
        self.open = False
        self.sock.close()
        self.drop_wire()
        while self._fds:
            os.close(self._fds.popleft())
        while self.arenas:
            os.close(self.arenas.popleft()[1])

    def drop_wire(self) -> None:
        """Close the data socket."""
        if self.wire is not None:
            self.wire.close()
        self.wire = None

    # --- reading ---

    def _fill(self, buffer: bytearray, size: int) -> None:
        while len(buffer) < size:
            data = self._receive(min(size - len(buffer), READ_BYTES))
            if not data:
                raise EOFError
            buffer += data

    def _receive(self, count: int) -> bytes:
        if self.sock.family != socket.AF_UNIX:
            return self.sock.recv(count)
        data, fds, flags, _ = socket.recv_fds(self.sock, count, _MAX_FDS, _CLOEXEC)
        self._fds.extend(fds)
        self._lost_fds = self._lost_fds or bool(flags & socket.MSG_CTRUNC)
        return data

    def _pour(self, sink: Sink) -> None:
        complete = False
        while not complete:
            left = sink.left()
            try:
                count = sink.take(self.sock.recv_into) if left else 0
            except BlockingIOError:
                self._least.set(sockets.fair(left))
                raise
            if count == 0 and left:
                raise EOFError
            complete = sink.advance(count)
        self._least.set(1)
