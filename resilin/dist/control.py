"""The control channel of a group: one thread that reads every peer's socket.

It notices a peer's death at once (the kernel closes its sockets, whatever killed it), hears goodbyes and aborts, takes
descriptors of shared memory, and receives point-to-point messages into the buffers posted for them. Writers send from
their own threads; the reader always drains, so a send never depends on what the peer's program is doing.

      peer sockets ──> poll() ──> BYE, ABORT, end of file ──> on_gone / on_abort   (the group decides)
                                  ARENA, SEGMENT           ──> on_fd               (the shared-memory backend maps)
                                  P2P                      ──> Mailbox             (posted receives, early messages)
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from resilin._base.clock import Deadline, spell
from resilin._base.threads import OwnedThread
from resilin.dist.forked import track
from resilin.dist.mailbox import Incoming, Mailbox
from resilin.dist.message import HEADER, Frame
from resilin.errors import DistNetworkError

_MAX_TEXT_BYTES = 64 << 10
_READ_BYTES = 64 << 10
_MAX_FDS = 16


class Events(Protocol):
    """What the owner of a control channel is told, on the reader's thread."""

    def on_gone(self, rank: int, goodbye: bool) -> None:
        """`rank` closed its end: after a goodbye (it left on purpose) or without one (it died)."""

    def on_broken(self, rank: int, error: Exception) -> None:
        """What `rank` sent breaks the protocol or cannot be used here; nothing more is read from it."""

    def on_abort(self, rank: int, text: str) -> None:
        """`rank` aborted the group and said why."""

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """`rank` sent the descriptor of shared memory; the receiver owns `fd`."""


class _Peer:
    """Reading state of one connection; touched by the reader's thread only, except `sending`."""

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank = rank
        self.sock = sock
        self.sending = threading.Lock()
        self.header = bytearray()
        self.frame: tuple[Frame, int, int] | None = None
        self.body = bytearray()
        self.incoming: Incoming | None = None
        self.fds: deque[int] = deque()
        self.goodbye = False
        self.open = True


