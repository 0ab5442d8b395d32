"""What transports over a network have in common: who is connected, who may connect, and how a link ends.

    nothing ──> introduced, by this worker or by the peer ──> up ──> ended, and told of
                         └──────────── given up <── it failed, or who dialed did not wait for its end

A link that has ended is never used again: who comes after it, of the same id, gets a new one.
"""

from __future__ import annotations

import abc
import logging
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from resilin._base import host, log
from resilin._base.clock import Deadline, spell
from resilin.errors import HandshakeError, PeerLost, UsageError
from resilin.rpc.transports import introduction, wire
from resilin.rpc.transports.backlog import Backlog
from resilin.rpc.transports.base import Buffer, Lost, Queues, Transport, WorkerIdentity
from resilin.rpc.transports.introduction import Answer, Greeting, NetworkAddress
from resilin.rpc.transports.wire import FrameKind, Head

_log = log.logger("rpc.transports")
_NUMBERS = 1 << 32  # that heads of frames may name
_AGAIN_S = 0.2  # after both have dialed at once, and the other one's dial was to be made


class PeerLink(abc.ABC):
    """One peer, from its introduction to its end."""

    assembler: wire.Assembler

    def __init__(self, peer: int, number: int, dialed: bool, lanes_in: int = 0) -> None:
        self.peer = peer
        self.number = number  # frames from there name it
        self.lanes_in = lanes_in  # that come from there, beside lane 0
        self.dialed = dialed  # by this worker
        self.ticket = introduction.new_ticket()
        self.who = f"worker {peer}"
        self.mark = ""
        self.up = False  # guarded by the transport's lock
        self.gave_way = False  # guarded by the transport's lock: both dialed at once, and the other one's dial is made
        self.met = False  # guarded by the transport's lock: the other end relies on it, too
        self.error: PeerLost | None = None  # set once, under the transport's lock
        self._news = threading.Condition()
        self._paused: set[int] = set()  # guarded by _news: queues that the peer has no room in

    @property
    @abc.abstractmethod
    def usable(self) -> bool:
        """Return whether something may be sent there: also before `connect` returns, for it may be answered."""

    @abc.abstractmethod
    def has_left(self) -> bool:
        """Return whether the peer has hung up, which nobody may have noticed yet."""

    @abc.abstractmethod
    def deliver(self, message: wire.Lengths, queue: int, deadline: Deadline) -> None:
        """Send a message to a queue that has room. PeerLost, TimeoutError."""

    @abc.abstractmethod
    def post(self, kind: FrameKind, queue: int, argument: int = 0) -> None:
        """Send a frame without content, now or as soon as there is a chance. Never blocks."""

    def send(self, message: wire.Lengths, queue: int, deadline: Deadline) -> None:
        """Send a message. PeerLost, TimeoutError."""
        if self._paused:
            self._await_queue(queue, deadline)
        self.deliver(message, queue, deadline)

    def name(self, card: NetworkAddress, own: NetworkAddress, name: str, pid: int) -> None:
        """The peer has said who it is."""
        place = "this host" if card.host_id == own.host_id else card.at
        self.who = f"worker {name!r} (id {self.peer}, {place}, process {pid})"
        self.mark = card.mark

    def lost(self) -> PeerLost:
        """The error for one more caller."""
        return PeerLost(str(self.error), (self.peer,))

    def late(self, deadline: Deadline) -> TimeoutError:
        """The error of who waited for room in vain."""
        return TimeoutError(f"{self.who} had no room for a message within {spell(deadline.seconds)}")

    def unconnected(self, deadline: Deadline) -> TimeoutError:
        """The error of who waited for a connection in vain."""
        return TimeoutError(f"{self.who} was not connected within {spell(deadline.seconds)}")

    def wake(self) -> None:
        """It has ended: for those who wait."""
        with self._news:
            self._news.notify_all()

    def note(self, head: Head) -> None:
        """The peer has, or has not, room in a queue."""
        with self._news:
            (self._paused.add if head.kind == FrameKind.PAUSE else self._paused.discard)(head.queue)
            self._news.notify_all()

    def _await_queue(self, queue: int, deadline: Deadline) -> None:
        with self._news:
            free = self._news.wait_for(lambda: queue not in self._paused or self.error is not None, deadline.left())
        if self.error is not None:
            raise self.lost()
        if not free:
            raise self.late(deadline)


