"""Take a connection that is kept from one generation into the next, in steps that never block.

    1. each end sends RENEW on the control socket: which generation, as which rank, how many bytes it has put into the
       data socket so far; nothing of the old generation follows it
    2. each end throws away what comes before the other's RENEW, and as many bytes of the data socket as were announced
    3. each end puts a fence into the data socket, made with the job's secret for this generation and these two ranks,
       and finds the other's where it must be

What an older attempt announced is skipped. Neither end begins the new generation before it has the other's RENEW.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import threading
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING

from resilin.distributed.connections.connection import PeerConnection, Waste
from resilin.distributed.connections.handshake import FENCE_BYTES, Renewal
from resilin.distributed.wire.frames import HEADER, Frame
from resilin.errors import HandshakeError

if TYPE_CHECKING:
    import socket

Wants = list[tuple["socket.socket", int]]  # sockets and the selectors events to wait for
_BIN_BYTES = 256 << 10


class Unusable(Exception):
    """The peer has given this connection up: a fresh one takes its place, if the peer lives."""


class Handover:
    """One connection on its way. Call `step` whenever a socket has had the event that the last step asked for.

    `data`: whether the new group uses the data socket. Where one end has none that works, both drop it.
    """

    def __init__(self, link: PeerConnection, mine: Renewal, secret: str, data: bool) -> None:
        self.link = link
        self.mine = mine
        self.theirs: Renewal | None = None
        self.older = -1
        """The last older generation of the group that the peer was heard to make."""
        self._secret = secret
        self._data = data
        body = mine.pack()
        self._out = memoryview(HEADER.pack(Frame.RENEW, 0, len(body)) + body)
        self._me = threading.get_ident()
        self._fence_out = memoryview(b"")
        self._fence_in = bytearray()
        self._waste_bytes = 0

    def step(self) -> Wants | None:
        """Go on: return what to wait for (nothing: step again soon), or None when both ends are in the new generation.

        Raises: Unusable; HandshakeError when the peer makes another generation of it; OSError, EOFError when the data
        socket ended in the middle.
        """
        link = self.link
        if self.theirs is None:
            told = self._tell()
            if not self._hear():
                return [] if told is None else [(link.sock, EVENT_READ | (EVENT_WRITE if not told else 0))]
            self._begin_fence()
        if not self._tell():
            return [(link.sock, EVENT_WRITE)] if self._holds else []
        return self._pass_fence()

    def give_up(self, text: str) -> None:
        """This attempt is over: the peer hears why, and another one may follow on the same connection."""
        half = self._holds  # in the middle of the frame, unless nothing of it was sent
        if half:
            self.link.torn, self.link.sender = True, None
        with contextlib.suppress(RuntimeError):  # also where an interrupt came between taking it and `_holds`
            self.link.sending.release()
        if half:
            self.link.hang_up()
        elif not self._out:
            self.link.tell(Frame.ABORT, text)

    @property
    def _holds(self) -> bool:
        return self.link.sender == self._me

    def _tell(self) -> bool | None:
        """Send RENEW: whether all of it is gone; None while another thread is in the middle of a frame."""
        if not self._out:
            return True
        if not self._holds:
            if not self.link.sending.acquire(blocking=False):
                return None
            self.link.sender = self._me
        try:
            self._out = self._out[self.link.sock.send(self._out) :]
        except BlockingIOError:
            return False
        except OSError as error:
            self._release()
            self._out = memoryview(b"")
            self._hear()  # what it said before it left: that it was given other members, perhaps
            raise Unusable(str(error)) from error
        if not self._out:
            self._release()
        return not self._out

    def _release(self) -> None:
        self.link.sender = None
        self.link.sending.release()

    def _hear(self) -> bool:
        """Read up to the peer's RENEW for this generation; False when it is not there yet."""
        link = self.link
        while not self._matches(link.renewal):
            link.renewal = None
            try:
                kind, _, body = link.next_frame(lambda tag, length: Waste(length))
            except BlockingIOError:
                return False
            except (OSError, EOFError) as error:
                self._unusable(str(error) or "it closed the connection")
            if kind == Frame.RENEW:
                link.renewal = Renewal.parse(body)
            elif kind == Frame.ARENA:
                link.arenas.append((body, link.take_fd(kind)))
            elif kind == Frame.SEGMENT:
                os.close(link.take_fd(kind))
            elif kind == Frame.BYE:
                self._unusable("it said goodbye")
        self.theirs, link.renewal = link.renewal, None
        return True

    def _unusable(self, why: str) -> None:
        if self._holds:
            self._release()
        raise Unusable(why)

    def _matches(self, heard: Renewal | None) -> bool:
        mine = self.mine
        if heard is None:
            return False
        if heard.generation > mine.generation:
            raise HandshakeError(
                f"rank {mine.target} is at generation {heard.generation} of group {heard.group!r} already, generation "
                f"{mine.generation} is over"
            )
        if (heard.group, heard.generation) != (mine.group, mine.generation):
            self.older = heard.generation if heard.group == mine.group else self.older
            return False
        if (heard.source, heard.target, heard.members) != (mine.target, mine.source, mine.members):
            raise HandshakeError(
                f"rank {mine.target} makes generation {mine.generation} of group {mine.group!r} of other members, or "
                "in another order: give the same list on every rank"
            )
        return True

    def _begin_fence(self) -> None:
        assert self.theirs is not None
        link = self.link
        if self._data and link.wire is not None and self.theirs.sent >= 0 and self.mine.sent >= 0:
            link.wire.ends_at = None
            self._fence_out = memoryview(self.mine.fence(self._secret))
            self._waste_bytes = self.theirs.sent - link.wire.received
        else:
            link.drop_wire()

    def _pass_fence(self) -> Wants | None:
        wire, link = self.link.wire, self.link
        if wire is None:
            return None
        wants = 0
        try:
            while self._fence_out:
                self._fence_out = self._fence_out[wire.send(self._fence_out) :]
        except BlockingIOError:
            wants |= EVENT_WRITE
        try:
            while self._waste_bytes > 0:
                into = memoryview(bytearray(min(self._waste_bytes, _BIN_BYTES)))
                self._waste_bytes -= self._some(wire.recv_into(into))
            while len(self._fence_in) < FENCE_BYTES:
                into = memoryview(bytearray(FENCE_BYTES - len(self._fence_in)))
                self._fence_in += into[: self._some(wire.recv_into(into))]
        except BlockingIOError:
            wants |= EVENT_READ
        if wants:
            return [(wire, wants)]
        assert self.theirs is not None
        if self._waste_bytes < 0 or not hmac.compare_digest(bytes(self._fence_in), self.theirs.fence(self._secret)):
            raise HandshakeError(f"the data connection to rank {link.rank} is not where both ends say it is")
        return None

    @staticmethod
    def _some(count: int) -> int:
        if not count:
            raise EOFError
        return count
