"""The embedded server's front: accepts connections, keeps strangers few, passes bytes on to grpc's own server.

grpc's server accepts whoever comes, and offers no hook for it. So it listens where nobody else can reach it, on a Unix
socket without a name, and what listens for the world is this:

    client ── TCP ──> front ── Unix ──> grpc's server ──> handler ──> `admit` (a call was let in)

A connection is a *stranger* until a call of it was let in. Strangers are few and do not stay. One that has not sent
HTTP/2's first 24 bytes costs one descriptor, and nothing of it reaches grpc; one that stays a stranger is dropped.
Where there are too many, the oldest goes, first of those that have not begun, as soon as it has had its moment; until
then newcomers wait in the kernel's queue.
Descriptors of the process beyond a reserve are not for connections at all: what brings workers back finds some.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import select
import socket
import threading
from collections.abc import Sequence

from resilin._base import descriptors, log, socket_owners
from resilin._base.clock import SYSTEM
from resilin._base.host import is_loopback
from resilin._base.threads import OwnedThread
from resilin.store import token

_log = log.logger("store.server")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # what every connection of HTTP/2 begins with (RFC 9113, 3.4)
MAX_STRANGERS = 512  # a job's nodes may all come at once
STRANGER_S = 10.0  # as at the other listeners; a client makes its first call as soon as it is connected
# a stranger may have so much time even when there are too many: to begin, and then to make its first call
SILENT_S, YOUNG_S = 0.05, 0.25
MAX_STRANGE_BYTES = 16 << 20  # of one stranger: larger calls than 4 MiB are answered, and grpc may try them again
MAX_STRANGE_BYTES_OF_ALL = 64 << 20
CHUNK_BYTES = 256 << 10
LAST_WORDS_S, QUIET_S = 0.5, 0.02  # at the end: what grpc still had to say is passed on
_RELIEF_S = 0.05  # without accepting, after there was no descriptor
_TELL_S = 10.0  # between two lines of the log about those that were dropped
_ACCEPTS = 64  # in a row, before the others are served
_GIVE_UP = 4  # descriptors of strangers for one of a newcomer: those of one that has begun are three
_LOOKS = 50  # at the kernel's tables, which may skip rows while connections come and go
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT


class _End:
    """One of a connection's two sockets. `outbox`: what its reader has not taken; meanwhile nothing more is read."""

    __slots__ = ("connection", "mask", "other", "outbox", "sock")

    def __init__(self, sock: socket.socket, connection: Connection) -> None:
        self.sock = sock
        self.connection = connection
        self.other: _End | None = None
        self.outbox = bytearray()
        self.mask = _READ


class Connection:
    """One connection. Touched by the front's thread, but for what handlers of its calls ask and tell."""

    def __init__(self, sock: socket.socket, since: float) -> None:
        self.name = ""  # by which grpc knows it, once it has begun
        self.since = since
        self.admitted = False
        self.closed = False
        self.received = 0  # bytes, while it is a stranger
        self.head = bytearray()  # of PREFACE
        self.outer = _End(sock, self)
        self.inner: _End | None = None
        self.given = token.Given()  # guarded by the gate that fills it
        self._ends = sock.getpeername(), sock.getsockname()
        self._user: int | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Of the other end."""
        host, port = self._ends[0][:2]
        return str(host).removeprefix("::ffff:"), int(port)

    @property
    def same_host(self) -> bool:
        """Whether the other end is on this host, too: what it sends passes no network."""
        theirs, ours = self._ends
        return is_loopback(self.address[0]) or theirs[0] == ours[0]

    def user(self) -> int | None:
        """The user of the process at the other end, as this host's kernel knows it; None when it does not."""
        for _ in range(_LOOKS):
            if self._user is not None or self.closed:
                break
            with contextlib.suppress(OSError):
                self._user = socket_owners.owner_of(*self._ends)
        return self._user


