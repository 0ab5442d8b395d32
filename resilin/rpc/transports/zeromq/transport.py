"""Carry messages over ZeroMQ: TCP between hosts, Unix sockets on one.

    introduction (TCP, this package's own)     proves the secret, tells who is who; stays open: its end is the peer's
    PUSH ───── messages ─────> PULL            connections of ZeroMQ for each direction: a *lane* for short messages,
    PULL <──── messages ────── PUSH            and `num_lanes` more over which long ones are striped

A worker has one PULL socket, which its receiver thread alone reads, and one PUSH socket for each lane, which any thread
uses while it holds the lane's lock: a message passes no other thread of the sender. A connection to the PULL socket is
let in only with a password (mechanism PLAIN) or a key pair (mechanism CURVE) that was made from the secret, a ticket of
an introduction and the lane, and is good for one connection; ZeroMQ reads no message before. While no introduction is
under way the kernel drops whoever knocks at the PULL socket's port.

*Plain*, the default on loopback: authenticated, not encrypted. Strangers who can connect to the host get nothing; who
can read or change what passes between the hosts can read and change messages. *CURVE*, the default beyond loopback: who
can do that can only cut the connection. A broken connection is a lost peer, and never made again under the same link.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import ClassVar

import zmq

from resilin._base import auth, host, host_port
from resilin._base.clock import SYSTEM, Deadline
from resilin._base.framing import FrameError
from resilin._base.owned_folder import PREFIX, OwnedFolder
from resilin._base.threads import OwnedThread
from resilin._base.wrong_proofs import WrongProofs
from resilin.core.machine import memory
from resilin.distributed.connections.accept_loop import AcceptLoop, Refusals, Visit
from resilin.errors import HandshakeError, PeerLost, UsageError
from resilin.rpc.transports import introduction, wire
from resilin.rpc.transports.backlog import LOOK_S
from resilin.rpc.transports.base import Lost, Queues, WorkerIdentity
from resilin.rpc.transports.introduction import Answer, NetworkAddress
from resilin.rpc.transports.network import NetworkTransport, default_encryption
from resilin.rpc.transports.wire import FrameKind
from resilin.rpc.transports.zeromq import sockets
from resilin.rpc.transports.zeromq.lane import Lane
from resilin.rpc.transports.zeromq.link import ZeroMQLink

_LINGER_S = 5.0  # at the end: so long a peer may take for what was sent to it
_DRAIN_S, _QUIET_MS = 0.02, 1  # after a peer has gone: what has come of it is taken until nothing comes for so long
_PATH_CHARS = 100  # a Unix socket's has 107
_READY = b"R"
_CLOSES = b"B"  # on the introduction's connection, before an orderly end: what is on its way still comes


class ZeroMQTransport(NetworkTransport[ZeroMQLink]):
    """Carry messages over ZeroMQ's TCP, or its Unix sockets between workers of one host.

    encrypt: CURVE for every message, also on one host; None: where this worker listens beyond loopback. All workers of
    a group have to say the same. near: whether peers of this host meet on Unix sockets, not on TCP. num_lanes: over
    how many connections long messages to a peer are striped, 1 to 16; None: 1 within a host, 4 between two, which is
    what `python -m benchmarks.rpc_transport_nets` found.
    """

    name: ClassVar[str] = "zeromq"

    def __init__(
        self,
        identity: WorkerIdentity,
        queues: Queues,
        lost: Lost,
        *,
        encrypt: bool | None = None,
        near: bool = True,
        num_lanes: int | None = None,
    ) -> None:
        if num_lanes is not None and not 1 <= num_lanes <= wire.MAX_LANES:
            raise UsageError(f"ZeroMQTransport: num_lanes: expected 1 to {wire.MAX_LANES}, got {num_lanes}")
        address = introduction.numeric_host(identity)
        encrypted = default_encryption(address, encrypt)
        if encrypted and not identity.secret:
            raise UsageError("ZeroMQTransport(encrypt=True): the keys are made from the job's secret, which is empty")
        super().__init__(identity, queues, lost, encrypted)
        self._tickets: dict[bytes, ZeroMQLink] = {}  # guarded by _lock: passwords or public keys, each good once
        self._stopping = False
        self._gone: deque[tuple[ZeroMQLink, str]] = deque()  # for the receiver
        self._calls: deque[Callable[[], None]] = deque()  # for the loop
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._undo = contextlib.ExitStack()
        self._undo.callback(os.close, self._wake_r)
        self._undo.callback(os.close, self._wake_w)
        with contextlib.ExitStack() as failed:
            failed.callback(self._undo.close)
            self._open(address, near, num_lanes or 0)
            failed.pop_all()
        self._poller = zmq.Poller()
        self._controls: dict[int, ZeroMQLink] = {}  # the loop's: by descriptor
        self._monitors: dict[zmq.Socket[bytes], ZeroMQLink] = {}  # the loop's
        self._wrong = WrongProofs()
        self._refusals = Refusals(f"the RPC transport at {self._card.at}")
        self._loop = OwnedThread("rpc-zeromq-loop", self._run_loop, self._fail)
        self._receiver = OwnedThread("rpc-zeromq-receiver", self._receive, self._fail)
        self._accept_loop = AcceptLoop("rpc-zeromq", [self._listening], self._visit)

    def _open(self, address: str, near: bool, lanes: int) -> None:
        self._listening = introduction.listen(address)
        self._undo.callback(self._listening.close)
        self._context = zmq.Context(sockets.IO_THREADS)
        self._undo.callback(self._context.destroy, 0)
        self._context.set(zmq.MAX_SOCKETS, sockets.MAX_SOCKETS)
        self._zap = sockets.open_zap(self._context)
        self._pull, data, self._gate = sockets.open_pull(
            self._context, address, self._secret, self._mark, self._encrypted
        )
        self._undo.callback(self._gate.close)
        at = host_port.join(address, int(self._listening.getsockname()[1]))
        ipc = self._open_near() if near else ""
        self._card = NetworkAddress(self.name, host.host_id(), at, data, ipc, self._mark, self._encrypted, lanes)

    def _open_near(self) -> str:
        """Bind the PULL socket in a folder of this user's alone, too."""
        folder = OwnedFolder(f"{PREFIX}-rpc-")
        self._undo.callback(folder.close)
        path = str(folder.path / "messages")
        if len(path) > _PATH_CHARS:
            return ""
        self._pull.bind(f"ipc://{path}")
        return f"ipc://{path}"

    # ------------------------------------------------------------------------------------------ the contract

    def close(self) -> None:
        """See Transport."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            links = list(self._links.values())
            self._changed.notify_all()
        self._accept_loop.close()
        until = Deadline(_LINGER_S)
        for link in links:
            if link.up and link.error is None:
                self._say_bye(link, until)
        with self._lock:  # a peer hangs up once it has taken what was sent before
            self._changed.wait_for(lambda: not any(link.up for link in self._incoming.values()), until.left())
            for link in list(self._incoming.values()):
                self._end(link, "was left: this worker's transport is closed", tell=False)
        self._post(self._stop_loop)
        self._loop.join()
        self._run_calls()
        self._stop_receiver()
        self._zap.close(0)
        self._context.term()
        self._undo.close()

    def _say_bye(self, link: ZeroMQLink, deadline: Deadline) -> None:
        """Tell the peer that nothing follows, behind all that was sent."""
        with contextlib.suppress(OSError):
            if link.control is not None:
                link.control.send(_CLOSES)
        with contextlib.suppress(PeerLost, TimeoutError):
            link.say_bye(deadline)

    # ------------------------------------------------------------------------------------------- receiving

    def _receive(self) -> None:
        memory.install()  # what long messages are put together in comes from warm arenas
        pull = self._pull
        while not self._stopping:
            frame = pull.recv(copy=False)
            if self._is_nudge(frame):
                self._drain()
            else:
                self._take_all(frame)

    def _is_nudge(self, frame: zmq.Frame) -> bool:
        """Whether the frame says no more than that `_gone` or `_stopping` is to be looked at."""
        return not frame.more and not frame.buffer.nbytes and self._user_of(frame) is None

    def _take_all(self, frame: zmq.Frame) -> None:
        """Take a frame, and what belongs to it."""
        content = None
        if frame.more:
            content = self._pull.recv(copy=False)
            if content.more:
                while self._pull.getsockopt(zmq.RCVMORE):
                    self._pull.recv(copy=False)
                self._complain(frame, "a message of ZeroMQ of more than two frames")
                return
        try:
            self._take(frame.buffer, None if content is None else content.buffer)
        except (FrameError, MemoryError) as error:
            self._complain(frame, str(error) or "no memory is left for its message")

    def _drain(self) -> None:
        """Take what has come, before the ends of those who have gone are told."""
        until = Deadline(_DRAIN_S)
        while self._gone:  # again for those whose nudge is met here
            gone = [self._gone.popleft() for _ in range(len(self._gone))]
            while self._pull.poll(_QUIET_MS) and not until.passed():
                frame = self._pull.recv(copy=False)
                if not self._is_nudge(frame):
                    self._take_all(frame)
            for link, why in gone:
                self._lose(link, why)

    def _lose_behind(self, link: ZeroMQLink, why: str) -> None:
        """On the loop's thread: a peer has gone, of which something may have come that is not taken yet."""
        if link.error is None and not self._closed:
            self._gone.append((link, why))
            sockets.nudge_pull(self._context)
        else:
            self._lose(link, why)

    @staticmethod
    def _user_of(frame: zmq.Frame) -> int | None:
        """The number of the link that the frame came on, as ZeroMQ knows it; None: it is no peer's."""
        try:
            return int(frame.get("User-Id"))
        except (zmq.ZMQError, ValueError, TypeError):
            return None

    def _take(self, data: memoryview, content: memoryview | None) -> None:
        head = wire.read_head(data)
        link = self._incoming.get(head.link - head.link % wire.LANES)
        if link is None:  # it has ended, or the frame is of another connection than it says
            raise FrameError(f"a frame of connection {head.link}, which is not there")
        if content is None:
            content = data[wire.HEAD.size :]
        elif data.nbytes != wire.HEAD.size:
            raise FrameError(f"a head of {data.nbytes} bytes, expected {wire.HEAD.size}")
        link.assembler.feed(head, content)
        if head.kind == FrameKind.HELLO:
            link.hear_hello()
        elif head.kind >= FrameKind.PAUSE and (head.kind != FrameKind.BYE or link.hear_bye()):
            self._note(link, head)

    def _complain(self, frame: zmq.Frame, why: str) -> None:
        """End the link that the frame came on, as ZeroMQ knows it: what the frame says may be wrong."""
        with self._lock:
            link = self._incoming.get(self._user_of(frame) or -1)
        if link is not None:
            self._lose(link, f"sent what no worker sends: {why}")

    def _stop_receiver(self) -> None:
        self._stopping = True
        sockets.nudge_pull(self._context)
        self._receiver.join()
        self._pull.close(0)

    # ------------------------------------------------------------------------------------------- the links

    def _make_link(self, peer: int, number: int, card: NetworkAddress, dialed: bool) -> ZeroMQLink:
        lanes = sockets.lanes_of(self._card, card.host_id), sockets.lanes_of(card, self._card.host_id)
        link = ZeroMQLink(peer, number, dialed, lanes, self._look_soon, self._lose)
        link.credentials = [
            sockets.credential(self._secret, link.ticket, lane, self._mark, self._encrypted)
            for lane in range(1 + link.lanes_in)
        ]
        self._tickets.update(dict.fromkeys(link.credentials, link))
        return link

    def _introduce(self, link: ZeroMQLink, card: NetworkAddress, deadline: Deadline) -> bool:
        with self._gate:
            control, answer = introduction.dial(card, self._secret, self._hello(link), deadline)
            with contextlib.ExitStack() as failed:
                failed.callback(control.close)
                if not self._check_welcome(link, card, answer):
                    return False
                self._open_pushes(link, card, answer.ticket, answer.number)
                link.await_heard(control, deadline)
                try:
                    control.settimeout(deadline.left())
                    ready = control.recv(1)
                except OSError as error:
                    if deadline.passed():
                        raise link.unconnected(deadline) from error
                    raise PeerLost(f"{link.who} is lost: {error}", (link.peer,)) from error
                if not ready:
                    raise PeerLost(f"{link.who} hung up during the introduction", (link.peer,))
                self._watch(link, control)
                failed.pop_all()
        return True

    def _visit(self, visit: Visit) -> None:
        """Somebody dials: on a thread of its own."""
        deadline = Deadline(sockets.INTRODUCTION_S)
        with self._refusals.noted():
            auth.prove_as_server(visit.sock, self._secret, introduction.PURPOSE, deadline, self._wrong, self._mark)
        self._accept_loop.admit(visit)
        hello = introduction.hear(visit.sock, self._secret, deadline)
        judged = self._judge(hello)
        if isinstance(judged, Answer):
            introduction.answer(visit.sock, self._secret, hello, judged)
            return
        link, card, said = judged
        try:
            with self._gate:
                introduction.answer(visit.sock, self._secret, hello, said)
                self._open_pushes(link, card, hello.ticket, hello.number)
                link.await_heard(visit.sock, deadline)
            self._watch(link, visit.sock)  # before the peer hears of it, which may send at once
            visit.kept = True
            visit.sock.send(_READY)
        except (PeerLost, UsageError) as error:
            self._give_up(link, str(error))
            raise HandshakeError(str(error)) from error
        except BaseException as error:
            self._give_up(link, str(error))
            raise

    def _open_pushes(self, link: ZeroMQLink, card: NetworkAddress, ticket: str, number: int) -> None:
        """Connect to the peer's PULL socket, by each lane."""
        near = bool(card.near and self._card.near) and card.host_id == self._card.host_id
        opened = []
        with self._lock:  # until it has ended, it is disposed of later
            if link.error is not None:
                raise link.lost()
            for which, lane in enumerate(link.every_lane):
                most = max(2, sockets.HIGH_WATER // len(link.lanes)) if which else sockets.HIGH_WATER
                push, monitor = sockets.open_push(self._context, card, self._secret, ticket, which, most, near)
                lane.open(push, monitor, number + which)
                opened.append((lane, monitor))
        for lane, monitor in opened:
            self._post(lambda lane=lane, monitor=monitor: self._watch_monitor(link, lane, monitor))  # type: ignore[misc]

    def _watch(self, link: ZeroMQLink, control: socket.socket) -> None:
        """The link is up, as long as its introduction's connection is."""
        control.setblocking(False)
        with self._lock:
            self._come_up(link)
            link.control = control
        self._post(lambda: self._watch_control(link, control))

    # -------------------------------------------------------------------------------------------- the loop

    def _post(self, call: Callable[[], None]) -> None:
        """Have the loop's thread call it."""
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # it is full: it wakes anyway
            os.write(self._wake_w, b"!")

    def _run_loop(self) -> None:
        self._poller.register(self._wake_r, zmq.POLLIN)
        self._poller.register(self._zap, zmq.POLLIN)
        while not self._stopping:
            for where, _ in self._poller.poll(self._pause_ms()):
                if where is self._zap:
                    self._answer_zap()
                elif where == self._wake_r:
                    os.read(self._wake_r, 4096)
                elif isinstance(where, int):
                    self._hear_control(where)
                else:
                    self._hear_monitor(where)
            self._run_calls()
            self._look()

    def _pause_ms(self) -> int | None:
        """How long nothing is to be done unless something comes."""
        with self._lock:
            busy = self._backlog.full or any(link.pending for link in self._incoming.values())
            ends = [link.closes_by for link in self._incoming.values() if link.closes_by is not None]
        if busy:
            return int(LOOK_S * 1000)
        return max(1, int((min(ends) - SYSTEM.monotonic()) * 1000)) if ends else None

    def _look(self) -> None:
        with self._lock:
            links = list(self._incoming.values())
        self._resume()
        for link in links:
            if link.pending:
                link.flush()
            if link.closes_by is not None and SYSTEM.monotonic() >= link.closes_by:
                self._lose(link, "hung up")

    def _answer_zap(self) -> None:
        """Let a connection in, or not (ZeroMQ's RFC 27): its ticket is used up."""
        request = self._zap.recv_multipart()
        mechanism, given = sockets.mechanism_of(request)
        with self._lock:
            wanted = b"CURVE" if self._encrypted else b"PLAIN"
            link = self._tickets.pop(given, None) if mechanism == wanted else None
        said = [b"400", b"", b""] if link is None else [b"200", b"", str(link.number).encode()]
        self._zap.send_multipart([*request[:2], *said, b""])

    def _watch_monitor(self, link: ZeroMQLink, lane: Lane, monitor: zmq.Socket[bytes]) -> None:
        if lane.monitor is monitor:
            self._monitors[monitor] = link
            self._poller.register(monitor, zmq.POLLIN)

    def _watch_control(self, link: ZeroMQLink, control: socket.socket) -> None:
        if link.error is None:
            self._controls[control.fileno()] = link
            self._poller.register(control.fileno(), zmq.POLLIN)
        else:
            control.close()

    def _hear_monitor(self, monitor: zmq.Socket[bytes]) -> None:
        link = self._monitors[monitor]
        (event,) = struct.unpack_from("=H", monitor.recv_multipart()[0])
        if event != zmq.EVENT_MONITOR_STOPPED and link.closes_by is None:
            if link.up:
                self._lose_behind(link, "closed the connection for messages")
            else:
                self._lose(link, "refused the connection for messages")

    def _hear_control(self, fd: int) -> None:
        link = self._controls.get(fd)
        if link is None or link.control is None:
            return
        why = "closed the connection: it has ended, or was killed"
        try:
            said = link.control.recv(16)
        except BlockingIOError:
            return
        except OSError as error:
            said, why = b"", f"is lost: {error}"
        if said == _CLOSES:
            link.closes_by = SYSTEM.monotonic() + _LINGER_S
        elif said:
            self._lose(link, "sent what no worker sends")
        elif link.closes_by is not None and not self._closed:  # what is on its way comes first, and its BYE is behind
            self._poller.unregister(fd)
            del self._controls[fd]
        else:
            self._poller.unregister(fd)
            del self._controls[fd]
            self._lose_behind(link, why)

    def _dispose(self, link: ZeroMQLink, error: PeerLost | None) -> None:
        """Free what an ended link has, and tell of it."""
        if error is not None:
            self._lost(link.peer, error)
        with self._lock:
            for given in link.credentials:
                self._tickets.pop(given, None)
        for lane in link.every_lane:
            monitor = lane.shut()
            if monitor is not None:
                if self._monitors.pop(monitor, None) is not None:
                    self._poller.unregister(monitor)
                monitor.close(0)
        if link.control is not None:
            if self._controls.pop(link.control.fileno(), None) is not None:
                self._poller.unregister(link.control.fileno())
            link.control.close()

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _stop_loop(self) -> None:
        self._stopping = True
