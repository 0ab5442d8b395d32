"""Point-to-point messages of one rank: sent over its control sockets, received through its mailbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilin._base.clock import Deadline
from resilin.dist.control import Control
from resilin.dist.fate import Fate
from resilin.dist.mailbox import ANY, Mailbox, Receive
from resilin.dist.message import Descriptor, Frame, Kind
from resilin.dist.reasons import prefixed
from resilin.dist.recorder import GroupLog
from resilin.dist.reduce_op import DTYPE_CODES, Array, array_bytes
from resilin.dist.work import Work
from resilin.errors import CollectiveTimeout, PeerLost


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

    def send(self, array: Array, to: int, tag: int, timeout_s: float) -> None:
        """See ProcessGroup.send."""
        deadline = Deadline(timeout_s)
        self._fate.check()
        descriptor = Descriptor(0, Kind.P2P, DTYPE_CODES[array.dtype], shape=array.shape)
        entry = None if self._log is None else self._log.message(b"send", array, to)
        sent = False
        try:
            self._control.send(to, Frame.P2P, tag, (descriptor.pack(), array_bytes(array)), deadline)
            sent = True
        except TimeoutError as error:
            self._fate.fail(CollectiveTimeout(f"send to rank {to} with tag {tag}: {error}", [to]), explain=True)
            raise self._fate.error(None) from None
        except OSError as error:
            if self._fate.failure is None:
                gone = "left the group" if to in self._fate.left else "closed the connection"
                what = f"send to rank {to} with tag {tag}, {self._title()}"
                raise PeerLost(f"{what}: the peer {gone}", [to]) from error
            raise self._fate.error(None) from None
        finally:
            if entry is not None:
                entry.end(not sent)

    def receive(self, array: Array, source: int, tag: int, done: Callable[[], None] | None) -> Work:
        """See ProcessGroup.receive."""
        self._fate.check()
        wanted = Descriptor(0, Kind.P2P, DTYPE_CODES[array.dtype], shape=array.shape)
        what = f"recv from {'any rank' if source == ANY else f'rank {source}'} with tag {tag}, {self._title()}"
        work = Work(what, source=source, awaited=() if source == ANY else (source, self._ranks[source]))
        entry = None if self._log is None else self._log.message(b"recv", array, source)

        def finish(error: BaseException | None, sender: int) -> None:
            if entry is not None:
                entry.end(error is not None)
            if error is not None:
                failed = self._fate.failure is not None
                work._future.set_exception(self._fate.error(None) if failed else prefixed(error, what))
                return
            if done is not None:
                done()
            work._source = sender
            work._future.set_result([array])

        posted = Receive(source, tag, wanted, array_bytes(array), finish)
        work._on_timeout = lambda _: self._mailbox.cancel(posted)
        self._mailbox.post(posted)
        return work
