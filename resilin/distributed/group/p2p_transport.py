"""Send one rank's point-to-point messages through shared memory or control sockets, and receive through its mailbox."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from resilin._base import trace
from resilin._base.clock import SYSTEM, Deadline, spell
from resilin.distributed.backends.shm.mailbox import Got, SharedMailbox
from resilin.distributed.backends.shm.message import Sent, SharedMessage
from resilin.distributed.connections.control_channel import ControlChannel
from resilin.distributed.wire import call_phases
from resilin.distributed.wire.error_codec import prefixed
from resilin.distributed.wire.flight_recorder import FlightEntry, GroupLog
from resilin.distributed.wire.frames import Descriptor, Frame, Kind
from resilin.distributed.wire.p2p_matching import ANY, Mailbox, Receive, deliver
from resilin.distributed.wire.reduce_op import DTYPE_CODES, Array, array_bytes
from resilin.distributed.wire.tags import spoken
from resilin.distributed.wire.trace_spans import GroupFacts, traced_message
from resilin.distributed.work.future import catch_up
from resilin.distributed.work.group_failure import GroupFailure
from resilin.distributed.work.work import Work
from resilin.errors import CollectiveTimeout, DistError, GroupAborted, PeerLost, UsageError

_HAND_OVER_S = 5.0  # the longest that copying a message into its receive may take when that is withdrawn
_LOOK_S = 0.001


class P2PTransport:
    """Do what `ProcessGroup.send` and `receive` do."""

    def __init__(
        self,
        control: ControlChannel,
        mailbox: Mailbox,
        group_failure: GroupFailure,
        log: GroupLog | None,
        title: Callable[[], str],
        facts: GroupFacts,
    ) -> None:
        self._control = control
        self._mailbox = mailbox
        self._group_failure = group_failure
        self._log = log
        self._title = title
        self._facts, self._ranks = facts, facts.ranks
        self._shared_mailbox: SharedMailbox | None = None

    def join(self, post: SharedMailbox) -> None:
        """From now on messages between ranks of this host go through shared memory."""
        post.left_half_way = lambda error: self._left_half_way(f"messages, {self._title()}", error, None)
        self._shared_mailbox = post
        self._mailbox.join(post)

    def close(self) -> None:
        """Let go of shared memory."""
        if self._shared_mailbox is not None:
            self._shared_mailbox.close()

    def call(self, rank: int) -> None:
        """Make the control thread of `rank` look into its inbox."""
        with contextlib.suppress(OSError):  # it has gone: nobody has to look
            self._control.send(rank, Frame.BELL, 0, (), Deadline(None))

    def send(self, array: Array, to: int, tag: int, timeout_s: float) -> None:
        """See ProcessGroup.send."""
        deadline = Deadline(timeout_s)
        entry = self._begin("send", array, to, tag)
        post = self._shared_mailbox
        if post is None or not post.acknowledges(array, to):
            self._send(array, to, tag, deadline, entry)
        else:
            post.watch(1)  # before it is announced: who takes it at once need not call for somebody who looks
            try:
                self._send(array, to, tag, deadline, entry)
            finally:
                post.watch(-1)
        if call_phases.heard:
            call_phases.reached("end", "send")

    def _send(self, array: Array, to: int, tag: int, deadline: Deadline, entry: FlightEntry | None) -> None:
        sent = self._put(array, to, tag, deadline, entry)
        if sent is None or self._delivered(sent, deadline, entry):
            _end(entry, False)
            return
        try:
            self._work_of(sent, array, to, tag, deadline, entry).wait(deadline.left())
        except CollectiveTimeout:
            raise self._group_failure.error(None) from None

    def _delivered(self, sent: Sent, deadline: Deadline, entry: FlightEntry | None) -> bool:
        assert self._shared_mailbox is not None
        left = deadline.left()
        try:
            return self._shared_mailbox.delivered(sent, math.inf if left is None else SYSTEM.monotonic() + left)
        except BaseException as error:  # an interrupt
            self._left_half_way(self._sending(sent.to, sent.tag), error, entry)
            raise

    def start(self, array: Array, tensor: Any, to: int, tag: int, timeout_s: float, awaited: bool = True) -> Work:
        """See ProcessGroup.isend."""
        deadline = Deadline(timeout_s)
        entry = self._begin("send", array, to, tag)
        sent = self._put(array, to, tag, deadline, entry, awaited)
        return self._work_of(sent, tensor, to, tag, deadline, entry)

    def _begin(self, what: str, array: Array, peer: int, tag: int) -> FlightEntry | None:
        """A message starts: what records it."""
        catch_up()
        self._group_failure.check()
        if call_phases.heard:
            call_phases.reached("start", what)
        entry = None if self._log is None else self._log.message(what.encode(), array, peer, tag)
        return entry if trace.recorder is None else traced_message(entry, self._facts, what, array, peer, tag)

    def _put(
        self, array: Array, to: int, tag: int, deadline: Deadline, entry: FlightEntry | None, awaited: bool = True
    ) -> Sent | None:
        """Let a message begin its way. None: it has been taken, and the array may change."""
        sent = None
        try:
            if self._shared_mailbox is not None and self._shared_mailbox.reaches(to):
                sent = self._shared_mailbox.send(array, _packed(array), to, tag, awaited)
            else:
                self._control.send(to, Frame.P2P, tag, (_packed(array), array_bytes(array)), deadline)
        except TimeoutError as error:
            self._group_failure.fail(CollectiveTimeout(f"send to rank {to} {spoken(tag)}: {error}", [to]), explain=True)
            _end(entry)
            raise self._group_failure.error(None) from None
        except (OSError, DistError) as error:
            if isinstance(error, (OSError, PeerLost)):  # who died, or why the peer hung up, comes beside it
                self._group_failure.hear_why([to])
            _end(entry)
            raise self._lost(error, to, tag) from error
        except BaseException as error:  # an interrupt: perhaps half of the message is on its way
            self._left_half_way(self._sending(to, tag), error, entry)
            raise
        if call_phases.heard:
            call_phases.reached("moved", "send")
        return sent

    def _left_half_way(self, what: str, error: BaseException, entry: FlightEntry | None) -> None:
        self._group_failure.fail(GroupAborted(f"{what}: left half-way: {error!r}"), explain=True)
        _end(entry)

    def _work_of(
        self, sent: Sent | None, tensor: Any, to: int, tag: int, deadline: Deadline, entry: FlightEntry | None
    ) -> Work:
        """The Work of a message that is on its way; None: of one that has been taken."""

        def late(_: BaseException) -> None:
            if deadline.passed():  # not when the caller's own, shorter limit has
                words = f"send to rank {to} {spoken(tag)}: not received within {spell(deadline.seconds)}"
                self._group_failure.fail(CollectiveTimeout(words, [to]), explain=True)

        def finish(error: BaseException | None) -> None:
            if work._future._done:  # told again after an interrupt
                return
            _end(entry, error is not None)
            if error is None:
                work._future.settle([tensor], None)
            else:
                work._future.settle(None, self._lost(error, to, tag))
            work.let_go()

        what = self._sending(to, tag)
        refuse = partial(self._refuse, what)
        work = Work(what, late, awaited=(to, self._ranks[to]), limit_s=deadline.seconds, refuse=refuse)
        if sent is None:
            finish(None)
        else:
            post = self._shared_mailbox
            assert post is not None
            work._attend = lambda limit: post.wait(work._future.done, limit, sending=True)
            sent.then(finish)
        return work

    def _sending(self, to: int, tag: int) -> str:
        return f"send to rank {to} {spoken(tag)}, {self._title()}"

    def _lost(self, error: BaseException, to: int, tag: int) -> BaseException:
        """What a send that ended with `error` raises."""
        if self._group_failure.failure is not None or self._group_failure.closed:
            return self._ended(self._sending(to, tag))
        gone = "left the group" if to in self._group_failure.left else "closed the connection"
        return (
            PeerLost(f"{self._sending(to, tag)}: the peer {gone}", [to])
            if isinstance(error, (OSError, PeerLost))
            else error
        )

    def _ended(self, what: str) -> BaseException:
        """The error of a message that the group's end has ended. One that came too late says itself which it was."""
        return self._group_failure.error(None if isinstance(self._group_failure.failure, CollectiveTimeout) else what)

    def receive(
        self, array: Array, source: int, tag: int, timeout_s: float, done: Callable[[], None] | None = None
    ) -> Work:
        """See ProcessGroup.receive."""
        work = self._receive(array, source, tag, timeout_s, done, self._begin("recv", array, source, tag))
        if call_phases.heard:
            call_phases.reached("moved", "recv")
        return work

    def recv(self, array: Array, source: int, tag: int, timeout_s: float) -> int:
        """See ProcessGroup.recv."""
        deadline = Deadline(timeout_s)
        entry = self._begin("recv", array, source, tag)
        if call_phases.heard:
            call_phases.reached("moved", "recv")
        post, letter, work, posting = self._shared_mailbox, None, None, False
        try:
            if post is not None and post.reaches(source):
                got, letter = post.receive(array, source, tag, SYSTEM.monotonic() + timeout_s)
                if got == Got.RECEIVED:
                    _end(entry, False)
                    return source
                if got == Got.STUCK:
                    words = f"recv from rank {source} {spoken(tag)}: it stopped in the middle of the message"
                    self._group_failure.fail(CollectiveTimeout(words, [source]), explain=True)
            posting = True  # until there is a work to ask, a message may have been taken, or yet be
            work = self._receive(array, source, tag, timeout_s, None, entry, letter)
            if post is not None:
                attend = self._attending(post, work, source)
                work._attend = lambda _: attend(deadline.left())
            work.wait()
        except BaseException as error:
            self._gave_up(work, posting or letter is not None, error, entry)
            raise
        return work.source_rank()

    def _attending(self, post: SharedMailbox, work: Work, source: int) -> Callable[[float | None], bool]:
        """How to wait for a receive where ranks of this host have an inbox."""
        done, what, here = work._future.done, work.what, post.reaches(source)

        def attend(limit: float | None) -> bool:
            if not here:
                self._refuse(what)
            return post.wait(done, limit)

        return attend

    def _refuse(self, what: str) -> None:
        """UsageError where a wait would keep from being read what it waits for."""
        if self._control.reading():
            raise UsageError(
                f"{what}: a callback of a future waits for it on the thread that would have to take it in; expected "
                "callbacks that return: add what comes after it to its own future, as in "
                "irecv(tensor, src).get_future().then(...)"
            )

    def _gave_up(self, work: Work | None, taken: bool, error: BaseException, entry: FlightEntry | None) -> None:
        """A receive raises `error`: no later message shall be for it, and none is lost unless the group ends.

        taken: without a work, whether a message may have been taken for it, or may yet be.
        """
        if work is not None:
            withdraw = work._on_timeout  # None: it has ended
            if withdraw is not None and not work.is_completed():  # an interrupt
                withdraw(error)
            taken = work.is_success() or not work.is_completed()
        if taken:
            self._left_half_way(f"recv, {self._title()}" if work is None else work.what, error, entry)
        elif work is None:
            _end(entry)

    def _receive(
        self,
        array: Array,
        source: int,
        tag: int,
        timeout_s: float,
        done: Callable[[], None] | None,
        entry: FlightEntry | None,
        letter: SharedMessage | None = None,
    ) -> Work:
        """Post a receive; for `letter`, where that has come for it already."""
        what = f"recv from {'any rank' if source == ANY else f'rank {source}'} {spoken(tag)}, {self._title()}"
        awaited = () if source == ANY else (source, self._ranks[source])
        work = Work(what, source=source, awaited=awaited, limit_s=timeout_s, refuse=partial(self._refuse, what))
        post = self._shared_mailbox

        def finish(error: BaseException | None, sender: int) -> None:
            if work._future._done:  # told again after an interrupt
                return
            _end(entry, error is not None)
            if error is not None:
                failed = self._group_failure.failure is not None
                work._future.settle(None, self._ended(what) if failed else prefixed(error, what))
            else:
                if done is not None:
                    done()
                work._source = sender
                work._future.settle([array], None)
            work.let_go()
            if post is not None:
                post.expect(-1)

        posted = Receive(source, tag, _descriptor(DTYPE_CODES[array.dtype], array.shape)[0], array_bytes(array), finish)

        def withdraw(error: BaseException) -> None:
            patience = Deadline(_HAND_OVER_S)
            while not self._mailbox.cancel(posted):  # its message is here, and may be on its way into the array
                if work._future.settled_within(_LOOK_S) or patience.passed():
                    return
            _end(entry)
            work._future.settle(None, error)
            work.let_go()
            if post is not None:
                post.expect(-1)

        work._on_timeout = withdraw
        if post is not None:
            work._attend = self._attending(post, work, source)
            post.expect(1)
        try:
            if letter is None:
                self._mailbox.post(posted)
            else:
                letter.receive = posted
                deliver(letter)
        except BaseException as error:  # an interrupt, and nobody has the work to wait for
            self._left_half_way(what, error, entry)
            raise
        if post is not None:
            post.collect()
        return work


def _end(entry: FlightEntry | None, failed: bool = True) -> None:
    if entry is not None:
        entry.end(failed)


def _packed(array: Array) -> bytes:
    """What a message of `array` says of itself."""
    return _descriptor(DTYPE_CODES[array.dtype], array.shape)[1]


@lru_cache(maxsize=1024)
def _descriptor(dtype: int, shape: tuple[int, ...]) -> tuple[Descriptor, bytes]:
    made = Descriptor(0, Kind.P2P, dtype, shape=shape)
    return made, made.pack()
