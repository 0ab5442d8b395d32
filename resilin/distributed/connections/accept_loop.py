"""Accept connections for a server and give each a thread, whatever strangers do.

A connection is a stranger until its thread calls `Visit.admit`, which it does once the peer has proved the secret.
Strangers are few: when one too many comes, or when the process is out of descriptors, the oldest is dropped. So they
can neither fill the server nor end it, and peers, which prove themselves within milliseconds, still get in.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from resilin._base import log, socket_eof
from resilin._base.threads import OwnedThread
from resilin.distributed.wire.after_fork import track
from resilin.errors import DistNetworkError, HandshakeError, SecretRequired

_LOG = log.logger("distributed.accept_loop")
_MAX_STRANGERS = 128
_MAX_GUESTS = 4096
_MAX_WARNINGS, _WITHIN_S = 10, 10.0  # of refused connections: strangers may knock for ever
_RELIEF_S = 0.05  # pause after an accept that failed for want of descriptors or memory
_BROKEN = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)  # the listening socket itself is gone: a bug, not the weather


class Visit:
    """One accepted connection. `kept`: somebody else owns the socket now."""

    def __init__(self, sock: socket.socket, admit: Callable[[Visit], None]) -> None:
        self.sock = track(sock)
        self.kept = False
        self.thread: OwnedThread | None = None
        self._admit = admit

    def admit(self) -> None:
        """Take the peer in, which has proved itself; see `AcceptLoop.admit`.

        A peer may come before the server's maker has got hold of its loop: so the visit knows it.
        """
        self._admit(self)

    def hung_up(self) -> bool:
        """Return whether the peer has closed its end."""
        return socket_eof.hung_up(self.sock)


class Refusals:
    """Connections that did not prove the job's secret: warned of with their address, sparingly, and counted for later.

    `at` names the server; `on_change` hears `text()` after each.
    """

    def __init__(self, at: str, on_change: Callable[[str], None] = lambda text: None) -> None:
        self._at = at
        self._on_change = on_change
        self._warnings = log.Ration(_MAX_WARNINGS, _WITHIN_S)
        self._lock = threading.Lock()
        self._count = 0  # guarded by _lock
        self._last = ""  # guarded by _lock

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Around a proof: what refuses the peer is noted and raised again."""
        try:
            yield
        except (HandshakeError, SecretRequired) as error:
            with self._lock:
                self._count, self._last = self._count + 1, str(error)
            if (held := self._warnings.take()) is not None:
                more = f" (and {held} others since the last such line)" if held else ""
                log.event(_LOG, logging.WARNING, f"a connection to {self._at} was refused: {error}{more}")
            self._on_change(self.text())
            raise

    def text(self) -> str:
        """Say how many and why, for the error of somebody who waits for them; empty: none."""
        with self._lock:
            many = "1 connection" if self._count == 1 else f"{self._count} connections"
            return f"{many} to {self._at} refused, the last because {self._last}" if self._count else ""


class AcceptLoop:
    """Owns listening sockets and what came in through them until it is kept or closed; `close()` ends all of it."""

    def __init__(self, name: str, sockets: Sequence[socket.socket], serve: Callable[[Visit], None]) -> None:
        self._name = name
        self._sockets = list(sockets)
        self._serve = serve
        self._changed = threading.Condition()
        self._closed = False  # guarded by _changed
        self._strangers: dict[Visit, None] = {}  # guarded by _changed: oldest first
        self._guests: set[Visit] = set()  # guarded by _changed
        self._threads = [OwnedThread(f"{name}-accept", partial(self._accept, sock)) for sock in self._sockets]

    def counts(self) -> tuple[int, int]:
        """Strangers and guests inside now."""
        with self._changed:
            return len(self._strangers), len(self._guests)

    def admit(self, visit: Visit) -> None:
        """The peer has proved itself. HandshakeError when there is no room for another."""
        with self._changed:
            if len(self._guests) >= _MAX_GUESTS:
                raise HandshakeError(f"{len(self._guests)} connections are open already")
            self._strangers.pop(visit, None)
            self._guests.add(visit)

    def close(self) -> None:
        """Stop accepting, hang up on everybody inside and end every thread. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            visits = [*self._strangers, *self._guests]
            self._changed.notify_all()
        for sock in [*self._sockets, *(visit.sock for visit in visits)]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in [*self._threads, *(visit.thread for visit in visits if visit.thread is not None)]:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = listening.accept()
                self._welcome(Visit(sock, self.admit))
            except (OSError, RuntimeError) as error:  # RuntimeError: no more threads
                if self._closed:
                    return
                if isinstance(error, OSError) and error.errno in _BROKEN:
                    raise
                log.event(_LOG, logging.WARNING, "cannot accept", server=self._name, error=str(error))
                self._relieve()

    def _welcome(self, visit: Visit) -> None:
        with self._changed:
            if self._closed:
                visit.sock.close()
                return
            if len(self._strangers) >= _MAX_STRANGERS:
                self._drop_oldest()
            self._strangers[visit] = None
            try:
                visit.thread = OwnedThread(f"{self._name}-visitor", partial(self._run, visit))
            except RuntimeError:
                del self._strangers[visit]
                visit.sock.close()
                raise

    def _relieve(self) -> None:
        with self._changed:
            self._drop_oldest()
            self._changed.wait_for(lambda: self._closed, _RELIEF_S)

    def _drop_oldest(self) -> None:
        """Hang up on the oldest stranger; its thread closes the socket."""
        for visit in self._strangers:
            del self._strangers[visit]
            with contextlib.suppress(OSError):
                visit.sock.shutdown(socket.SHUT_RDWR)
            return

    def _run(self, visit: Visit) -> None:
        try:
            self._serve(visit)
        except (OSError, DistNetworkError, SecretRequired) as error:
            log.event(_LOG, logging.DEBUG, "connection ended", server=self._name, error=str(error))
        finally:
            with self._changed:
                self._strangers.pop(visit, None)
                self._guests.discard(visit)
            if not visit.kept:
                visit.sock.close()