class FrontProxy:
    """Owns listening sockets, and all that came in through them. `inner`: the path of grpc's socket, not needed later.

    Made before grpc's server has begun to answer; `close()` it after that has ended.
    """

    def __init__(self, sockets: Sequence[socket.socket], inner: str) -> None:
        self._sockets = self._listening = tuple(sockets)  # the latter: those that are in _epoll
        self._target = os.open(inner, os.O_PATH)
        self._prefix = f"resilin-store-{secrets.token_hex(8)}-"
        self._count = 0
        self._limit, self._highest = descriptors.room()
        self._most = max(8, min(MAX_STRANGERS, self._limit // 6))  # one that has begun takes three descriptors
        self._lock = threading.Lock()
        self._strangers: dict[Connection, None] = {}  # guarded by _lock: oldest first
        self._strange_bytes = 0  # guarded by _lock
        self._known: dict[str, Connection] = {}  # by name
        self._ends: dict[int, _End] = {}  # by descriptor
        self._dropped, self._why, self._tell_at = 0, "", 0.0
        self._paused_until: float | None = None
        self._closing = False
        self._epoll = select.epoll()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wake_r, _READ)
        for sock in self._sockets:
            sock.setblocking(False)
            self._epoll.register(sock, _READ)
        self._thread = OwnedThread("store-front", self._run, _tell_of_end)

    # ------------------------------------------------------------------------------- from handlers' threads

    def connection(self, peer: str) -> Connection | None:
        """Whose call it is that grpc says comes from `peer`; None when it has gone."""
        return self._known.get(peer.removeprefix("unix-abstract:"))

    def admit(self, connection: Connection) -> None:
        """A call of it was let in: it is no stranger any more."""
        with self._lock:
            if connection.admitted:
                return
            connection.admitted = True
            self._forget(connection)
            wake = self._paused_until is not None
        if wake:
            self._wake()

    def counts(self) -> tuple[int, int]:
        """Strangers, and all connections that grpc knows."""
        return len(self._strangers), len(self._known)

    def close(self) -> None:
        """Stop listening, pass on what grpc still had to say, hang up on everybody. A second call does nothing."""
        if not self._closing:
            self._closing = True
            self._wake()
            self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full: it wakes anyway
            os.write(self._wake_w, b"!")

    def _forget(self, connection: Connection) -> None:
        """Under the lock: it does not count as a stranger any more."""
        if connection in self._strangers:
            del self._strangers[connection]
            self._strange_bytes -= connection.received

    # ----------------------------------------------------------------------------------------- the loop

    def _run(self) -> None:
        try:
            while not self._closing:
                for fd, mask in self._epoll.poll(self._pause_s()):
                    self._serve(fd, mask)
                self._look_at_strangers()
            self._last_words()
        finally:
            for end in list(self._ends.values()):
                self._drop(end.connection)
            for sock in self._sockets:
                sock.close()
            self._epoll.close()
            for fd in (self._wake_r, self._wake_w, self._target):
                os.close(fd)

    def _pause_s(self) -> float | None:
        """How long nothing is to be done unless something comes."""
        with self._lock:
            oldest = next(iter(self._strangers), None)
        due = [oldest.since + STRANGER_S] if oldest is not None else []
        due += [self._paused_until] if self._paused_until is not None else []
        return max(0.0, min(due) - SYSTEM.monotonic()) if due else None

    def _serve(self, fd: int, mask: int) -> None:
        end = self._ends.get(fd)
        if end is not None:
            self._move(end, mask)
        elif fd == self._wake_r:
            os.read(fd, 4096)
            self._resume()
        else:
            for sock in self._sockets:
                if sock.fileno() == fd:
                    self._accept(sock)

    def _move(self, end: _End, mask: int) -> None:
        try:
            if mask & _WRITE:
                self._flush(end)
            if mask & ~_WRITE and not end.connection.closed:
                self._read(end)
        except BlockingIOError:
            return
        except OSError:  # either end has gone
            self._drop(end.connection)

    def _read(self, end: _End) -> None:
        if end.other is not None and end.other.outbox:
            raise ConnectionResetError  # nothing was to be read: it is an error, or both ways are shut
        data = end.sock.recv(CHUNK_BYTES)
        connection, other = end.connection, end.other
        if not connection.admitted and end is connection.outer and not self._weigh(connection, len(data)):
            return
        if not data:
            self._drop(connection)
        elif other is None:
            self._begin(connection, data)
        else:
            self._pass_on(data, other)

    def _pass_on(self, data: bytes | bytearray, end: _End) -> None:
        """Send `data` to `end`; what it does not take now waits, and meanwhile nothing more is read for it."""
        sent = 0
        with contextlib.suppress(BlockingIOError):  # it takes nothing just now
            sent = end.sock.send(data)
        if sent < len(data):
            assert end.other is not None
            end.outbox += data[sent:]
            self._listen(end)
            self._listen(end.other)

    def _flush(self, end: _End) -> None:
        sent = end.sock.send(end.outbox)
        del end.outbox[:sent]
        if not end.outbox:
            self._listen(end)
            if end.other is not None:
                self._listen(end.other)

    def _listen(self, end: _End) -> None:
        """Ask for the events that something is to be done for."""
        full = end.other is not None and bool(end.other.outbox)
        mask = (0 if full else _READ) | (_WRITE if end.outbox else 0)
        if mask != end.mask:
            end.mask = mask
            self._epoll.modify(end.sock, mask)

    # ---------------------------------------------------------------------------------------- strangers

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            if not self._has_room():
                return
            try:
                sock, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors or memory; or it left the queue again
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._relieve(f"{error.strerror}: {descriptors.ADVICE}")
                    return
                continue
            fitting = self._fit(sock, None)
            if fitting is None:
                self._relieve(self._reserve_left)
                return
            self._welcome(fitting)

    @property
    def _reserve_left(self) -> str:
        return f"of {self._limit} file descriptors only the reserve is left: {descriptors.ADVICE}"

    def _fit(self, sock: socket.socket, owner: Connection | None) -> socket.socket | None:
        """`sock` with a number below the reserve, for which the oldest strangers go; None: it was closed."""
        for _ in range(_GIVE_UP):
            if sock.fileno() < self._highest:
                return sock
            with self._lock:
                oldest = next((connection for connection in self._strangers if connection is not owner), None)
            if oldest is None:
                break
            self._drop(oldest, self._reserve_left)
            with sock:
                sock = sock.dup()
        sock.close()
        return None

    def _has_room(self) -> bool:
        """Whether another stranger may come in, for which the oldest goes if it must."""
        with self._lock:
            if len(self._strangers) < self._most:
                return True
            oldest = next(iter(self._strangers))
            silent = next((connection for connection in self._strangers if not connection.name), None)
        due = oldest.since + YOUNG_S
        if silent is not None and silent.since + SILENT_S < due:
            oldest, due = silent, silent.since + SILENT_S
        if SYSTEM.monotonic() < due:
            self._pause(due)
            return False
        self._drop(oldest, f"more than {self._most} had proved nothing")
        return True

    def _welcome(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock, SYSTEM.monotonic())
            self._epoll.register(sock, _READ)
        except OSError:  # it has left already
            sock.close()
            return
        self._ends[sock.fileno()] = connection.outer
        with self._lock:
            self._strangers[connection] = None

    def _begin(self, connection: Connection, data: bytes) -> None:
        """What a stranger says first. What does not speak HTTP/2 never comes to grpc."""
        connection.head += data
        if not connection.head.startswith(PREFACE):
            if not PREFACE.startswith(connection.head):
                self._drop(connection, "what they sent is no HTTP/2")
            return
        try:
            sock = self._fit(socket.socket(socket.AF_UNIX), connection)
        except OSError:
            sock = None
        if sock is None:
            self._drop(connection, self._reserve_left)
            return
        try:
            self._count += 1
            name = f"{self._prefix}{self._count}"
            sock.bind(b"\0" + name.encode())  # so grpc can say whose call it is
            sock.setblocking(False)
            sock.connect(f"/proc/self/fd/{self._target}")
        except OSError as error:
            sock.close()
            self._drop(connection, f"grpc's server did not take them ({error.strerror})")
            return
        connection.name, connection.inner = name, _End(sock, connection)
        connection.outer.other, connection.inner.other = connection.inner, connection.outer
        self._ends[sock.fileno()], self._known[name] = connection.inner, connection
        self._epoll.register(sock, _READ)
        self._pass_on(connection.head, connection.inner)

    def _weigh(self, connection: Connection, count: int) -> bool:
        """Count what a stranger sends; False when it was too much, and it is dropped."""
        with self._lock:
            if connection.admitted:
                return True
            connection.received += count
            self._strange_bytes += count
            greedy = None
            if connection.received > MAX_STRANGE_BYTES:
                greedy = connection
            elif self._strange_bytes > MAX_STRANGE_BYTES_OF_ALL:  # who sent most goes, not who asks just now
                greedy = max(self._strangers, key=lambda stranger: stranger.received)
        if greedy is not None:
            self._drop(greedy, "they sent too much before a call was let in")
        return greedy is not connection

    def _look_at_strangers(self) -> None:
        now = SYSTEM.monotonic()
        while True:
            with self._lock:
                oldest = next(iter(self._strangers), None)
            if oldest is None or now < oldest.since + STRANGER_S:
                break
            self._drop(oldest, f"no call of theirs was let in for {STRANGER_S:g} s")
        if self._paused_until is not None and now >= self._paused_until:
            self._resume()
        if self._dropped and now >= self._tell_at:
            log.event(_log, logging.WARNING, "connections were dropped", count=self._dropped, because=self._why)
            self._dropped, self._tell_at = 0, now + _TELL_S

    def _relieve(self, why: str) -> None:
        """There is no descriptor: the oldest stranger gives its own, and nobody is accepted for a moment."""
        with self._lock:
            oldest = next(iter(self._strangers), None)
        if oldest is not None:
            self._drop(oldest)
        self._dropped, self._why = self._dropped + 1, why
        self._pause(SYSTEM.monotonic() + _RELIEF_S)

    def _pause(self, until: float) -> None:
        with self._lock:
            self._paused_until = until
        for sock in self._listening:
            self._epoll.modify(sock, 0)

    def _resume(self) -> None:
        if self._paused_until is not None:
            with self._lock:
                self._paused_until = None
            for sock in self._listening:
                self._epoll.modify(sock, _READ)

    def _drop(self, connection: Connection, why: str = "") -> None:
        """Hang up. why: it is one of those of whom it is to be told."""
        if connection.closed:
            return
        connection.closed = True
        with self._lock:
            self._forget(connection)
        self._known.pop(connection.name, None)
        for end in (connection.outer, connection.inner):
            if end is not None:
                del self._ends[end.sock.fileno()]
                end.sock.close()
        if why:
            self._dropped, self._why = self._dropped + 1, why

    def _last_words(self) -> None:
        for sock in self._listening:
            self._epoll.unregister(sock)
        self._listening = ()
        until = SYSTEM.monotonic() + LAST_WORDS_S
        while SYSTEM.monotonic() < until and (ready := self._epoll.poll(QUIET_S)):
            for fd, mask in ready:
                self._serve(fd, mask)


def _tell_of_end(error: BaseException) -> None:
    log.event(_log, logging.ERROR, "the store accepts nobody any more", error=repr(error))