class Control:
    """Owns the control sockets of a group and the thread that reads them."""

    def __init__(self, sockets: Mapping[int, socket.socket], events: Events, mailbox: Mailbox, name: str) -> None:
        self._events = events
        self._mailbox = mailbox
        self._peers = {rank: _Peer(rank, sock) for rank, sock in sockets.items()}
        self._stop = False
        self._abort_text: str | None = None
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        for sock in sockets.values():
            track(sock).setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._name = name
        self._thread: OwnedThread | None = None

    def start(self) -> None:
        """Start reading: events can come from now on."""
        if self._peers:
            self._thread = OwnedThread(f"dist-control-{self._name}", self._run, self._crashed)

    # --- sending, any thread ---

    def send(
        self, rank: int, kind: Frame, tag: int, parts: tuple[memoryview | bytes, ...], deadline: Deadline, fd: int = -1
    ) -> None:
        """Send one frame to `rank`; blocks while its socket is full. OSError: it is gone; TimeoutError: too late."""
        peer = self._peers[rank]
        length = sum(len(part) for part in parts)
        header = HEADER.pack(kind, tag, length)
        if not peer.sending.acquire(timeout=-1 if (left := deadline.left()) is None else left):
            raise TimeoutError(f"another send to rank {rank} did not finish within {spell(deadline.seconds)}")
        try:
            if fd >= 0:
                _send_with_fd(peer.sock, header, fd, deadline)
            elif length <= _READ_BYTES:
                send_all(peer.sock, memoryview(header + b"".join(parts)), deadline)
                return
            else:
                send_all(peer.sock, memoryview(header), deadline)
            for part in parts:
                send_all(peer.sock, memoryview(part), deadline)
        finally:
            peer.sending.release()

    def alive(self, rank: int) -> bool:
        """Whether the connection to `rank` is still open."""
        return self._peers[rank].open

    def cut(self) -> None:
        """Hang up on every peer without a word, and hear nothing of it."""
        for peer in self._peers.values():
            peer.open = False
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)

    def abort(self, text: str) -> None:
        """Tell every peer `text` and hang up. Never blocks: the reader's thread does it."""
        self._abort_text = text
        self._poke()

    def close(self) -> None:
        """Say goodbye, close the sockets, end the thread."""
        if not self._stop:
            self._stop = True
            self._poke()
            if self._thread is not None:
                self._thread.join()
            self._part()
            for peer in self._peers.values():
                peer.sock.close()
            os.close(self._wake_r)
            os.close(self._wake_w)

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b"!")

    def _part(self) -> None:
        """Last words to every peer: why the group was aborted, or goodbye."""
        kind = Frame.BYE if self._abort_text is None else Frame.ABORT
        text = (self._abort_text or "").encode()[:_MAX_TEXT_BYTES]
        for peer in self._peers.values():
            self._hang_up(peer, kind, text)

    def _hang_up(self, peer: _Peer, kind: Frame, text: bytes) -> None:
        if peer.open and peer.sending.acquire(blocking=False):
            with contextlib.suppress(OSError):
                peer.sock.send(HEADER.pack(kind, 0, len(text)) + text)
            peer.sending.release()
        peer.open = False
        with contextlib.suppress(OSError):  # a sender in the middle of a frame returns with an error
            peer.sock.shutdown(socket.SHUT_RDWR)
        while peer.fds:
            os.close(peer.fds.popleft())

    # --- the reader's thread ---

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._wake_r, select.POLLIN)
        by_fd = {}
        for peer in self._peers.values():
            poller.register(peer.sock, select.POLLIN)
            by_fd[peer.sock.fileno()] = peer
        while not self._stop:
            for fd, _ in poller.poll():
                if fd == self._wake_r:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_r, 4096)
                    continue
                if not self._read(by_fd[fd]):
                    poller.unregister(fd)
            if self._abort_text is not None and not self._stop:
                self._part()
                return

    def _crashed(self, error: BaseException) -> None:
        self._mailbox.fail(error)
        self._events.on_abort(-1, f"the control thread failed: {error!r}")

    def _read(self, peer: _Peer) -> bool:
        """Read what is there. False when the peer is gone."""
        try:
            while self._read_some(peer):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass  # reset: gone, like an end of file
        except (DistNetworkError, ValueError) as error:
            self._broken(peer, error)
            return False
        if peer.open:
            peer.open = False
            self._mailbox.gone(peer.rank)
            self._events.on_gone(peer.rank, peer.goodbye)
        return False

    def _broken(self, peer: _Peer, error: Exception) -> None:
        if peer.open:  # and stays so: it hears why the group ends
            self._mailbox.gone(peer.rank)
            self._events.on_broken(peer.rank, error)

    def _read_some(self, peer: _Peer) -> bool:
        """One read; False at the end of the file."""
        if peer.incoming is not None:
            into = peer.incoming.rest()
            count = peer.sock.recv_into(into) if len(into) else 0
            if count == 0 and len(into):
                return False
            if peer.incoming.advance(count):
                peer.incoming, peer.frame = None, None
            return True
        need = HEADER.size - len(peer.header) if peer.frame is None else peer.frame[2] - len(peer.body)
        if need:
            data = self._receive(peer, min(need, _READ_BYTES))
            if not data:
                return False
            if peer.frame is None:
                peer.header += data
            else:
                peer.body += data
        self._digest(peer)
        return True

    def _receive(self, peer: _Peer, count: int) -> bytes:
        if peer.sock.family != socket.AF_UNIX:
            return peer.sock.recv(count)
        data, fds, _, _ = socket.recv_fds(peer.sock, count, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        peer.fds.extend(fds)
        return data

    def _digest(self, peer: _Peer) -> None:
        if peer.frame is None:
            if len(peer.header) < HEADER.size:
                return
            kind, tag, length = HEADER.unpack(peer.header)
            peer.header.clear()
            peer.body.clear()
            peer.frame = (Frame(kind), tag, length)
            if kind == Frame.P2P:
                peer.incoming = self._mailbox.start(peer.rank, tag, length)
                return
            if length > _MAX_TEXT_BYTES:
                raise DistNetworkError(f"rank {peer.rank} announced a control frame of {length} bytes")
        kind, tag, length = peer.frame
        if len(peer.body) < length:
            return
        peer.frame = None
        if kind == Frame.BYE:
            peer.goodbye = True
        elif kind == Frame.ABORT:
            self._events.on_abort(peer.rank, peer.body.decode(errors="replace"))
        else:
            if not peer.fds:
                raise DistNetworkError(f"rank {peer.rank} sent frame {kind.name} without a descriptor")
            self._events.on_fd(peer.rank, kind, tag, bytes(peer.body), peer.fds.popleft())


def send_all(sock: socket.socket, data: memoryview, deadline: Deadline) -> None:
    """Send everything on a non-blocking socket. TimeoutError when the peer's buffer stays full past the deadline."""
    sent = 0
    while sent < len(data):
        try:
            sent += sock.send(data[sent:])
        except BlockingIOError:
            wait_writable(sock, deadline)


def wait_writable(sock: socket.socket, deadline: Deadline) -> None:
    """Block until `sock` takes more bytes or is closed."""
    poller = select.poll()
    poller.register(sock, select.POLLOUT)
    left = deadline.left()
    if not poller.poll(None if left is None else left * 1000) and deadline.passed():
        raise TimeoutError(f"the peer took no data within {spell(deadline.seconds)}")


def _send_with_fd(sock: socket.socket, header: bytes, fd: int, deadline: Deadline) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    while True:
        try:
            sent = sock.sendmsg([header], rights)
        except BlockingIOError:
            wait_writable(sock, deadline)
            continue
        send_all(sock, memoryview(header)[sent:], deadline)
        return
