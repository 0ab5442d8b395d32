"""Messages between the ranks of one host, through shared memory (native/post.hpp).

    send ── up to 4 KiB: with its bytes ────────────────────> inbox ──> mailbox ──> receive
         └─ larger: where they lie; the receiver copies them, then the sender is told ──┘

Who waits for a message looks into its inbox by itself, spinning for a moment, then asleep. Where nobody waits but a
receive is posted or a send is under way, the sender calls the peer's control thread over its socket (Frame.BELL).
A rank that waits in a send takes in what others send it meanwhile, so two ranks that send first do not wait for one
another for ever.

A send never waits for room: what finds no free cell, or has no ticket to be acknowledged with, stays here in a queue of
its receiver, in order. The receiver rings, or calls, when it has made room; whoever collects next puts what fits.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from resilin._base.clock import SYSTEM, Deadline
from resilin.core.machine import memory
from resilin.dist import loader
from resilin.dist.backends.shm_memory import Place, SharedMemory
from resilin.dist.mailbox import Mailbox, Receive, deliver, lost
from resilin.dist.message import DTYPE_BYTE, Descriptor, unpack
from resilin.dist.reduce_op import Array, array_bytes
from resilin.errors import DistNetworkError

_CELL_BYTES: int = getattr(loader.native, "CELL_BYTES", 0)
_TICKETS: int = getattr(loader.native, "TICKETS", 0)
_PUT_CALL, _PUT_FULL = 1, 2
_FETCHED, _FETCH_MISSING, _FETCH_WITHDRAWN = range(3)


class Letter:
    """A message from a rank of this host. Its bytes are in `data`, or at `place` of the sender's memory."""

    complete = True

    def __init__(self, post: LocalPost, taken: tuple[Any, ...]) -> None:
        seat, self.tag, descriptor, self.length, data, arena, offset, self._number, self._ticket = taken
        self._post = post
        self.seat: int = seat
        self.source = post.members[seat]
        self.dtype: int = descriptor[DTYPE_BYTE]
        self._descriptor: bytes = descriptor
        self.receive: Receive | None = None
        self._lock = threading.Lock()
        self._data: bytes | bytearray | None = data  # guarded by _lock
        self._place: Place = arena, offset

    @property
    def descriptor(self) -> Descriptor:
        """What the sender called."""
        return unpack(self._descriptor)

    def refuse(self) -> None:
        """See mailbox.Message."""
        with self._lock:
            if self._data is None:
                self._data = b""
                self._post.acknowledge(self.seat, self._ticket, self._number)

    def keep(self) -> None:
        """Copy the bytes into memory of this process, so that the sender need not wait for a receive."""
        with self._lock:
            if self._data is None:
                kept = bytearray(self.length)
                if self._post.fetch(self.seat, self._place, kept) == _FETCHED:
                    self._data = kept
                    self._post.acknowledge(self.seat, self._ticket, self._number)

    def hand_over(self) -> None:
        """See mailbox.Message. Waits in `post.stalled` while the sender's memory has not been mapped."""
        assert self.receive is not None
        with self._lock:
            status = _FETCHED
            if self._data is not None:
                self.receive.buffer[:] = self._data
            else:
                status = self._post.fetch(self.seat, self._place, self.receive.buffer)
                if status == _FETCHED:
                    self._post.acknowledge(self.seat, self._ticket, self._number)
        if status == _FETCHED:
            self.receive.finish(None, self.source)
        elif status == _FETCH_MISSING:
            self._post.stall(self, *self._place)
        else:  # its group ended: why, and who is to blame, is on its way over the socket
            self._post.stall(self, None, 0)


class Sent:
    """A message under way. `array` must not change until `finish(error)` is called, once: when it is in its receiver's
    inbox, or, if it lies at a `place`, when it has been copied.
    """

    def __init__(
        self,
        array: Array,
        place: Place | None,
        what: bytes,
        to: int,
        tag: int,
        finish: Callable[[BaseException | None], None],
    ) -> None:
        self.array = array
        self.place = place
        self.what = what
        self.to = to
        self.tag = tag
        self.number = 0  # with which its ticket is acknowledged
        self.finish = finish


