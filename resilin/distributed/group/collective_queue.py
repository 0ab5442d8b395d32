"""The collectives of one rank: one after the other, here or on the worker thread, and what becomes of their errors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from resilin._base import trace
from resilin._base.clock import Deadline
from resilin.distributed.backends.base import Aborted, Call, Refused
from resilin.distributed.wire import call_phases
from resilin.distributed.wire.error_codec import abort_reason, is_shared, telling_once
from resilin.distributed.wire.flight_recorder import FlightEntry, GroupLog
from resilin.distributed.wire.frames import Kind
from resilin.distributed.wire.trace_spans import GroupFacts, traced
from resilin.distributed.work.comm_thread import CommThread, in_callback
from resilin.distributed.work.future import Task, carry_out, catch_up
from resilin.distributed.work.group_failure import GroupFailure
from resilin.distributed.work.work import Work
from resilin.errors import CollectiveMismatch, CollectiveTimeout, GroupAborted, PeerLost, UsageError

Run = Callable[[Call], None]


class Owner(Protocol):
    """The group whose calls these are."""

    timeout_s: float
    key: int

    def rank(self) -> int:
        """This rank."""

    def size(self) -> int:
        """Number of ranks."""

    def title(self) -> str:
        """How error messages name this end."""

    def abort(self, error: BaseException | None = None) -> None:
        """End the group."""

    def refuse(self, call: Call, error: Exception, verb: str) -> None:
        """Make `call` as one that this rank refuses because of `error`."""

    def abort_with(self, error: BaseException, where: str) -> None:
        """End the group because of an error of this rank that its peers do not have."""

    def peer_error(self, rank: int, call: str, where: str, other: str = "") -> Exception | None:
        """What `rank` says, which refuses the call of that number, or an `other` one."""

    def left_half_way(self) -> None:
        """A call of this rank raised something in its middle, and the group has ended: return when its tensors rest."""

    def waited(self, awaited: Collection[int]) -> frozenset[int]:
        """A wait for `awaited` was too long: who is to blame."""


class _Row:
    """Calls of which none is made after one that has failed. `count`: how many there are."""

    def __init__(self, count: int = 0) -> None:
        self.error: BaseException | None = None
        self._count = count

    def told(self) -> int:
        """What a call of the row says of the number of them: the first one `count`, others 0, as calls in no row."""
        count, self._count = self._count, 0
        return count


class CollectiveQueue:
    """Runs the calls of a group in the order in which they are made."""

    def __init__(
        self, owner: Owner, group_failure: GroupFailure, log: GroupLog | None, worker: CommThread, facts: GroupFacts
    ) -> None:
        self._owner = owner
        self._facts = facts
        self._group_failure = group_failure
        self._log = log
        self.worker = worker  # guarded by _submitting
        self.sequence = 0  # guarded by _busy: calls started
        self.queued = 0  # guarded by _submitting: async calls, and callbacks in line, not finished
        self._waiting: dict[Work, FlightEntry | None] = {}  # guarded by _submitting: calls that have not had their turn
        self._busy = threading.RLock()  # held while a call runs; a signal handler may come just after it was acquired
        self._runner: int | None = None  # the thread that is in the middle of a call
        self._afterwards: Callable[[], None] | None = None  # what the call that runs does last
        self._submitting = threading.RLock()  # a signal handler may close while the same thread holds it
        self._rows = threading.local()  # of a thread: the row that it is starting

    def run(
        self, kind: Kind, task: Run, outputs: Any = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Work | None:
        """See ProcessGroup.run.

        A call that a callback makes, on the worker thread, comes before those that wait for their turn, as the callback
        does (`callback`): the same order on every rank, and nobody waits for himself.
        """
        catch_up()
        limit = self._owner.timeout_s if timeout_s is None else timeout_s
        row: _Row | None = getattr(self._rows, "now", None)
        if not async_op and (not self.queued or self.worker.inside()):
            self._turn(kind, task, limit, False, self._entry(kind, False), 0 if row is None else row.told())
            return None
        work = self._work(f"{kind.name.lower()}, {self._owner.title()}", limit)
        with self._submitting:
            if self._group_failure.closed:
                raise self._group_failure.error(None)
            self.queued += 1
            entry = self._entry(kind, async_op)
            self._waiting[work] = entry
            background = partial(self._background, kind, task, work, outputs, limit, entry, row or _Row())
            nested = self.worker.inside()
            if not nested:
                self.worker.put(call_phases.carried(background))
        if nested:
            background()
        if async_op:
            return work
        work.wait()
        return None

    @contextlib.contextmanager
    def row(self, count: int) -> Iterator[None]:
        """Of the `count` calls that this thread starts inside, none is made after one that has failed: they fail, too.

        So ranks stay in step where one refuses all of a row in one call. The first one carries `count`: with another
        one elsewhere the calls that are too many would pair with what comes later.
        """
        catch_up()  # what these would do is none of the row's calls
        self._rows.now = _Row(count)
        with telling_once():
            try:
                yield
            except BaseException as error:
                if not is_shared(error, self._owner.key):
                    self._owner.abort_with(error, "left a block or list of calls half-way")
                raise
            finally:
                self._rows.now = None

    def _work(self, what: str, limit: float) -> Work:
        """Of a call that waits for its turn. On another group's worker a wait for it is limited, and ends this group:
        callbacks of the two groups may wait for one another, which no call's own limit ends."""
        refuse = partial(self._refuse, what)
        if self.worker.inside() or not in_callback():
            return Work(what, refuse=refuse, line=self.callback)
        what += ", which a callback of another group waits for, perhaps as one of this group for that one"
        return Work(what, self._owner.abort, limit_s=limit, refuse=refuse, line=self.callback)

    def callback(self, task: Task) -> bool:
        """The turn of a callback of an asynchronous call: see `Future`. False where it needs none, and none is taken.

        That is so in other callbacks, whose own turn it is (what they wait for is done, or comes later and has its
        turn), and where nothing is under way: the caller's turn is the callback's.
        """
        if self.worker.inside():
            return False
        with self._submitting:
            if self._group_failure.closed or not self.queued:
                return False
            self.queued += 1
            self.worker.put(call_phases.carried(partial(carry_out, [partial(task, self._one_less)])))
            return True

    def give_up(self) -> None:
        """The group has ended: calls that wait for their turn fail, also where a callback holds the worker up.

        Not before a call that runs has ended, which does this itself: who hears of an error finds all tensors at rest.
        """
        while self._runner is None:
            with self._submitting:
                if not self._waiting:
                    return
                work = next(iter(self._waiting))
                entry = self._waiting.pop(work)
            self._lose(work, entry)

    def _lose(self, work: Work, entry: FlightEntry | None) -> None:
        if entry is not None:
            entry.end(True)
        with contextlib.suppress(UsageError):  # another thread has just done the same
            work._future.settle(None, self._group_failure.error(None), self._one_less)

    def _refuse(self, what: str) -> None:
        """UsageError where a wait would be for what comes after who waits."""
        if self.worker.inside():
            raise UsageError(
                f"{what}: a callback waits for it that has its turn before; expected callbacks that wait for nothing "
                "called after they were added: add what comes after it to its own future, as in "
                "work.get_future().then(...)"
            )

    def close(self) -> bool | None:
        """No call starts from now on: whether one is on its way; None when this was closed before."""
        with self._submitting:
            if self._group_failure.closed:
                return None
            self._group_failure.closed = True
            return self.busy()

    def busy(self) -> bool:
        """Whether a call runs or waits for its turn."""
        return self.queued > 0 or self._runner is not None

    def inside(self) -> bool:
        """Whether this thread is in the middle of a call: a signal handler asks."""
        return self._runner == threading.get_ident()

    def afterwards(self, then: Callable[[], None]) -> None:
        """Do `then` once no call runs; in the middle of one, the call itself does it."""
        if self.inside():
            self._afterwards = then
        else:
            with self._busy:
                then()

    def drain(self, deadline: Deadline) -> bool:
        """Wait until no call runs or waits for its turn; False when that takes too long."""
        left = deadline.left()
        try:
            ended = self.worker.drain(left) and self._busy.acquire(timeout=-1 if left is None else left)
            return ended  # noqa: RET504 - by then it is inside that what was acquired is released, whatever comes
        finally:
            try:  # noqa: SIM105 - `with suppress` begins with a call, after which a handler may raise
                self._busy.release()
            except RuntimeError:  # not acquired
                pass

    def _entry(self, kind: Kind, asynchronous: bool) -> FlightEntry | None:
        entry = None if self._log is None else self._log.collective(kind)
        return entry if trace.recorder is None else traced(entry, self._facts, kind.name.lower(), asynchronous)

    def _background(
        self, kind: Kind, task: Run, work: Work, outputs: Any, limit: float, entry: FlightEntry | None, row: _Row
    ) -> None:
        with self._submitting:
            given_up = self._waiting.pop(work, self) is self
        if given_up:
            self._lose(work, entry)  # perhaps before who gave it up comes to that: its callbacks are next
            return
        if row.error is None:
            try:
                self._turn(kind, task, limit, True, entry, row.told())
            except BaseException as raised:  # noqa: BLE001 - a thread's top: stored in the Work, raised by wait()
                row.error = raised
        elif entry is not None:
            entry.end(True)
        work._future.settle(None if row.error else outputs, row.error, self._one_less)

    def _one_less(self) -> None:
        with self._submitting:
            self.queued -= 1

    def _turn(self, kind: Kind, task: Run, limit: float, background: bool, entry: FlightEntry | None, row: int) -> None:
        failed = True
        try:
            if self._runner == threading.get_ident():
                what = f"{kind.name.lower()}, {self._owner.title()}"
                raise UsageError(f"{what}: called from a signal handler inside a collective")
            with self._busy:
                self._runner = threading.get_ident()
                try:
                    self._execute(kind, task, limit, background, entry, row)
                finally:
                    self._runner = None
                    if self._group_failure.failure is not None:
                        self.give_up()
                    if self._afterwards is not None:
                        self._afterwards()
            failed = False
        finally:
            if entry is not None:
                entry.end(failed)

    def _execute(
        self, kind: Kind, task: Run, limit: float, background: bool, entry: FlightEntry | None, row: int
    ) -> None:
        group_failure = self._group_failure
        call = Call(kind, self.sequence, limit, background, entry, row)
        self.sequence += 1  # also where the group has failed before: who came is not missing from the call
        if entry is not None:
            entry.start(call.sequence)
        group_failure.check()
        try:
            if call_phases.heard:
                call_phases.reached("start", kind.name.lower(), self._owner)
            try:
                task(call)
            except UsageError as error:  # of its arguments, which only the device's backend sees
                self._refuse_begun(call, error)
                raise
            if call_phases.heard:
                call_phases.reached("end", kind.name.lower(), self._owner)
        except Refused as error:
            mine = call.name()
            other = "" if error.called == mine else f"{error.called} of "
            refused = self._owner.peer_error(error.rank, str(call.sequence), mine, other)
            raise (refused or CollectiveMismatch(f"{group_failure.name_of(call)}: {error}")) from None
        except CollectiveMismatch as error:
            here = f"; here it is the first of {row} call{'s'[: row - 1]} of one block or list" if row else ""
            raise CollectiveMismatch(f"{group_failure.name_of(call)}: {error}{here}") from None
        except UsageError:
            raise
        except Aborted as error:
            group_failure.hear_why(None)
            if group_failure.failure is None and group_failure.overdue:
                self._blame(error.awaited)
            group_failure.fail(GroupAborted("the group was aborted by a peer"), explain=True)
            raise group_failure.error(call) from None
        except PeerLost as error:  # a socket closed: who died, or why the peer hung up, comes beside it
            group_failure.hear_why(error.ranks)
            group_failure.fail(error, explain=True)
            raise group_failure.error(call) from None
        except CollectiveTimeout as error:
            self._blame(error.ranks, error)
            raise group_failure.error(call) from None
        except BaseException as error:  # an interrupt or a bug half-way: ranks are no longer in step
            group_failure.fail(abort_reason(error, self._owner.rank(), "left a collective half-way"), explain=True)
            self._owner.left_half_way()
            raise

    def _refuse_begun(self, call: Call, error: UsageError) -> None:
        """This rank refuses the call that it is about to make: its peers hear that in it, or that it is half-way."""
        if call.noted:
            self._owner.abort_with(error, "left a collective half-way")
        else:
            with contextlib.suppress(CollectiveMismatch):
                self._owner.refuse(call, error, "refused its arguments")

    def _blame(self, awaited: Collection[int], error: CollectiveTimeout | None = None) -> None:
        """A wait was too long, of this rank (`error`) or another: end the group with the ranks that are to blame."""
        culprits = self._owner.waited(awaited)
        if error is None and not culprits:  # no rank is late: whose wait it was says for what
            self._group_failure.hear_why(range(self._owner.size()))
        if error is None or culprits != error.ranks:
            told = self._group_failure.witnesses(culprits) if error is None else ()
            by = f" (on {_names(told)})" if told else ""  # this rank, which may be one of them, has not waited in vain
            error = CollectiveTimeout(f"{_names(culprits) or 'a peer'} did not answer{by}", culprits)
        self._group_failure.fail(error, explain=True)


def _names(ranks: Iterable[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in sorted(ranks))
