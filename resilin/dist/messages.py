"""Point-to-point messages of one rank: through shared memory or control sockets, received through its mailbox."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from resilin._base.clock import Deadline, spell
from resilin.dist import phases
from resilin.dist.control import Control
from resilin.dist.fate import Fate
from resilin.dist.mailbox import ANY, Mailbox, Receive
from resilin.dist.message import Descriptor, Frame, Kind
from resilin.dist.post import LocalPost
from resilin.dist.reasons import prefixed
from resilin.dist.recorder import GroupLog
from resilin.dist.reduce_op import DTYPE_CODES, Array, array_bytes
from resilin.dist.work import Work
from resilin.errors import CollectiveTimeout, DistError, GroupAborted, PeerLost


class Messages:
    """What `ProcessGroup.send` and `receive` do. `ranks` are the members' ranks in the world."""

    def __init__(
        self,
        control: Control,
        mailbox: Mailbox,
        fate: Fate,
        log: GroupLog | None,
        title: Callable[[], str],
        ranks: Sequence[int],
    ) -> None:
        self._control = control
        self._mailbox = mailbox
        self._fate = fate
        self._log = log
        self._title = title
        self._ranks = ranks
        self._post: LocalPost | None = None

    def join(self, post: LocalPost) -> None:
        """From now on messages between ranks of this host go through shared memory."""
        self._post = self._mailbox.post_office = post
        post.collect()

    def close(self) -> None:
        """Let go of shared memory."""
        if self._post is not None:
            self._post.close()

    def call(self, rank: int) -> None:
        """Make the control thread of `rank` look into its inbox."""
        with contextlib.suppress(OSError):  # it has gone: nobody has to look
            self._control.send(rank, Frame.BELL, 0, (), Deadline(None))

    def send(self, array: Array, to: int, tag: int, timeout_s: float) -> None:
        """See ProcessGroup.send."""
        deadline = Deadline(timeout_s)
        work = self.start(array, array, to, tag, timeout_s)
        try:
            work.wait(deadline.left())
        except CollectiveTimeout:
            raise self._fate.error(None) from None
        if phases.heard:
            phases.reached("end", "send")

    def start(self, array: Array, tensor: Any, to: int, tag: int, timeout_s: float) -> Work:
        """See ProcessGroup.isend."""
        deadline = Deadline(timeout_s)
        self._fate.check()
        if phases.heard:
            phases.reached("start", "send")
        descriptor = Descriptor(0, Kind.P2P, DTYPE_CODES[array.dtype], shape=array.shape)
        what = f"send to rank {to} with tag {tag}, {self._title()}"
        entry = None if self._log is None else self._log.message(b"send", array, to)

        def late(_: BaseException) -> None:
            if deadline.passed():  # not when the caller's own, shorter limit has
                words = f"send to rank {to} with tag {tag}: not received within {spell(timeout_s)}"
                self._fate.fail(CollectiveTimeout(words, [to]), explain=True)

        work = Work(what, late, awaited=(to, self._ranks[to]), limit_s=timeout_s)

        def finish(error: BaseException | None) -> None:
            if entry is not None:
                entry.end(error is not None)
            if error is None:
                work._future.set_result([tensor])
            else:
                work._future.set_exception(self._lost(error, what, to))

        try:
            if self._post is not None and self._post.reaches(to):
                post = self._post
                work._attend = lambda limit: post.wait(work._future.done, limit, sending=True)
                post.send(array, descriptor, to, tag, finish)
            else:
                self._control.send(to, Frame.P2P, tag, (descriptor.pack(), array_bytes(array)), deadline)
                finish(None)
        except TimeoutError as error:
            self._fate.fail(CollectiveTimeout(f"send to rank {to} with tag {tag}: {error}", [to]), explain=True)
            finish(error)
            raise self._fate.error(None) from None
        except (OSError, DistError) as error:
            if isinstance(error, (OSError, PeerLost)):  # who died, or why the peer hung up, comes beside it
                self._fate.hear_why([to])
            finish(error)
            raise self._lost(error, what, to) from error
        except BaseException as error:  # an interrupt: perhaps half of the message is on its way
            self._fate.fail(GroupAborted(f"{what}: left half-way: {error!r}"), explain=True)
            if not work.is_completed():
                finish(error)
            raise
        if phases.heard:
            phases.reached("moved", "send")
        return work

    def _lost(self, error: BaseException, what: str, to: int) -> BaseException:
        """What a send that ended with `error` raises."""
        if self._fate.failure is not None or self._fate.closed:
            return self._fate.error(None)
        gone = "left the group" if to in self._fate.left else "closed the connection"
        return PeerLost(f"{what}: the peer {gone}", [to]) if isinstance(error, (OSError, PeerLost)) else error

    def receive(
        self, array: Array, source: int, tag: int, timeout_s: float, done: Callable[[], None] | None = None
    ) -> Work:
        """See ProcessGroup.receive."""
        self._fate.check()
        if phases.heard:
            phases.reached("start", "recv")
        wanted = Descriptor(0, Kind.P2P, DTYPE_CODES[array.dtype], shape=array.shape)
        what = f"recv from {'any rank' if source == ANY else f'rank {source}'} with tag {tag}, {self._title()}"
        awaited = () if source == ANY else (source, self._ranks[source])
        work = Work(what, source=source, awaited=awaited, limit_s=timeout_s)
        entry = None if self._log is None else self._log.message(b"recv", array, source)

        post = self._post

        def finish(error: BaseException | None, sender: int) -> None:
            if entry is not None:
                entry.end(error is not None)
            if error is not None:
                failed = self._fate.failure is not None
                work._future.set_exception(self._fate.error(None) if failed else prefixed(error, what))
            else:
                if done is not None:
                    done()
                work._source = sender
                work._future.set_result([array])
            if post is not None:
                post.expect(-1)

        posted = Receive(source, tag, wanted, array_bytes(array), finish)

        def withdraw(error: BaseException) -> None:
            if self._mailbox.cancel(posted):  # else its message is here
                if entry is not None:
                    entry.end(True)
                work._future.set_exception(error)
                if post is not None:
                    post.expect(-1)

        work._on_timeout = withdraw
        if post is None:
            self._mailbox.post(posted)
        else:
            work._attend = lambda limit: post.wait(work._future.done, limit)
            post.expect(1)
            self._mailbox.post(posted)
            post.collect()
        if phases.heard:
            phases.reached("moved", "recv")
        return work
