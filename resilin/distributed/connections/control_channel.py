"""Read the control channel of a group: one thread for every peer's socket.

It notices a peer's death at once (the kernel closes its sockets, whatever killed it), hears goodbyes and aborts, takes
descriptors of shared memory, and receives point-to-point messages into the buffers posted for them. Writers send from
their own threads; the reader always drains, so a send over a socket never depends on what the peer's program
is doing.

      peer sockets ──> poll() ──> BYE, ABORT, end of file ──> on_gone / on_abort   (the group decides)
                                  ARENA, SEGMENT           ──> on_fd               (the shared-memory backend maps)
                                  LATE                     ──> on_late             (whom does everybody wait for?)
                                  REFUSAL                  ──> on_refusal          (why a peer refuses its call)
                                  P2P                      ──> Mailbox             (posted receives, early messages)
                                  RENEW                    ──> on_gone: the peer has left for another generation
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import threading
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from resilin._base.clock import Deadline, spell
from resilin._base.threads import OwnedThread
from resilin.distributed.connections.connection import PeerConnection
from resilin.distributed.connections.handshake import Renewal
from resilin.distributed.wire import call_phases
from resilin.distributed.wire.frames import HEADER, Frame
from resilin.distributed.wire.p2p_matching import Mailbox
from resilin.errors import DistNetworkError, UsageError

_END_S = 5.0  # the longest that the thread that reads may take to end
_PIECE_BYTES = 512 << 10  # what wakes a receiver that expects much: see sockets.fair


class Events(Protocol):
    """Tell the owner of a control channel what happens, on the reader's thread."""

    def on_gone(self, rank: int, goodbye: bool) -> None:
        """`rank` left on purpose (a goodbye, or for another generation) or closed its end without a word (it died)."""

    def on_broken(self, rank: int, error: Exception) -> None:
        """Hear that what `rank` sent breaks the protocol or cannot be used here; nothing more is read from it."""

    def on_abort(self, rank: int, text: str) -> None:
        """`rank` aborted the group and said why."""

    def on_late(self, rank: int, text: str) -> None:
        """A wait of `rank` has ended without what it waited for; who that was is in `text`."""

    def on_refusal(self, rank: int, text: str) -> None:
        """`rank` refuses a call, which it makes so that its peers hear of it; why is in `text`."""

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """`rank` sent the descriptor of shared memory; the receiver owns `fd`."""