class LocalPost:
    """One rank's end. `members`: the ranks of this host; `call(rank)` sends a BELL. Any thread."""

    def __init__(
        self,
        shared: SharedMemory,
        members: Sequence[int],
        rank: int,
        spin_s: float,
        mailbox: Mailbox,
        call: Callable[[int], None],
    ) -> None:
        assert loader.native is not None
        self.members = list(members)
        self._native: Any = loader.native.Post(shared.segment())  # None: closed. Guarded by _lock
        self._shared = shared
        self._seats = {member: seat for seat, member in enumerate(self.members) if member != rank}
        self._spin_s = 2 * spin_s  # the peer wakes up and answers in this time
        self._mailbox = mailbox
        self._call = call
        self._lock = threading.RLock()  # a signal handler may abort while the same thread holds it
        self._number = 0  # guarded by _lock: messages sent
        self._sent: dict[int, Sent] = {}  # guarded by _lock: by ticket
        self._tickets = list(range(_TICKETS))  # guarded by _lock
        self._share = max(
            1, _TICKETS // max(1, len(self._seats))
        )  # of tickets; a rank that receives nothing has no more
        self._announced = dict.fromkeys(self._seats, 0)  # guarded by _lock: tickets in use, by receiver
        self._queues: dict[int, deque[Sent]] = {
            peer: deque() for peer in self._seats
        }  # guarded by _lock: yet to be put
        self._stalled: list[Letter] = []  # guarded by _lock: matched, but the sender's memory is not mapped yet
        self._gone: set[int] = set()  # guarded by _lock
        self._error: BaseException | None = None  # guarded by _lock
        shared.on_mapped = self._mapped

    def reaches(self, rank: int) -> bool:
        """Whether messages to `rank` go this way."""
        return rank in self._seats

    # --- sending ---

    def send(
        self,
        array: Array,
        what: Descriptor,
        to: int,
        tag: int,
        finish: Callable[[BaseException | None], None],
    ) -> None:
        """Send contiguous `array`, at once; `finish(error)` is called when it may change: now if it is small and `to`
        has room for it, else later, by whoever collects.
        """
        place = None
        if array.nbytes > _CELL_BYTES:
            array, place = self._placed(array)
        sent = Sent(array, place, what.pack(), to, tag, finish)
        with self._lock:
            self._check(to)
            queue = self._queues[to]
            status = _PUT_FULL if queue else self._put(sent)
            if status & _PUT_FULL:
                self.expect(1)
                queue.append(sent)
        if self._error is not None:  # a signal handler has ended the group since `_check`
            self.fail(self._error)
        if status & _PUT_FULL:
            self._advance()  # there may be room since: from here on this rank is told
            return
        if status & _PUT_CALL:
            self._call(to)
        if place is None:
            finish(None)

    def _placed(self, array: Array) -> tuple[Array, Place]:
        place = self._shared.place(array)
        if place is None:  # from elsewhere
            memory.install()
            array = array.copy()
            place = self._shared.place(array)
        if place is None:
            raise DistNetworkError(f"{array.nbytes} bytes of shared memory for a message are not to be had")
        return array, place

    def _put(self, sent: Sent) -> int:
        """Put a message into its receiver's inbox, or nothing: the flags of native Post.put. Under the lock."""
        native, seat, data = self._native, self._seats[sent.to], array_bytes(sent.array)
        if native is None:  # closed by a signal handler meanwhile
            return _PUT_FULL
        if sent.place is None:
            return int(native.put(seat, sent.tag, sent.what, data, None, 0, 0))
        if self._announced[sent.to] >= self._share:
            return _PUT_FULL | (_PUT_CALL if native.lack(seat, True) else 0)
        ticket = self._register(sent)
        status = int(native.put(seat, sent.tag, sent.what, data, sent.place, sent.number, ticket))
        if status & _PUT_FULL and self._release(ticket) is not None:
            native.expect(-1)
        return status

    def _register(self, sent: Sent) -> int:
        ticket = self._tickets.pop()
        self._number += 1
        sent.number = self._number
        self._announced[sent.to] += 1
        self.expect(1)
        self._sent[ticket] = sent
        return ticket

    def _release(self, ticket: int) -> Sent | None:
        sent = self._sent.pop(ticket, None)
        if sent is not None:
            self._tickets.append(ticket)
            self._announced[sent.to] -= 1
        return sent

    def _advance(self) -> None:
        """Put what waits for room, in order for each receiver, as far as there is some. Any thread."""
        calls: list[int] = []
        put: list[Sent] = []
        with self._lock:
            native = self._native
            if native is None:
                return
            for to, queue in self._queues.items():
                if queue and self._advance_one(queue, calls, put):
                    native.lack(self._seats[to], False)
        for to in calls:
            self._call(to)
        for sent in put:
            if sent.place is None:
                sent.finish(None)
        if put:
            native.ring()  # whoever waits for it sleeps on the bell

    def _advance_one(self, queue: deque[Sent], calls: list[int], put: list[Sent]) -> bool:
        """Put from one queue; True when nothing is left in it."""
        while queue:
            sent = queue[0]
            status = self._put(sent)
            if status & _PUT_CALL:
                calls.append(sent.to)
            if status & _PUT_FULL:
                return False
            if queue:  # else a signal handler has failed them all meanwhile
                queue.popleft()
                self.expect(-1)
                put.append(sent)
        return True

    def _check(self, to: int) -> None:
        if self._error is not None:
            raise self._error
        if self._native is None:
            raise BrokenPipeError("the group is closed")
        if to in self._gone:
            raise BrokenPipeError("the peer has gone")

    def _settle(self, ticket: int) -> Sent | None:
        with self._lock:
            sent = self._release(ticket)
            if sent is not None:
                self.expect(-1)
        return sent

    # --- receiving ---

    def expect(self, change: int) -> None:
        """One more (1) or one less (-1) receive is posted, or message is on its way."""
        native = self._native
        if native is not None:
            native.expect(change)
            if change < 0:
                native.ring()  # whoever waits for it sleeps on the bell

    def collect(self) -> None:
        """Take in what has come: match messages with receives, complete sends. Any thread."""
        matched: list[Letter] = []
        acknowledged: list[Sent] = []
        crowd: list[int] = []
        with self._lock:
            native = self._native
            if native is None:
                return
            letter = None
            while (taken := native.take()) is not None:
                letter = Letter(self, taken)
                if self._mailbox.arrive(letter):
                    matched.append(letter)
            if letter is not None:
                crowd = native.relieve()
            if self._sent:
                done = [ticket for ticket, sent in self._sent.items() if native.acked(ticket, sent.number)]
                acknowledged = [sent for ticket in done if (sent := self._settle(ticket)) is not None]
        for seat in crowd:
            self._call(self.members[seat])
        for letter in matched:
            deliver(letter)
        for sent in acknowledged:
            sent.finish(None)
        if acknowledged:
            native.ring()
        if any(self._queues.values()):
            self._advance()
        if native.shortage():
            self._relieve_senders(native)

    def _relieve_senders(self, native: Any) -> None:
        """Free the tickets of ranks that have no more, where a receive may wait for what they could not announce."""
        for source, seat in self._seats.items():
            if native.lacks(seat) and self._mailbox.awaits(source):
                self._keep_all(source)

    def heard(self) -> None:
        """A BELL has come: look (control thread)."""
        native = self._native
        if native is not None:
            native.heard()
            self.collect()

    def fetch(self, seat: int, place: Place, into: memoryview | bytearray) -> int:
        """Copy from the memory of a rank of this host: fetched, missing or withdrawn."""
        native = self._native
        return _FETCH_WITHDRAWN if native is None else int(native.fetch(seat, *place, into))

    def wait(self, done: Callable[[], bool], limit_s: float | None, sending: bool = False) -> bool:
        """Look after the inbox until `done()`: True, or False after `limit_s` seconds.

        `sending`: others need not wait for our receives meanwhile.
        """
        native = self._native
        if native is None:
            return done()
        deadline = Deadline(limit_s)
        until = math.inf if limit_s is None else SYSTEM.monotonic() + limit_s
        spin_s = self._spin_s
        native.watch(1)
        try:
            while True:
                seen = native.bell()
                self.collect()
                if done():
                    return True
                if deadline.passed():
                    return False
                if sending and not spin_s:
                    self._keep_all()
                rung = native.wait(seen, SYSTEM.monotonic() if sending and spin_s else until, spin_s)
                spin_s = self._spin_s if rung else 0.0
        finally:
            native.watch(-1)
            self.collect()  # what came since, and called nobody

    def _keep_all(self, source: int | None = None) -> None:
        for message in self._mailbox.waiting():
            if isinstance(message, Letter) and source in (None, message.source):
                message.keep()

    def acknowledge(self, seat: int, ticket: int, number: int) -> None:
        """Tell a sender that its bytes have been copied."""
        native = self._native
        if native is not None and native.ack(seat, ticket, number):
            self._call(self.members[seat])

    def stall(self, letter: Letter, arena: int | None, _: int) -> None:
        """Try `letter` again when `arena` of its sender is mapped; None: keep it until its end is known."""
        with self._lock:
            error = lost(letter.source) if letter.source in self._gone else self._error
            if error is None:
                self._stalled.append(letter)
        if error is not None:
            self._end([], [letter], error)
        elif arena is not None and self._shared.mapped(letter.seat, arena):  # meanwhile
            self._unstall()

    def _mapped(self) -> None:
        self._unstall()
        self.collect()  # what could not be kept before

    def _unstall(self) -> None:
        with self._lock:
            stalled, self._stalled = self._stalled, []
        for letter in stalled:
            letter.hand_over()

    # --- ends ---

    def gone(self, rank: int) -> None:
        """See mailbox.Post."""
        with self._lock:
            self._gone.add(rank)
            failed = [sent for t in [t for t, s in self._sent.items() if s.to == rank] if (sent := self._settle(t))]
            failed += self._dequeue(rank)
            stalled = [letter for letter in self._stalled if letter.source == rank]
            self._stalled = [letter for letter in self._stalled if letter.source != rank]
        self._end(failed, stalled, lost(rank))

    def fail(self, error: BaseException) -> None:
        """See mailbox.Post. From now on peers distrust what they copy from memory of this rank's sends."""
        with self._lock:
            if self._native is not None:
                self._native.withdraw()
            self._error = self._error or error
            failed = [sent for ticket in list(self._sent) if (sent := self._settle(ticket))]
            failed += [sent for rank in self._queues for sent in self._dequeue(rank)]
            stalled, self._stalled = self._stalled, []
        self._end(failed, stalled, error)

    def _dequeue(self, rank: int) -> list[Sent]:
        queue = self._queues.get(rank, ())
        left = list(queue)
        if left:
            self._queues[rank].clear()
            self.expect(-len(left))
        return left

    def _end(self, failed: list[Sent], stalled: list[Letter], error: BaseException) -> None:
        for sent in failed:
            sent.finish(error)
        for letter in stalled:
            if letter.receive is not None:
                letter.receive.finish(error, letter.source)
        native = self._native
        if native is not None:
            native.ring()

    def close(self) -> None:
        """Let go of the shared memory; waits end by themselves. Idempotent."""
        with self._lock:
            native, self._native = self._native, None
        if native is not None:
            native.withdraw()
            native.ring()
