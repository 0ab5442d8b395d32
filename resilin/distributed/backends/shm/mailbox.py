"""Send messages between the ranks of one host, through shared memory (native/post.hpp).

    send ── up to 4 or 64 KiB: with its bytes ──────────────> inbox ──> mailbox ──> receive
         └─ larger: where they lie; the receiver copies them, then the sender is told ──┘

Where ranks outnumber cores, 4 to 64 KiB go in one of the sender's parcels, while one is empty: two copies cost less
than two more switches of tasks. Where each rank has a core one copy is quicker.

A rank that waits in `recv` looks for its message natively and copies it straight from the inbox or the sender's memory.
When something else comes first it goes on by way of the mailbox. A sender that waits meanwhile copies a part.

Who waits for a message looks into its inbox by itself, spinning for a moment, then asleep. Where nobody waits but a
receive is posted or a send is under way, the sender calls the peer's control thread over its socket (Frame.BELL).
A rank that waits in a send takes in what others send it meanwhile, so two ranks that send first do not wait for one
another for ever.

A send never waits for room: what finds no free cell, or has no ticket to be acknowledged with, stays here in a queue of
its receiver, in order. The receiver rings, or calls, when it has made room; whoever collects next puts what fits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from resilin._base import descriptors
from resilin._base.clock import SYSTEM, Deadline
from resilin.core.machine import memory
from resilin.distributed.backends.shm.memory import Place, SharedMemory
from resilin.distributed.backends.shm.message import WITHDRAWN, Sent, SharedMessage
from resilin.distributed.wire import loader
from resilin.distributed.wire.p2p_matching import Mailbox, Receive, deliver, lost
from resilin.distributed.wire.reduce_op import DTYPE_CODES, Array
from resilin.errors import DistError, DistNetworkError

# Twice what a wake from a futex costs: a peer that is just being woken is worth waiting for awake, or ranks that slept
# once put each other to sleep at every call.
SPIN_S = 100e-6
_ANSWER_S = 2 * SPIN_S  # the peer wakes up and answers in this time
_CELL_BYTES: int = getattr(loader.native, "CELL_BYTES", 0)
_PARCEL_BYTES: int = getattr(loader.native, "PARCEL_BYTES", 0)
_IN_CELL: int = getattr(loader.native, "IN_CELL", -1)
_SHARED_MIN_BYTES: int = getattr(loader.native, "SHARED_MIN_BYTES", 0)
_PUT_CALL, _PUT_FULL = 1, 2


class Got(IntEnum):
    """Say how a native wait for a message ended: see native/post.hpp."""

    RECEIVED = 0
    CALL = 1
    """Received, and its sender must be called."""
    ELSE = 2
    """Something else came first."""
    LATE = 3
    LETTER = 4
    """It has come and must be looked after: it does not fit, or was not copied."""
    STUCK = 5
    """As LETTER, for its sender stopped in the middle of copying."""


class SharedMailbox:
    """One rank's end. `members`: the ranks of this host; `call(rank)` sends a BELL. Any thread."""

    def __init__(
        self,
        shared: SharedMemory,
        members: Sequence[int],
        rank: int,
        crowded: bool,
        mailbox: Mailbox,
        call: Callable[[int], None],
    ) -> None:
        assert loader.native is not None
        self.members = list(members)
        self._native: Any = loader.native.Post(shared.segment())  # None: closed. Guarded by _lock
        self._shared = shared
        self._seats = {member: seat for seat, member in enumerate(self.members) if member != rank}
        self._carried_bytes = _PARCEL_BYTES if crowded else _CELL_BYTES  # messages up to this travel with their bytes
        self._mailbox = mailbox
        self._call = call
        self.left_half_way: Callable[[BaseException], None] = lambda error: None
        """Called when something was raised after messages were taken from the inbox and before all heard of it."""
        self._lock = mailbox.lock
        self._sent: dict[int, Sent] = {}  # guarded by _lock: by number
        self._queues: dict[int, deque[Sent]] = {
            peer: deque() for peer in self._seats
        }  # guarded by _lock: yet to be put
        self._stalled: list[SharedMessage] = []  # guarded by _lock: matched, but the sender's memory is not mapped yet
        self._gone: set[int] = set()  # guarded by _lock
        self._error: BaseException | None = None  # guarded by _lock
        shared.on_mapped = self._mapped

    def reaches(self, rank: int) -> bool:
        """Return whether messages to `rank` go this way."""
        return rank in self._seats

    def acknowledges(self, array: Array, rank: int) -> bool:
        """Return whether a message of `array` to `rank` is copied from where it is, and its sender told of that."""
        return rank in self._seats and array.nbytes > _CELL_BYTES

    def watch(self, change: int) -> None:
        """One more (1) or one less (-1) thread looks after the inbox by itself: nobody is called for what comes."""
        native = self._native
        if native is not None:
            native.watch(change)
            if change < 0 and native.unattended():
                self.collect()  # what came since, and called nobody

    # --- sending ---

    def send(self, array: Array, what: bytes, to: int, tag: int, awaited: bool = True) -> Sent | None:
        """Send contiguous `array`, at once. None: it may change now, being small, and `to` had room for it.

        awaited: whether this rank is called when it has been copied and nobody looks; else that is seen by the next
        one that sends so, or waits.
        """
        if not awaited:
            self._settle_acked()
        self._check(to)  # before a parcel is taken; and below once more, under the lock
        array, place, parcel = self._placed(array)
        sent = Sent(array, place, parcel, what, to, tag, awaited)
        with self._lock:
            self._check(to)
            queue = self._queues[to]
            status = _PUT_FULL if queue else self._put(sent)
            if status & _PUT_FULL:
                self.expect(1)
                queue.append(sent)
        if self._error is not None:  # a signal handler has ended the group since `_check`
            self.fail(self._error)
        if status & _PUT_CALL:  # also where there was no room: nobody else calls that rank before it has heard this
            self._call(to)
        if status & _PUT_FULL:
            self._settle_acked()  # there may be tickets, or room, since: from here on this rank is told
            self._advance()
            return sent
        return None if place is None else sent

    def delivered(self, sent: Sent, until: float) -> bool:
        """Wait until it has been copied, in one native call; False: something else came first, or it is `until`.

        The caller watches.
        """
        native = self._native
        if native is None or sent.number < 0:
            return False
        acked: bool = native.settled_within(sent.number, until, _ANSWER_S)
        if acked:
            with self._lock:
                self._sent.pop(sent.number, None)
        return acked

    def _placed(self, array: Array) -> tuple[Array, Place | None, int]:
        """What is sent, and where peers find it; None: it travels with its message, perhaps in a parcel."""
        if array.nbytes <= _CELL_BYTES:
            return array, None, _IN_CELL
        native = self._native
        if array.nbytes <= self._carried_bytes and native is not None and (parcel := native.pack(array)) != _IN_CELL:
            return array, None, parcel
        place = self._shared.place(array)
        if place is None:  # from elsewhere
            memory.install()
            array = array.copy()
            place = self._shared.place(array)
        if place is None:
            raise DistNetworkError(
                f"{array.nbytes} bytes of shared memory for a message are not to be had: memory is full, or this "
                f"process has no file descriptor left; {descriptors.ADVICE}"
            )
        return array, place, _IN_CELL

    def _put(self, sent: Sent) -> int:
        """Put a message into its receiver's inbox, or nothing: the flags of native Post.put. Under the lock."""
        native, seat = self._native, self._seats[sent.to]
        if native is None:  # closed by a signal handler meanwhile
            return _PUT_FULL
        if sent.place is None:
            return int(native.put(seat, sent.tag, sent.what, sent.array, sent.parcel))
        status, number = native.announce(seat, sent.tag, sent.what, sent.array, sent.place, sent.awaited)
        if not status & _PUT_FULL:
            sent.number = number
            self._sent[number] = sent
        return int(status)

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
                sent.end(None)
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

    def _settle_acked(self) -> None:
        """See the end of messages that have been copied. Any thread."""
        acknowledged: list[Sent] = []
        with self._lock:
            if self._sent and self._native is not None:
                acknowledged += [sent for n in self._native.acked() if (sent := self._settle(n)) is not None]
        try:
            while acknowledged:
                acknowledged[0].end(None)
                del acknowledged[0]
        except BaseException as error:  # an interrupt: some who wait have not heard
            for sent in acknowledged:
                sent.end(None)
            self.left_half_way(error)
            raise

    def _settle(self, number: int) -> Sent | None:
        """The message of a number, whose ticket is free from now on. Under the lock."""
        sent = self._sent.pop(number, None)
        if sent is not None and self._native is not None:
            self._native.settle(number)
        return sent

    # --- receiving ---

    def receive(self, array: Array, source: int, tag: int, until: float) -> tuple[Got, SharedMessage | None]:
        """Wait until `until` for a message and copy it into contiguous `array`, all in one native call.

        What a signal handler raises leaves the message in the inbox, or ends the group when it has been taken.
        """
        place = self._receivable(array) if array.nbytes >= _SHARED_MIN_BYTES else None
        with self._lock:
            native = self._native
            since = -1 if native is None else native.changes()  # first: what ends the group from now on changes it
            over = native is None or self._error is not None or source in self._gone
            if over or self._mailbox.concerned(source, tag):
                return Got.ELSE, None
        seat, dtype = self._seats[source], DTYPE_CODES[array.dtype]
        answer: list[Any] = []  # filled though a handler raises as soon as the native call returns
        try:
            native.receive(seat, tag, dtype, array, place, since, until, _ANSWER_S, answer)
            got, taken = answer
            if got == Got.CALL:
                self._call(source)
                got = Got.RECEIVED
            return got, None if taken is None else SharedMessage(self, taken)
        except BaseException as error:
            if answer and answer[0] not in (Got.ELSE, Got.LATE):
                self.left_half_way(error)
            raise
        finally:
            if native.unattended():
                self.collect()  # what came since, and called nobody

    def _receivable(self, array: Array) -> Place | None:
        """Where peers find an array to help to fill it, which they may be told now."""
        try:
            return self._shared.place(array)
        except (OSError, DistError):
            raise
        except BaseException as error:  # an interrupt: perhaps a connection is left in the middle of a frame
            self.left_half_way(error)
            raise

    def expect(self, change: int) -> None:
        """One more (1) or one less (-1) receive is posted, or message is on its way."""
        native = self._native
        if native is not None:
            native.expect(change)
            if change < 0:
                native.ring()  # whoever waits for it sleeps on the bell

    def collect(self) -> None:
        """Take in what has come: match messages with receives, complete sends. Any thread."""
        matched: list[SharedMessage] = []
        acknowledged: list[Sent] = []
        try:
            self._take_in(matched, acknowledged)
        except BaseException as error:  # an interrupt: some who wait have not heard
            with self._lock:
                self._stalled += [letter for letter in matched if letter.receive is not None]  # they end with the group
            for sent in acknowledged:
                sent.end(None)
            self.left_half_way(error)
            raise

    def _take_in(self, matched: list[SharedMessage], acknowledged: list[Sent]) -> None:
        """As collect. The lists are for those that have not heard when something is raised."""
        with self._lock:
            native = self._native
            if native is None:
                return
            while (taken := native.take()) is not None:
                matched.append(SharedMessage(self, taken))
                if not self._mailbox.arrive(matched[-1]):
                    matched.pop()
            crowd = native.relieve()
            if self._sent:
                acknowledged += [sent for number in native.acked() if (sent := self._settle(number)) is not None]
        for seat in crowd:
            self._call(self.members[seat])
        while matched:
            deliver(matched[0])
            del matched[0]
        settled = bool(acknowledged)
        while acknowledged:
            acknowledged[0].end(None)
            del acknowledged[0]
        if settled:
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
        """See letter.Office."""
        native = self._native
        return WITHDRAWN if native is None else int(native.fetch(seat, place, into))

    def wait(self, done: Callable[[], bool], limit_s: float | None, sending: bool = False) -> bool:
        """Look after the inbox until `done()`: True, or False after `limit_s` seconds.

        `sending`: others need not wait for our receives meanwhile.
        """
        native = self._native
        if native is None:
            return done()
        deadline = Deadline(limit_s)
        until = math.inf if limit_s is None else SYSTEM.monotonic() + limit_s
        awake_s = _ANSWER_S
        native.watch(1)
        try:
            while True:
                seen = native.bell()
                self.collect()
                if done():
                    return True
                if deadline.passed():
                    return False
                if sending and not awake_s:
                    self._keep_all()
                rung = native.wait(seen, SYSTEM.monotonic() if sending and awake_s else until, awake_s)
                awake_s = _ANSWER_S if rung else 0.0
        finally:
            native.watch(-1)
            self.collect()  # what came since, and called nobody

    def _keep_all(self, source: int | None = None) -> None:
        for message in self._mailbox.waiting():
            if isinstance(message, SharedMessage) and source in (None, message.source):
                message.keep()

    def acknowledge(self, seat: int, ticket: int, number: int) -> None:
        """See letter.Office."""
        native = self._native
        if native is not None and native.ack(seat, ticket, number):
            self._call(self.members[seat])

    def stall(self, letter: SharedMessage, arena: int | None) -> None:
        """See letter.Office."""
        with self._lock:
            error = lost(letter.source) if letter.source in self._gone else self._error
            if error is None:
                self._stalled.append(letter)
        if error is not None:
            self._end([], [letter], error)
        elif arena is not None and self._shared.mapped(letter.seat, arena):  # meanwhile
            self._mapped()

    def take_back(self, receive: Receive) -> SharedMessage | None:
        """See mailbox.Post."""
        with self._lock:
            letter = next((letter for letter in self._stalled if letter.receive is receive), None)
            if letter is not None:
                self._stalled.remove(letter)
                letter.receive = None
        return letter

    def _mapped(self) -> None:
        with self._lock:
            stalled, self._stalled = self._stalled, []
        for letter in stalled:
            letter.hand_over()
        self.collect()
        native = self._native
        if native is not None:
            native.ring()  # whoever sleeps in a send keeps what it could not before

    # --- ends ---

    def gone(self, rank: int) -> None:
        """See mailbox.Post."""
        with self._lock:
            self._gone.add(rank)
            if self._native is not None and rank in self._seats:
                self._native.gone(self._seats[rank])
                self._native.disturb()
            failed = [sent for n in [n for n, s in self._sent.items() if s.to == rank] if (sent := self._settle(n))]
            failed += self._dequeue(rank)
            stalled = [letter for letter in self._stalled if letter.source == rank]
            self._stalled = [letter for letter in self._stalled if letter.source != rank]
        self._end(failed, stalled, lost(rank))

    def fail(self, error: BaseException) -> None:
        """See mailbox.Post. From now on peers distrust what they copy from memory of this rank's sends."""
        with self._lock:
            if self._native is not None:
                self._native.withdraw()
                self._native.disturb()
            self._error = self._error or error
            failed = [sent for number in list(self._sent) if (sent := self._settle(number))]
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

    def _end(self, failed: list[Sent], stalled: list[SharedMessage], error: BaseException) -> None:
        for sent in failed:
            sent.end(error)
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
            native.disturb()