class ControlChannel:
    """Owns the thread that reads the control sockets of a group."""

    def __init__(self, links: Mapping[int, PeerConnection], events: Events, mailbox: Mailbox, name: str) -> None:
        self._events = events
        self._mailbox = mailbox
        self._links = dict(links)
        self._halted = False
        self._abort_text: str | None = None
        self._told = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._waking = threading.RLock()  # a signal handler may abort while the same thread holds it
        self._name = name
        self._thread: OwnedThread | None = None
        self._attending = threading.Lock()  # held by the thread that reads, which an interrupt may have lost in `start`
        self._reader: int | None = None  # that thread's number

    def start(self) -> None:
        """Start reading: events can come from now on."""
        if self._links:
            self._thread = OwnedThread(f"dist-control-{self._name}", self._run, self._crashed)

    def reading(self) -> bool:
        """Return whether the caller is on the thread that reads, in a callback say: meanwhile nothing comes."""
        return self._reader == threading.get_ident()

    # --- sending, any thread ---

    def send(
        self, rank: int, kind: Frame, tag: int, parts: tuple[memoryview | bytes, ...], deadline: Deadline, fd: int = -1
    ) -> None:
        """Send one frame to `rank`; blocks while its socket is full. OSError: it is gone; TimeoutError: too late."""
        peer = self._links[rank]
        length = sum(len(part) for part in parts)
        header = HEADER.pack(kind, tag, length)
        if peer.sender == threading.get_ident():
            raise UsageError(f"send to rank {rank}: called from a signal handler inside another one to it")

        def turn() -> bool:
            if not peer.sending.acquire(timeout=-1 if (left := deadline.left()) is None else left):
                raise TimeoutError(f"another send to rank {rank} did not finish within {spell(deadline.seconds)}")
            if peer.torn or peer.renewal is not None or self._abort_text is not None or self._halted:
                raise BrokenPipeError("the group ended, the peer left, or a send was given up half-way")
            return True

        def put() -> None:
            if fd >= 0:
                _send_with_fd(peer, header, fd, deadline)
                _send_all(peer, parts, deadline)
            else:
                _send_all(peer, (header, *parts), deadline)

        peer.write(turn, put)

    def tell(self, kind: Frame, text: str) -> None:
        """Send a frame to every peer, as Link.tell does."""
        for link in self._links.values():
            link.tell(kind, text)

    def cut(self) -> None:
        """Hang up on every peer without a word, and hear nothing of it."""
        for link in self._links.values():
            link.open = False
        for link in self._links.values():
            link.cut()

    def abort(self, text: str) -> None:
        """Tell every peer `text`. Never blocks: the reader's thread does it, and ends.

        The sockets stay open for the next generation, but for those in the middle of a frame.
        """
        self._abort_text = text
        self._poke()

    def halt(self) -> None:
        """Stop reading, wherever in a frame; what was to be told is told. Idempotent, also after an interrupt."""
        self._halted = True
        if self._wake_w < 0:
            return
        for link in self._links.values():
            link.stuck = link.stuck or link.sender == threading.get_ident()  # this handler interrupts its frame
        self._poke()
        if self._thread is not None:
            self._thread.join()
        elif not self.reading():
            self._await_reader()
        if self._abort_text is not None:
            self._tell(self._abort_text)
        with self._waking:
            ends, self._wake_r, self._wake_w = {self._wake_r, self._wake_w} - {-1}, -1, -1
            for end in ends:
                os.close(end)

    def _await_reader(self) -> None:
        if not self._attending.acquire(timeout=_END_S):
            raise TimeoutError(f"the control thread of {self._name!r} did not end within {_END_S} s")
        self._attending.release()

    def close(self) -> None:
        """Say goodbye unless the group was aborted, hang up, end the thread. The links are the caller's to free."""
        try:
            self.halt()
        finally:  # also where a callback keeps the thread
            for link in self._links.values():
                if self._abort_text is None:
                    link.tell(Frame.BYE, "")
                link.hang_up()

    def _poke(self) -> None:
        with self._waking, contextlib.suppress(BlockingIOError):
            if self._wake_w >= 0:
                os.write(self._wake_w, b"!")

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            self.tell(Frame.ABORT, text)

    # --- the reader's thread ---

    def _run(self) -> None:
        with self._attending:
            if self._halted:  # before it began: the sockets are another reader's now
                return
            self._reader = threading.get_ident()
            try:
                self._attend()
            finally:
                self._reader = None  # another thread may get the number

    def _attend(self) -> None:
        poller = select.poll()
        poller.register(self._wake_r, select.POLLIN)
        by_fd = {}
        for link in self._links.values():
            if self._read(link):  # frames may be here already that came with the connection
                poller.register(link.sock, select.POLLIN)
                by_fd[link.sock.fileno()] = link
        while not self._halted:
            for fd, _ in poller.poll():
                if self._halted:  # by what has just been read, perhaps
                    return
                if fd == self._wake_r:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_r, 4096)
                    continue
                if not self._read(by_fd[fd]):
                    poller.unregister(fd)
            if self._abort_text is not None:
                self._tell(self._abort_text)
                return

    def _crashed(self, error: BaseException) -> None:
        self._mailbox.fail(error)
        self._events.on_abort(-1, f"the control thread failed: {error!r}")

    def _read(self, link: PeerConnection) -> bool:
        """Read what is there. False when nothing more of this generation comes from the peer."""
        try:
            while self._digest(link, *link.next_frame(partial(self._mailbox.start, link.rank))):
                pass
            return False
        except BlockingIOError:
            return True
        except (OSError, EOFError):
            pass  # reset: gone, like an end of file
        except (DistNetworkError, ValueError) as error:
            self._broken(link, error)
            return False
        if link.open:
            link.open = False
            self._mailbox.gone(link.rank)
            self._events.on_gone(link.rank, link.goodbye)
        return False

    def _broken(self, link: PeerConnection, error: Exception) -> None:
        if link.open:  # and stays so: it hears why the group ends
            link.spoiled = True
            self._mailbox.gone(link.rank)
            self._events.on_broken(link.rank, error)

    def _digest(self, link: PeerConnection, kind: Frame, tag: int, body: bytes) -> bool:
        """Act on a frame; whether more of this generation may follow."""
        if kind == Frame.BYE:
            link.goodbye = True
        elif kind == Frame.ABORT:
            self._events.on_abort(link.rank, body.decode(errors="replace"))
        elif kind == Frame.LATE:
            self._events.on_late(link.rank, body.decode(errors="replace"))
        elif kind == Frame.REFUSAL:
            self._events.on_refusal(link.rank, body.decode(errors="replace"))
        elif kind == Frame.RENEW:
            link.renewal = Renewal.parse(body)
            if link.wire is not None:
                link.wire.ends_at = max(0, link.renewal.sent)
            self._mailbox.gone(link.rank)
            self._events.on_gone(link.rank, True)
            return False
        elif kind == Frame.BELL:
            self._mailbox.heard()
        elif kind != Frame.P2P:
            self._events.on_fd(link.rank, kind, tag, body, link.take_fd(kind))
        return True


def _send_all(link: PeerConnection, parts: tuple[memoryview | bytes, ...], deadline: Deadline) -> None:
    """Send everything on its non-blocking socket. TimeoutError when the peer's buffer stays full past the deadline.

    A small frame goes in as few packets as there can be, since each wakes the peer's reader; a large one in pieces.
    """
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        try:
            sent = link.sock.sendmsg(_piece(left))
        except BlockingIOError:
            _wait_writable(link, deadline)
            continue
        if call_phases.heard:
            call_phases.reached("data")
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]


def _piece(parts: list[memoryview]) -> list[memoryview]:
    """What one system call sends: while it copies, the socket takes no acknowledgements. No small rest stays behind."""
    if sum(map(len, parts)) < 2 * _PIECE_BYTES:
        return parts
    piece, room = [], _PIECE_BYTES
    for part in parts:
        piece.append(part[:room])
        room -= len(piece[-1])
        if not room:
            break
    return piece


def _wait_writable(link: PeerConnection, deadline: Deadline) -> None:
    """Block until the socket takes more bytes or is closed."""
    poller = select.poll()
    poller.register(link.sock, select.POLLOUT)
    left = deadline.left()
    link.stuck = True
    try:
        if not poller.poll(None if left is None else left * 1000) and deadline.passed():
            raise TimeoutError(f"the peer took no data within {spell(deadline.seconds)}")
    finally:
        link.stuck = False


def _send_with_fd(link: PeerConnection, header: bytes, fd: int, deadline: Deadline) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    while True:
        try:
            sent = link.sock.sendmsg([header], rights)
        except BlockingIOError:
            _wait_writable(link, deadline)
            continue
        _send_all(link, (header[sent:],), deadline)
        return
