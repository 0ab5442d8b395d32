"""Say and hear what is no request: replies, what is told of references and members, notes of channels, losses."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from resilin._base import log
from resilin._base.clock import Deadline
from resilin.errors import PeerLost, RpcError, UsageError
from resilin.rpc.agent.exchange import Exchange
from resilin.rpc.agent.gradient_messages import CONTEXT_ID, GradientMessages
from resilin.rpc.agent.peers import KnownPeers
from resilin.rpc.agent.pending import Table, Tell
from resilin.rpc.agent.server import Request, Server
from resilin.rpc.agent.thread_pool import claimed
from resilin.rpc.channels.base import TensorChannel
from resilin.rpc.membership.membership import WorkerRecord, decoded
from resilin.rpc.references.rref_context import RRefContext
from resilin.rpc.references.states import GloballyUniqueId
from resilin.rpc.serialization.messages import (
    BACKWARD,
    CLEANUP,
    CONTEXT,
    ERROR,
    FETCH,
    FORK_REQUEST,
    HEADER,
    HEADER_BYTES,
    JOB,
    LOST,
    MEMBER,
    NOTE,
    REPLIES,
    REPLY,
    RREF,
    expires,
)
from resilin.rpc.transports.base import ReceiveQueue, RpcMessage
from resilin.rpc.worker_info import WorkerInfo

_LOG = log.logger("rpc.agent")


class ControlMessages:
    """Those of one worker, in its queue of replies.

    lost: takes a worker that is lost, and how many had been it before, once everything that it had sent is handled.
    """

    def __init__(
        self,
        me: WorkerInfo,
        queue: ReceiveQueue,
        peers: KnownPeers,
        pending: Table,
        exchange: Exchange,
        numbers: Iterator[int],
        channels: Mapping[str, TensorChannel],
        server: Server,
        rrefs: RRefContext,
        lost: Callable[[int, int], None],
    ) -> None:
        self._me, self._replies, self._peers, self._pending = me, queue, peers, pending
        self._exchange, self._numbers, self._channels, self._take_lost = exchange, numbers, channels, lost
        self._jobs: deque[Callable[[], None]] = deque()
        self._server, self._rrefs = server, rrefs
        self.answers: dict[int, Callable[[int, bytes], bytes]] = {}
        """By kind of message: what answers it, given who sent it and what it says. May be asked twice. Set at start."""
        self.gradients: GradientMessages
        """Takes what is said of autograd contexts."""

    def handle(self, message: RpcMessage) -> None:
        """Do what a message asks for, or give it to who waits for it. Never raises."""
        try:
            part = message.parts[0]
            kind, flags, queue, _, number, word = HEADER.unpack_from(part)
            if kind in (REPLY, ERROR):
                entry = self._pending.pop(number)
                claimed()
                if entry is not None:
                    entry.arrived(kind, flags, message)
                else:
                    self._exchange.throw_away(flags, message)
            elif kind == FETCH:
                self._fetched(message, flags, queue, number, expires(word))
            elif kind == BACKWARD:
                self.gradients.handle(message, flags, number)
            elif kind == CLEANUP:
                self.gradients.end(CONTEXT_ID.unpack_from(part, HEADER_BYTES)[0], message.source)
                self._acknowledge(message, queue, number)
            elif kind == LOST:
                self._take_lost(message.source, number)
            elif kind == NOTE:
                self._noted(message, number)
            elif kind == MEMBER:
                self._member(message, queue, number)
            elif kind == JOB and message.source == self._me.id:
                self._jobs.popleft()()
            elif kind in self.answers:
                said = self.answers[kind](message.source, bytes(memoryview(part)[HEADER_BYTES:]))
                self._acknowledge(message, queue, number, said)
            else:
                ids = RREF.unpack_from(part, HEADER_BYTES)
                id, fork = GloballyUniqueId(*ids[:2]), GloballyUniqueId(*ids[2:])
                self._rrefs.heard(kind, id, fork, message.source)
                if kind == FORK_REQUEST and self._peers.is_gone(message.source, number):
                    self._rrefs.drop_fork(id, fork)
                self._acknowledge(message, queue, number)
        except BaseException as error:  # noqa: BLE001 - a worker thread's top: it goes on with the next message
            log.event(_LOG, logging.ERROR, "a message could not be handled", source=message.source, exc_info=error)

    def _fetched(self, message: RpcMessage, flags: int, queue: int, number: int, at: float | None) -> None:
        ids = RREF.unpack_from(message.parts[0], HEADER_BYTES)
        request = Request(self._server, message.source, queue, number, at, b"to_here", counted=False)
        if flags & CONTEXT:
            request.frame = self._server.frame_of(memoryview(message.parts[0]))
        try:
            owner = self._rrefs.asked(GloballyUniqueId(*ids[:2]), GloballyUniqueId(*ids[2:]))
        except RpcError as error:
            request.fail(error)
            return
        request.later(owner.value)

    def _acknowledge(self, message: RpcMessage, queue: int, number: int, said: bytes = b"") -> None:
        with contextlib.suppress(PeerLost, TimeoutError):  # it asks again, or is gone
            self._peers.offer(message.source, [HEADER.pack(REPLY, 0, 0, 0, number, 0.0) + said], queue)

    def tell(
        self,
        peer: int,
        kind: int,
        data: bytes,
        then: Callable[[BaseException | None], None],
        heard: Callable[[bytes], None] | None = None,
    ) -> int:
        """Send a message of this worker, again until it is answered; then call `heard`, with the answer, and `then`.

        Returns its number in the table of what is pending: who takes it out there hears no more.
        """
        number = next(self._numbers)
        parts = [HEADER.pack(kind, 0, REPLIES, 0, number, 0.0) + data]

        def send() -> None:
            try:
                with contextlib.suppress(TimeoutError):  # there is no room now: it is told again
                    self._peers.offer(peer, parts, REPLIES)
            except Exception as error:  # noqa: BLE001 - the peer is gone, or has left: nobody is to be told
                if self._pending.pop(number) is not None:
                    then(error)

        self._pending.add(number, Tell(peer, lambda: self.later(send), then, heard))
        if self._peers.is_connected(peer):
            send()
        else:
            self.later(send)
        return number

    def later(self, job: Callable[[], None]) -> None:
        """Do what may wait for a peer on a reply thread: the watch and the threads of calls wait for nobody."""
        if not self._replies.closed:
            self._jobs.append(job)
            self._replies.put(RpcMessage(self._me.id, [HEADER.pack(JOB, 0, 0, 0, 0, 0.0)]))

    def tell_member(self, member: WorkerRecord, joins: bool, deadline: Deadline) -> list[str]:
        """Tell all other workers that one has come, or leaves; return when they know.

        Returns the names of those that have not answered by then: they are told again until they do.
        """
        data, answered = member.encoded().encode(), threading.Semaphore(0)
        silent = {info.id: info.name for info in self._peers.infos() if info.id != self._me.id}

        def heard(id: int, _: BaseException | None) -> None:
            silent.pop(id, None)
            answered.release()

        for id in list(silent):
            self.tell(id, MEMBER, (b"+" if joins else b"-") + data, partial(heard, id))
        while silent and answered.acquire(timeout=deadline.left()):
            pass
        return sorted(silent.copy().values())

    def _member(self, message: RpcMessage, queue: int, number: int) -> None:
        said = bytes(memoryview(message.parts[0])[HEADER_BYTES:])
        member = decoded(said[1:])
        if said[:1] == b"+":
            self._peers.take([member])
            self._acknowledge(message, queue, number)
        else:
            self._acknowledge(message, queue, number)
            self._peers.left(member)

    def post(self, channel: str, peer: int, note: bytes) -> None:
        """Send a note to the same channel of a peer. Never raises."""
        name = channel.encode()
        head = HEADER.pack(NOTE, 0, 0, len(name), len(name), 0.0)
        with contextlib.suppress(PeerLost, TimeoutError, RpcError, UsageError):  # who is gone needs no note
            self._peers.send(peer, [head + name + note], REPLIES, Deadline(5.0))

    def _noted(self, message: RpcMessage, length: int) -> None:
        view = memoryview(message.parts[0])[HEADER_BYTES:]
        channel = self._channels.get(bytes(view[:length]).decode())
        if channel is not None:
            channel.handle(message.source, bytes(view[length:]))