AnyLink = TypeVar("AnyLink", bound=PeerLink)


class NetworkTransport(Transport, Generic[AnyLink]):
    """Know the peers of a worker. Subclasses make the connections."""

    _card: NetworkAddress

    def __init__(self, identity: WorkerIdentity, queues: Queues, lost: Lost, encrypted: bool) -> None:
        self._identity = identity
        self._secret = identity.secret
        self._encrypted = encrypted
        self._lost = lost
        self._mark = secrets.token_hex(8)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # notified when a link comes up or ends
        self._links: dict[int, AnyLink] = {}  # guarded by _lock: by peer; of a lost one until it is forgotten
        self._incoming: dict[int, AnyLink] = {}  # guarded by _lock: by number, none that has ended
        self._next_number = secrets.randbits(31) * wire.LANES % _NUMBERS  # guarded by _lock
        self._closed = False  # guarded by _lock
        self._backlog: Backlog[AnyLink] = Backlog(queues)

    # --------------------------------------------------------------------------------- what subclasses have

    @abc.abstractmethod
    def _make_link(self, peer: int, number: int, card: NetworkAddress, dialed: bool) -> AnyLink:
        """Under the lock. The numbers of its lanes are `number` and the next ones."""

    @abc.abstractmethod
    def _introduce(self, link: AnyLink, card: NetworkAddress, deadline: Deadline) -> bool:
        """Dial the peer, until the link is up. False: it has dialed here, and that goes on."""

    @abc.abstractmethod
    def _dispose(self, link: AnyLink, error: PeerLost | None) -> None:
        """On the loop's thread: free what an ended link has, and tell of the error, if there is one."""

    @abc.abstractmethod
    def _post(self, call: Callable[[], None]) -> None:
        """Have the loop's thread call it, and look at what is due."""

    # ------------------------------------------------------------------------------------------ the contract

    @property
    def address(self) -> str:
        """See Transport."""
        return self._card.describe()

    def reaches(self, address: str) -> bool:
        """See Transport."""
        try:
            return NetworkAddress.parse(address, self.name).reachable()
        except UsageError:
            return False

    def connect(self, peer: int, address: str, deadline: Deadline) -> None:
        """See Transport."""
        card = NetworkAddress.parse(address, self.name)
        if card.encrypted != self._encrypted:
            raise HandshakeError(
                f"worker {peer} {'encrypts' if card.encrypted else 'does not encrypt'} its messages and this one "
                f"{'does' if self._encrypted else 'does not'}: give all workers of a group the same options"
            )
        while (link := self._begin(peer, card, deadline)) is not None:
            try:
                done = self._introduce(link, card, deadline)
            except BaseException as error:
                self._give_up(link, str(error))
                if not link.gave_way or not isinstance(error, Exception):
                    raise
                done = False
            if done:
                self._await_met(link, deadline)
                return
            self._give_up(link, "the peer dialed at the same time")
            if deadline.passed():
                raise link.unconnected(deadline)
            self._await_other(peer, deadline)

    def send(self, peer: int, parts: Sequence[Buffer], queue: int, deadline: Deadline) -> None:
        """See Transport."""
        message = wire.measured(parts, self._identity.max_message_bytes)
        link = self._links.get(peer)
        if link is None or not link.usable:
            with self._lock:
                self._check_open()
            raise UsageError(f"worker {peer} is not connected: connect to it before something is sent there")
        link.send(message, queue, deadline)

    def forget(self, peer: int) -> None:
        """See Transport."""
        with self._lock:
            link = self._links.pop(peer, None)
            if link is not None:
                self._end(link, "was forgotten here", tell=False)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._links)} peers"
        return f"<{type(self).__name__} {self._card.at} {state}>"

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this RPC transport is closed")

    # ------------------------------------------------------------------------------------------- the links

    def _begin(self, peer: int, card: NetworkAddress, deadline: Deadline) -> AnyLink | None:
        """A new link to introduce; None: there is one that is up."""
        with self._lock:
            while True:
                self._check_open()
                found = self._links.get(peer)
                if found is None or found.error is not None:
                    return self._new_link(peer, card, dialed=True)
                if found.up and found.mark == card.mark:
                    self._await_met(found, deadline)
                    return None
                if found.up:
                    self._replace(found)
                    continue
                wanted = found  # another thread, or the peer itself, is about it
                if not self._changed.wait_for(
                    lambda link=wanted: link.up or link.error is not None or self._closed,  # type: ignore[misc]
                    deadline.left(),
                ):
                    raise found.unconnected(deadline)

    def _await_met(self, link: AnyLink, deadline: Deadline) -> None:
        """Wait until the other end has heard that this one relies on the link: it is told of the end from then on.

        Where that takes longer than the deadline, or does not come about, the link is up at this end all the same.
        """
        with self._lock:
            self._changed.wait_for(lambda: link.met or link.error is not None or self._closed, deadline.left())

    def _await_other(self, peer: int, deadline: Deadline) -> None:
        """Give the peer's own introduction a moment."""
        left = deadline.left()
        with self._lock:
            self._changed.wait_for(
                lambda: self._closed or ((link := self._links.get(peer)) is not None and link.up),
                _AGAIN_S if left is None else min(left, _AGAIN_S),
            )

    def _new_link(self, peer: int, card: NetworkAddress, dialed: bool) -> AnyLink:
        """Under the lock."""
        self._next_number = (self._next_number + wire.LANES) % _NUMBERS
        link = self._make_link(peer, self._next_number, card, dialed)
        link.assembler = wire.Assembler(
            link.number, self._identity.max_message_bytes, _Arrivals(self, link), 1 + link.lanes_in
        )
        self._links[peer] = link
        self._incoming[link.number] = link
        return link

    def _hello(self, link: AnyLink) -> Greeting:
        own = self._identity
        return Greeting(own.group, own.id, link.peer, own.name, os.getpid(), self.address, link.ticket, link.number)

    def _judge(self, hello: Greeting) -> tuple[AnyLink, NetworkAddress, Answer] | Answer:
        """Let somebody in who said that hello, or say why not."""
        own = self._identity
        if hello.group != own.group:
            return _refusal(f"its group is {own.group!r}, not {hello.group!r}")
        if hello.target != own.id:
            return _refusal(f"it is worker {own.id} ({own.name!r}), not {hello.target}")
        if not 0 <= hello.source < 1 << 16 or not 0 <= hello.number < _NUMBERS:
            return _refusal(f"there is no worker {hello.source}")
        try:
            card = NetworkAddress.parse(hello.card, self.name)
        except UsageError as error:
            return _refusal(str(error))
        if card.encrypted != self._encrypted:
            return _refusal("one of both encrypts its messages: give all workers of a group the same options")
        with self._lock:
            if self._closed:
                return _refusal("it closes its transport")
            found = self._links.get(hello.source)
            if found is not None and found.error is None:
                if found.up:
                    if not found.has_left():
                        return (
                            Answer(introduction.CROSSING)
                            if found.mark == card.mark
                            else _refusal(f"{found.who} is connected with this id, and has to be gone first")
                        )
                    self._replace(found)
                elif not found.dialed and found.has_left():
                    self._end(found, "gave up connecting", tell=False)
                elif not found.dialed or own.id <= hello.source:
                    return Answer(introduction.CROSSING)  # both dial: that of the lower one is made
                else:
                    found.gave_way = True  # never both: that of who has given up meanwhile would take its place
                    self._end(found, "gave way to the dial from there", tell=False)
            link = self._new_link(hello.source, card, dialed=False)
            link.name(card, self._card, hello.name, hello.pid)
        return link, card, Answer(introduction.WELCOME, "", own.name, os.getpid(), link.ticket, link.number)

    def _replace(self, link: AnyLink) -> None:
        """Under the lock: end the link of a peer whose place another one has. HandshakeError: it has not left."""
        if not link.has_left():
            raise HandshakeError(f"{link.who} is connected with this id, and has to be gone first, or be forgotten")
        self._end(link, "hung up", tell=True)

    def _check_welcome(self, link: AnyLink, card: NetworkAddress, answer: Answer) -> bool:
        """Whether the peer takes the link. False: it dials itself. HandshakeError: it refused."""
        if answer.verdict == introduction.CROSSING:
            return False
        if answer.verdict != introduction.WELCOME:
            raise HandshakeError(f"worker {link.peer} at {card.at} refused: {answer.reason}")
        link.name(card, self._card, answer.name, answer.pid)
        return True

    def _come_up(self, link: AnyLink) -> None:
        """This end has what it needs: the link is up where it dialed, which is what the other end then hears.

        PeerLost: it has ended meanwhile.
        """
        with self._lock:
            if link.error is not None:
                raise link.lost()
            self._check_open()
            link.up = link.dialed
            self._changed.notify_all()
        if link.dialed:
            link.post(FrameKind.READY, 0)

    def _relied_on(self, link: AnyLink) -> None:
        """The other end relies on the link; whoever dialed has to hear that this is known."""
        with self._lock:
            link.up = link.met = link.error is None
            self._changed.notify_all()
        if not link.dialed:
            link.post(FrameKind.READY, 0)

    def _give_up(self, link: AnyLink, why: str) -> None:
        """An introduction failed: there was no such peer."""
        with self._lock:
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
            self._end(link, f"could not be connected: {why}", tell=False)

    def _lose(self, link: AnyLink, why: str) -> None:
        """A peer is gone, or has to be. Any thread."""
        with self._lock:
            self._end(link, why, tell=link.up)

    def _fail(self, error: BaseException) -> None:
        """A thread of the transport has ended with an error: so do all links. On that thread."""
        log.event(_log, logging.ERROR, "an RPC transport has failed", transport=self.name, error=repr(error))
        with self._lock:
            for link in list(self._incoming.values()):
                self._end(link, f"is not heard any more, as a thread of this worker has failed: {error!r}", tell=True)

    def _end(self, link: AnyLink, why: str, tell: bool) -> None:
        """Under the lock: nothing more comes from there, nothing more goes there."""
        if link.error is not None:
            return
        link.error = error = PeerLost(f"{link.who} {why}", (link.peer,))
        self._incoming.pop(link.number, None)
        link.assembler.drop()
        self._backlog.forget(link)
        self._changed.notify_all()
        link.wake()
        self._post(lambda: self._dispose(link, error if tell and not self._closed else None))

    # ------------------------------------------------------------------------------------------- receiving

    def _note(self, link: AnyLink, head: Head) -> None:
        """A frame that is no part of a message."""
        if head.kind == FrameKind.BYE:
            self._lose(link, "has closed its transport")
        elif head.kind == FrameKind.READY:
            self._relied_on(link)
        elif head.kind in (FrameKind.PAUSE, FrameKind.RESUME):
            link.note(head)

    def _arrived(self, link: AnyLink, queue: int, parts: list[Buffer], size: int) -> None:
        if self._backlog.put(link, link.peer, queue, parts, size):
            self._pause(link, queue)

    def _waits(self, link: AnyLink, queue: int, count: int, size: int) -> None:
        if self._backlog.hold(link, queue, count, size):
            self._pause(link, queue)

    def _pause(self, link: AnyLink, queue: int) -> None:
        link.post(FrameKind.PAUSE, queue)
        self._look_soon()  # until there is room

    def _look_soon(self) -> None:
        self._post(lambda: None)

    def _resume(self) -> None:
        """On the loop's thread: let those go on who wait for queues that have room again."""
        for queue, senders in self._backlog.resumed() if self._backlog.full else ():
            for link in senders:
                assert isinstance(link, PeerLink)
                link.post(FrameKind.RESUME, queue)


class _Arrivals(Generic[AnyLink]):
    """Hands what the assembler of a link has to its transport."""

    def __init__(self, transport: NetworkTransport[AnyLink], link: AnyLink) -> None:
        self._transport, self._link = transport, link

    def arrived(self, queue: int, parts: list[Buffer], size: int) -> None:
        self._transport._arrived(self._link, queue, parts, size)

    def held(self, queue: int, count: int, size: int) -> None:
        self._transport._waits(self._link, queue, count, size)


def _refusal(reason: str) -> Answer:
    return Answer(introduction.REFUSED, reason)


def default_encryption(address: str, encrypt: bool | None) -> bool:
    """Whether messages are encrypted: by default where a worker listens beyond loopback."""
    return not host.is_loopback(address) if encrypt is None else encrypt
