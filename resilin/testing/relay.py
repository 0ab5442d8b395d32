"""A bad network for tests: passes TCP connections on, and delays, stalls, cuts or corrupts what they carry.

with Relay("127.0.0.1", port) as relay:      # tell peers relay.port instead of port
    relay.delay_s = 0.01                     # of every chunk that passes
    relay.after(100_000, relay.CUT)          # once so many more bytes have passed: hang up in the middle of a message
"""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import partial

from resilin._base.clock import SYSTEM
from resilin._base.threads import OwnedThread

_CHUNK_BYTES = 64 << 10


class Relay:
    """Listens on a port of loopback and connects each that comes to `(host, port)`. Close it after its users."""

    CUT, STALL = "cut", "stall"

    def __init__(self, host: str, port: int) -> None:
        self.delay_s = 0.0
        self.corrupt_at: int | None = None
        """The number of the byte, from the dialing side of each connection, whose bits are turned round."""
        self._target = (host, port)
        self._lock = threading.Condition()
        self._planned: tuple[int, str] | None = None  # guarded by _lock: bytes until then, what happens
        self._fired = False  # guarded by _lock
        self._stalled: set[socket.socket] = set()  # guarded by _lock: nothing more is read from these
        self._closed = False  # guarded by _lock
        self._sockets: list[socket.socket] = []  # guarded by _lock
        self._pumps: list[OwnedThread] = []  # guarded by _lock
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = OwnedThread("relay-accept", self._accept)

    def after(self, count: int, what: str) -> None:
        """Once `count` more bytes have passed: CUT or STALL the connection that carries the next one, for good."""
        with self._lock:
            self._planned = (count, what)

    @property
    def fired(self) -> bool:
        """Whether what `after` planned has happened."""
        with self._lock:
            return self._fired

    def close(self) -> None:
        """Cut everything and end the threads."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._hang_up(self._listening)
        self._thread.join()
        for sock in self._sockets:
            self._hang_up(sock)
        for pump in self._pumps:
            pump.join()
        for sock in [self._listening, *self._sockets]:
            sock.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:  # it listens no more: who came hears of that as without us
                near.close()
                continue
            with self._lock:
                self._sockets += [near, far]
                self._pumps.append(OwnedThread("relay-pump", partial(self._pump, near, far, True)))
                self._pumps.append(OwnedThread("relay-pump", partial(self._pump, far, near, False)))

    def _pump(self, source: socket.socket, to: socket.socket, dialing: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(_CHUNK_BYTES)):
                at = self.corrupt_at
                if dialing and at is not None and passed <= at < passed + len(data):
                    data[at - passed] ^= 0xFF
                passed += len(data)
                if self.delay_s:
                    SYSTEM.sleep(self.delay_s)
                allowed, what = self._allow(len(data), {source, to})
                to.sendall(data[:allowed])
                if what == self.CUT:
                    self._hang_up(source)
                if what is not None:
                    break
        with self._lock:
            self._lock.wait_for(lambda: self._closed or not self._stalled & {source, to})
        self._hang_up(to)

    def _allow(self, count: int, both: set[socket.socket]) -> tuple[int, str | None]:
        """How many of `count` bytes pass, and what happens then."""
        with self._lock:
            if self._stalled & both:
                return 0, self.STALL
            if self._planned is None:
                return count, None
            left, what = self._planned
            if count <= left:
                self._planned = (left - count, what)
                return count, None
            self._planned, self._fired = None, True
            if what == self.STALL:
                self._stalled |= both
            return left, what

    @staticmethod
    def _hang_up(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
