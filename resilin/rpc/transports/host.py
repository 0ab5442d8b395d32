"""Carry messages between workers of one host, through memory that both have mapped.

    caller's thread ── writes ──> rings of the connection (native/ring.hpp) ──> thread that waits in `take`

No thread stands between the two. One thread of the transport watches a Unix socket for each peer, whose end says that
the peer is gone; another one accepts connections. See `host_handshake` for how they begin.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from resilin._base import auth, descriptors, host, host_port, log
from resilin._base.clock import Deadline, spell
from resilin._base.host import host_id
from resilin._base.threads import OwnedThread
from resilin._base.wrong_proofs import WrongProofs
from resilin.distributed.connections.accept_loop import AcceptLoop, Refusals, Visit
from resilin.distributed.wire.after_fork import track
from resilin.errors import DistNetworkError, HandshakeError, PeerLost, RpcError, SecretRequired, UsageError
from resilin.rpc.transports import host_handshake as handshake
from resilin.rpc.transports import loader
from resilin.rpc.transports.base import Buffer, Lost, Queues, Transport, WorkerIdentity
from resilin.rpc.transports.host_handshake import Greeting, HostAddress
from resilin.rpc.transports.native_queues import NativeQueues

_LOG = log.logger("rpc.host")
_HANDSHAKE_S = 10.0  # a stranger that proves nothing is dropped after this
_CROSSING_S = 0.05  # until the peer, which dials at the same time, should have come through; then it is tried again
_STALE_S = 2.0  # the kernel tells of a dead process' end within milliseconds, and its successor may be faster
_OURS = 5.0  # seconds for this process' own threads to get their turn


@dataclass(eq=False)
class _Peer:
    id: int
    hello: Greeting
    sock: socket.socket
    link: Any
    ready: bool
    """Whether the end that dialed relies on the connection: before, its end is no news."""
    closes: bool = False
    error: PeerLost | None = None
    dropped: bool = False
    """Forgotten, or this transport is closed."""
    send: Any = field(init=False)

    def __post_init__(self) -> None:
        self.send = self.link.send

    def lost(self, cause: str) -> PeerLost:
        """The error that says so."""
        told = self.hello
        return PeerLost(
            f"worker {told.name!r} (id {self.id}, host {told.host}, pid {told.pid}) is lost: {cause}", {self.id}
        )


class HostTransport(Transport):
    """See Transport. Its queues are NativeQueues; without native code it cannot be made (RpcError), see `available`."""

    name: ClassVar[str] = "host"

    def __init__(self, identity: WorkerIdentity, queues: Queues, lost: Lost) -> None:
        if loader.native is None:
            raise RpcError(f"the RPC transport 'host' needs native code: {loader.why}")
        if not isinstance(queues, NativeQueues):
            raise UsageError(f"the RPC transport 'host' needs NativeQueues, got {type(queues).__name__}")
        _check_secret(identity)
        self._identity = identity
        self._queues = queues
        self._lost = lost
        self._changed = threading.Condition(threading.RLock())
        self._peers: dict[int, _Peer] = {}  # written under _changed, read without
        self._by_fd: dict[int, _Peer] = {}  # guarded by _changed
        self._gone: dict[int, PeerLost] = {}  # guarded by _changed
        self._dialing: set[int] = set()  # guarded by _changed
        self._answering: set[int] = set()  # guarded by _changed: let in, and not yet among the peers
        self._closed = False  # guarded by _changed
        self._waker = loader.native.Waker()
        sock = track(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        unix = f"resilin-rpc-{secrets.token_hex(12)}"
        try:
            sock.bind(b"\0" + unix.encode())
            sock.listen(socket.SOMAXCONN)
        except OSError as error:
            sock.close()
            raise DistNetworkError(f"RPC cannot listen on a Unix socket: {error}") from error
        self._card = HostAddress("host", host_id(), unix, secrets.token_hex(8))
        self._wrong = WrongProofs()
        self._refusals = Refusals(f"RPC of worker {identity.name!r} on this host")
        self._epoll = select.epoll()
        self._epoll.register(self._waker.fd, select.EPOLLIN)
        self._watcher = OwnedThread("rpc-host-watch", self._watch)
        self._accept_loop = AcceptLoop("rpc-host", [sock], self._visit)

    @staticmethod
    def available() -> bool:
        """Return whether there is native code; `loader.why` says why not."""
        return loader.native is not None

    @property
    def address(self) -> str:
        """See Transport."""
        return self._card.describe()

    def reaches(self, address: str) -> bool:
        """See Transport: whether it is on this host, by the kernel's own word on both."""
        try:
            return HostAddress.parse(address).near()
        except UsageError:
            return False

    # ------------------------------------------------------------------------------------------------ sending

    def send(self, peer: int, parts: Sequence[Buffer], queue: int, deadline: Deadline) -> None:
        """See Transport."""
        native = loader.native
        found = self._peers.get(peer)
        if found is None:
            raise self._absent(peer)
        status = found.send(parts, queue)
        if status == native.FULL:
            left = deadline.left()
            status = found.link.send_waiting(parts, queue, -1.0 if left is None else left)
        if status == native.DONE:
            return
        if status == native.LATE:
            raise TimeoutError(f"{self._of(found)} had no room for a message within {spell(deadline.seconds)}")
        if status == native.LONG:
            size, most = sum(memoryview(part).nbytes for part in parts), min(self._most(), found.hello.most)
            raise UsageError(
                f"a message of {size} bytes in {len(parts)} parts to {self._of(found)}, the limit is {most} bytes in "
                f"{native.MAX_PARTS} parts: send less at once, or raise max_message_bytes on both"
            )
        raise self._over(found)

    def _most(self) -> int:
        return self._identity.max_message_bytes

    def _of(self, peer: _Peer) -> str:
        return f"worker {peer.hello.name!r} (id {peer.id})"

    def _absent(self, peer: int) -> Exception:
        with self._changed:
            error = self._gone.get(peer)
        if error is not None:
            return PeerLost(str(error.args[0]), error.ranks)
        return UsageError(f"worker {peer} is not connected to this one: connect(...) first")

    def _over(self, peer: _Peer) -> Exception:
        """Why nothing more is sent on its link; where that was found in native code the watcher says it in a moment."""
        with self._changed:
            self._changed.wait_for(lambda: peer.error is not None or peer.dropped, _OURS)
            if peer.error is not None:
                return PeerLost(str(peer.error.args[0]), peer.error.ranks)
        return UsageError(f"{self._of(peer)} was forgotten, or the transport closed, while a message was sent to it")

    # --------------------------------------------------------------------------------------------- connecting

    def connect(self, peer: int, address: str, deadline: Deadline) -> None:
        """See Transport."""
        card = HostAddress.parse(address)
        if not card.near():
            raise UsageError(f"worker {peer} is on another host ({card.host}, this one is {host_id()})")
        if peer == self._identity.id:
            raise UsageError(f"worker {peer} is this one: nothing is sent to itself")
        while not self._done(peer, card, deadline):
            try:
                if self._dial(peer, card, deadline):
                    return
            finally:
                with self._changed:
                    self._dialing.discard(peer)
                    self._changed.notify_all()
            with self._changed:  # it dials, too: one of the two goes on
                left = deadline.left()
                self._changed.wait_for(
                    lambda: peer in self._peers, _CROSSING_S if left is None else min(left, _CROSSING_S)
                )

    def _done(self, peer: int, card: HostAddress, deadline: Deadline) -> bool:
        """Wait for other threads that connect to it: whether one has; else this one does."""
        with self._changed:
            while True:
                if self._closed:
                    raise UsageError("this transport is closed")
                found = self._peers.get(peer)
                if found is not None and found.ready and found.hello.mark == card.mark:
                    return True
                if found is None and peer not in self._dialing and peer not in self._answering:
                    self._dialing.add(peer)
                    return False
                if deadline.passed():
                    what = "a connection to it was being made"  # by this end or the other, which may yet give up
                    if found is not None and found.hello.mark != card.mark:
                        what = f"pid {found.hello.pid} has its id"
                    raise TimeoutError(f"worker {peer} was not connected within {spell(deadline.seconds)}: {what}")
                self._changed.wait(deadline.left())

    def _hello(self, target: int, verdict: str = "", reason: str = "") -> Greeting:
        own = self._identity
        return Greeting(
            handshake.VERSION, own.group, own.id, target, own.name, own.host, os.getpid(), self._card.mark,
            own.max_message_bytes, verdict, reason,
        )  # fmt: skip

    def _dial(self, peer: int, card: HostAddress, deadline: Deadline) -> bool:
        """False: the peer dials this worker, which comes first."""
        sock: socket.socket | None = None
        link, kept = self._link(peer), False
        try:
            sock = handshake.dial(card, deadline)
            auth.refuse_other_user(auth.peer_user(sock) or 0)  # the name of a listener that has ended may be anybody's
            auth.prove_as_client(sock, self._identity.secret, handshake.PURPOSE, deadline, card.mark)
            handshake.tell(sock, self._hello(peer), [self._queues.inbox.fd, link.fd], deadline)
            link.release()
            with handshake.heard(sock, deadline) as (answer, given):
                if answer.verdict == handshake.CROSSING:
                    return False
                if answer.verdict != handshake.WELCOME:
                    raise HandshakeError(f"worker {peer} refused this one: {answer.reason}")
                self._check(answer, peer)
                _attach(link, given, answer)
            kept = self._keep(_Peer(peer, answer, sock, link, ready=True))
            return kept
        except TimeoutError:
            raise TimeoutError(f"worker {peer} did not answer within {spell(deadline.seconds)}") from None
        except HandshakeError:
            raise
        except (OSError, DistNetworkError) as error:
            if deadline.passed():
                raise TimeoutError(f"worker {peer} did not answer within {spell(deadline.seconds)}") from error
            if isinstance(error, OSError) and descriptors.are_gone(error):
                raise RpcError(f"worker {peer} cannot be connected: {error}; {descriptors.ADVICE}") from error
            raise PeerLost(
                f"worker {peer} is not to be reached at {card.unix!r} on this host: {error}", {peer}
            ) from error
        finally:
            if sock is not None and not kept:
                sock.close()

    def _link(self, peer: int) -> Any:
        try:
            return loader.native.Link(peer, self._most(), self._waker)
        except RuntimeError as error:
            raise RpcError(f"worker {peer} cannot be connected: {error}; {descriptors.ADVICE}") from error

    def _check(self, hello: Greeting, source: int) -> None:
        own = self._identity
        if hello.version != handshake.VERSION:
            raise HandshakeError(
                f"it speaks version {hello.version} of this transport, this worker {handshake.VERSION}"
            )
        if hello.group != own.group:
            raise HandshakeError(f"it is of group {hello.group!r}, this worker of {own.group!r}")
        if hello.target != own.id:
            raise HandshakeError(f"it means worker {hello.target}, this is {own.id}")
        if hello.source != source or hello.source == own.id or not 0 <= hello.source < 1 << 16:
            raise HandshakeError(f"it is worker {hello.source}, meant was {source}")

    def _visit(self, visit: Visit) -> None:
        sock, deadline = visit.sock, Deadline(_HANDSHAKE_S)
        user = auth.peer_user(sock)
        if user is not None:
            auth.refuse_other_user(user)  # whatever they know
        with self._refusals.noted():
            secret = self._identity.secret
            auth.prove_as_server(sock, secret, handshake.PURPOSE, deadline, self._wrong, self._card.mark)
        self._accept_loop.admit(visit)
        with handshake.heard(sock, deadline) as (hello, given):
            try:
                self._check(hello, hello.source)
                rings = self._let_in(hello, given, visit)
            except (HandshakeError, RpcError) as error:
                reason = str(error)[: handshake.MAX_BYTES // 8]
                handshake.tell(sock, self._hello(hello.source, handshake.REFUSED, reason), [], deadline)
                raise HandshakeError(reason) from error
        if rings is None:
            handshake.tell(sock, self._hello(hello.source, handshake.CROSSING), [], deadline)
            return
        try:
            answer = self._hello(hello.source, handshake.WELCOME)
            handshake.tell(sock, answer, [self._queues.inbox.fd, rings], deadline)
            sock.setblocking(False)
        finally:
            os.close(rings)

    def _let_in(self, hello: Greeting, given: Sequence[int], visit: Visit) -> int | None:
        """Keep the connection, before its dialer may send: this end may, too. Return the rings' descriptor; None: this
        worker dials the other, or is connected to it.
        """
        if not self._admit(hello):
            return None
        try:
            link = self._link(hello.source)
            _attach(link, given, hello)
            rings = os.dup(link.fd)
            link.release()
            visit.kept = self._keep(_Peer(hello.source, hello, visit.sock, link, ready=False))
            if visit.kept:
                return rings
            os.close(rings)
            return None
        finally:
            with self._changed:
                self._answering.discard(hello.source)
                self._changed.notify_all()

    def _admit(self, hello: Greeting) -> bool:
        """Decide between two workers that dial each other: the lower id's connection is made.

        Until the one that was let in is kept, this end does not dial.
        """
        stale = Deadline(_STALE_S)
        source = hello.source
        with self._changed:
            while (found := self._peers.get(source)) is not None and found.hello.mark != hello.mark:
                if stale.passed() or self._closed:
                    raise HandshakeError(f"{self._of(found)} is connected already, as pid {found.hello.pid}")
                self._changed.wait(stale.left())
            crossing = found is not None or (source in self._dialing and self._identity.id < source)
            if crossing or source in self._answering:
                return False
            self._answering.add(source)
            return True

    def _keep(self, peer: _Peer) -> bool:
        """The connection is made. False: another one to the same worker was faster, or this end has closed."""
        peer.sock.setblocking(False)
        with self._changed:
            if self._closed or peer.id in self._peers:
                return False
            if peer.ready:
                peer.sock.sendall(handshake.READY)
            self._gone.pop(peer.id, None)
            self._queues.inbox.add(peer.link)
            self._by_fd[peer.sock.fileno()] = peer
            self._peers[peer.id] = peer
            self._epoll.register(peer.sock, select.EPOLLIN | select.EPOLLRDHUP)
            self._changed.notify_all()
            return True

    # ------------------------------------------------------------------------------------------------ endings

    def _watch(self) -> None:
        """Look after every peer's socket until the transport is closed."""
        while not self._closed:
            for number, _ in self._epoll.poll():
                if number == self._waker.fd:
                    os.eventfd_read(number)
                    self._look_for_broken()
                else:
                    self._hear(number)

    def _look_for_broken(self) -> None:
        for peer in list(self._peers.values()):
            if peer.link.why:
                self._hear(peer.sock.fileno())  # it may have said that it is ready
                self._end(peer, f"{peer.link.why}; the connection was ended")

    def _hear(self, number: int) -> None:
        with self._changed:  # nobody closes it meanwhile
            peer = self._by_fd.get(number)
            if peer is None:
                return
            try:
                told = os.read(number, 64)  # not `recv`, which waits as long as the answer's sender has set just now
            except BlockingIOError:
                return  # meant was another peer, whose descriptor had this number before
            except OSError as error:
                told, broke = b"", str(error)
            else:
                broke = ""
        if handshake.READY in told and not peer.ready:
            with self._changed:
                peer.ready = True
                self._changed.notify_all()
        peer.closes = peer.closes or handshake.CLOSES in told
        if told.strip(handshake.READY + handshake.CLOSES):
            self._end(peer, "it sent on its connection what no worker sends")
        elif not told:
            left = "it has closed its transport" if peer.closes else "its process has ended, or it hung up"
            self._end(peer, f"{left} ({broke})" if broke else left)

    def _end(self, peer: _Peer, cause: str) -> None:
        """The peer is lost: what it has sent whole is in the queues before anybody is told."""
        error = peer.lost(cause)
        with self._changed:
            if peer.dropped or peer.error is not None:
                return
            peer.error = error
            if peer.ready:
                self._gone[peer.id] = error
            self._part(peer)
        inbox = self._queues.inbox
        inbox.finish(peer.link)
        inbox.sort()
        inbox.sweep()
        inbox.disturb()  # it may have died between a message and its ring
        if peer.ready:
            try:
                self._lost(peer.id, PeerLost(str(error.args[0]), error.ranks))
            except Exception as failure:  # noqa: BLE001 - a thread's top: other peers are still to be watched
                log.event(_LOG, logging.ERROR, "a callback for a lost worker failed", peer=peer.id, exc_info=failure)

    def _part(self, peer: _Peer) -> None:
        """Hang up, with _changed held."""
        del self._peers[peer.id]
        del self._by_fd[peer.sock.fileno()]
        self._epoll.unregister(peer.sock)
        peer.link.end()
        peer.sock.close()
        self._changed.notify_all()

    def forget(self, peer: int) -> None:
        """See Transport."""
        with self._changed:
            self._gone.pop(peer, None)
            found = self._peers.get(peer)
            if found is None:
                return
            found.dropped = True
            self._part(found)
        self._queues.inbox.remove(found.link)

    def close(self) -> None:
        """See Transport."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for peer in list(self._peers.values()):
                peer.dropped = True
                with contextlib.suppress(OSError):  # it has just left
                    peer.sock.send(handshake.CLOSES, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._part(peer)
            self._changed.notify_all()
        self._accept_loop.close()
        self._waker.wake()
        self._watcher.join()
        self._epoll.close()
        self._waker.close()
        self._queues.inbox.sweep()

    def __repr__(self) -> str:
        return (
            f"<HostTransport worker {self._identity.id}, {len(self._peers)} peers{', closed' if self._closed else ''}>"
        )


def _attach(link: Any, given: Sequence[int], hello: Greeting) -> None:
    if len(given) != handshake.DESCRIPTORS:
        raise HandshakeError(f"worker {hello.name!r} sent {len(given)} descriptors, expected 2")
    try:
        link.attach(*given, max(0, min(hello.most, 1 << 62)))
    except ValueError as error:
        raise HandshakeError(f"worker {hello.name!r}: {error}") from error


def _check_secret(identity: WorkerIdentity) -> None:
    """SecretRequired beyond loopback without one, as every transport: this one would not need it."""
    if not identity.secret and not host.is_on_loopback(host_port.host(identity.host, "RPC listens on")):
        raise SecretRequired(
            f"RPC would use {identity.host}, beyond loopback, but the job has no secret: set RESILIN_SECRET to the "
            "same value on every host (`elastic-run` does) or listen on 127.0.0.1"
        )
