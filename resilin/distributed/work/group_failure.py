"""Decide how a group ends: the first failure, who is gone, and the error that every later call raises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from resilin._base.clock import SYSTEM, spell
from resilin.distributed.backends.base import Call
from resilin.distributed.wire.error_codec import copy_error, in_world, worded
from resilin.errors import CollectiveTimeout, DistError, GroupAborted, UsageError

_HINT = "The group is aborted; inside elastic.run the step is redone, elsewhere restart this worker."
_REASON_S = 2.0  # an end seen in shared memory or on a data socket waits this long for its reason to come beside it
_NEWS_S = 0.25  # a wait that was too long waits this long for those of the others


class GroupFailure:
    """Hold what one rank knows of its group's end. `end(error)` is called once, by whoever fails the group first."""

    def __init__(self, title: Callable[[], str], ranks: Sequence[int], end: Callable[[BaseException], None]) -> None:
        self._title = title
        self._ranks = ranks  # in the world
        self._end = end
        self._lock = threading.RLock()  # a signal handler may abort while the same thread holds it
        self._news = threading.Condition(self._lock)  # notified when the group failed, a peer is gone or late
        self._late: dict[int, frozenset[int]] = {}  # guarded by _lock: ranks whose wait has ended, and for whom it was
        self._watchers: list[Callable[[BaseException], None]] = []  # guarded by _lock
        self._explain = False  # guarded by _lock: whether the failure's message gets the call in front
        self.failure: BaseException | None = None  # guarded by _lock
        self.left: set[int] = set()  # guarded by _lock
        self.closed = False  # the owner's
        self.why_closed = ""  # the owner's

    def fail(self, error: BaseException, *, explain: bool) -> None:
        """End the group with `error`, unless it has ended."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
            self._explain = explain
            self._news.notify_all()
            watchers = list(self._watchers)
        self._end(error)
        for told in watchers:
            told(self.error(None))

    @contextmanager
    def watched(self, told: Callable[[BaseException], None]) -> Iterator[None]:
        """Call `told(error)` when the group ends meanwhile, or at once if it has ended. Any thread."""
        with self._lock:
            self._watchers.append(told)
            ended = self.failure is not None
        try:
            if ended:
                told(self.error(None))
            yield
        finally:
            with self._lock:
                self._watchers.remove(told)

    def supersede(self, error: BaseException) -> None:
        """Whatever ended the group: from now on every call raises `error`."""
        with self._lock:
            self.failure = error
            self._explain = False
            self._news.notify_all()
            watchers = list(self._watchers)
        for told in watchers:
            told(error)

    def gone(self, rank: int) -> None:
        """A peer's connection ended."""
        with self._lock:
            self.left.add(rank)
            self._news.notify_all()

    def hear_why(self, ranks: Collection[int] | None) -> None:
        """Give the control channel a moment to say why the group ended, or to end itself for all of `ranks`.

        None: also to say that a wait was too long. A peer that hung up because of another one said so on its channel
        before it closed it.
        """
        with self._lock:
            self._news.wait_for(
                lambda: self.failure is not None or bool(self._late if ranks is None else self.left.issuperset(ranks)),
                _REASON_S,
            )

    def waited(self, rank: int, awaited: Collection[int]) -> None:
        """A wait of `rank`, for `awaited`, was ended by its deadline, or by somebody else's."""
        with self._lock:
            self._late[rank] = frozenset(awaited)
            self._news.notify_all()

    @property
    def overdue(self) -> bool:
        """Return whether some rank's wait has passed its deadline."""
        return bool(self._late)

    def culprits(self, awaited: Collection[int]) -> frozenset[int]:
        """Return whom all ranks together waited for: those named by some and not heard of by themselves; else
        `awaited`, if this rank knows, or all that were named.

        A rank that waits for one that waits for a frozen one must not blame the one between. All waits end together
        (`waited`), so those that are well are heard of in a moment.
        """
        with self._lock:
            everybody = len(self._ranks) - 1  # but one
            self._news.wait_for(lambda: self.failure is not None or len(self._late) >= everybody, _NEWS_S)
            named = frozenset[int]().union(*self._late.values())
            return named - self._late.keys() or frozenset(awaited) or named

    def witnesses(self, culprits: Collection[int]) -> list[int]:
        """The ranks whose waits for any of `culprits` have ended without them, as far as this rank has heard."""
        with self._lock:
            return sorted(rank for rank, awaited in self._late.items() if not awaited.isdisjoint(culprits))

    def check(self) -> None:
        """Raise what ended the group, if anything has."""
        if self.failure is not None or self.closed:
            raise self.error(None)

    def error(self, call: Call | str | None) -> BaseException:
        """The error that a call raises now: a copy, so that tracebacks do not pile up. A message is named by a text."""
        error = self.failure
        if error is None:
            return DistError(f"{self._title()} is closed: {self.why_closed or 'it ended'}")
        if isinstance(call, Call):
            where, waited = self.name_of(call), SYSTEM.monotonic() - call.started
            after = f" after {spell(waited)} of {spell(call.timeout_s)}"
        else:
            where, after = call or self._title(), ""
        if isinstance(error, UsageError) and not isinstance(error, GroupAborted):  # another call was the wrong one
            return GroupAborted(f"{where}: this rank aborted the group before: {error}")
        if not self._explain:
            return copy_error(error)
        message = f"{where}: {error}{after}. {_HINT}"
        if isinstance(error, CollectiveTimeout):
            return CollectiveTimeout(message, error.ranks, in_world(error.ranks, self._ranks))
        return worded(error, message)

    def name_of(self, call: Call) -> str:
        """Return how error messages name a collective."""
        return f"{call.kind.name.lower()} #{call.sequence}, {self._title()}"
