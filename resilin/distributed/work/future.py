"""Hold a value that arrives later: the names of torch.futures.Future, without an executor behind it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from resilin._base import log
from resilin._base.clock import spell
from resilin.distributed.wire.timeouts import seconds
from resilin.errors import CollectiveTimeout, UsageError, UsageTypeError

_LOG = log.logger("distributed.future")
T = TypeVar("T")
S = TypeVar("S")
Step = Callable[[], Sequence[Any]]
"""Something to do, which returns the steps that come right after it."""
Task = Callable[[Callable[[], None]], Sequence[Step]]
"""A callback: calls what it is given before anybody can see that it is done. Raises interrupts alone."""
Line = Callable[[Task], bool]
"""Gives a task its turn; False, and nothing is done, where a future's own callbacks are in turn."""


Callback = Callable[..., Any]


def _as_it_is(callback: Callback) -> Callback:
    return callback


bound: Callable[[Callback], Callback] = _as_it_is
"""Makes what is called of a callback that a program adds: RPC has it be a part of the call that added it."""


def _nothing() -> None:
    """What is to be done when nobody asked for anything."""


def anywhere(task: Task) -> bool:
    """The line of a future whose callbacks have no turn."""
    return False


def _late(limit: float | None) -> BaseException:
    return CollectiveTimeout(f"the result of this future did not arrive within {spell(limit)}")


class _Thread(threading.local):
    """The callbacks of one thread that are under way."""

    depth = 0
    """How many run, each inside the one before."""
    put_off: Sequence[Step] = ()
    """What the innermost one has added to futures that were done, and is not to be one deeper."""


_here = _Thread()
_NESTED = 8  # callbacks inside callbacks: their callers' frames must leave room for what they call


def carry_out(steps: Sequence[Step]) -> None:
    """Do all steps, each followed by what it has put off and then by those that it returns: chains of callbacks may be
    as long as one likes."""
    left = deque(steps)
    interrupt = None
    outer, _here.put_off = _here.put_off, ()
    _here.depth += 1
    try:
        while left:
            after: Sequence[Step] = ()
            try:
                after = left.popleft()()
            except BaseException as raised:  # noqa: BLE001 - of the main thread: raised when the others have been done
                interrupt = raised
            put_off, _here.put_off = _here.put_off, ()
            left.extendleft(reversed([*put_off, *after]))
    finally:
        _here.depth -= 1
        _here.put_off = outer
    if interrupt is not None:
        raise interrupt


def catch_up() -> None:
    """Do what the callback that runs here has put off: it comes before what this calls, asks or waits for next."""
    if _here.put_off:
        steps, _here.put_off = _here.put_off, ()
        carry_out(steps)


class Future(Generic[T]):
    """Set once, by `set_result` or `set_exception`.

    Callbacks run in the order added. Of a collective, and of what `then` makes of it, in the group's line: behind the
    collectives that this rank had called when the callback was added, before those that it calls later. So collectives
    of that group that callbacks call come in the same order on every rank, however quick each is; those of another
    group have no fixed place among that one's. Where nothing of the group is under way a callback runs at once, in the
    thread that adds it, else on the group's worker thread. What a callback waits for there must have been called before
    it was added: UsageError.

    Callbacks of other futures run in the thread that sets them, at once where they are done. That thread may be the one
    that takes the group's messages in. A callback that waits for one of them there would wait for itself: UsageError.
    It may post a receive (`irecv`) and add the next callback to that one's future.

    A callback that is added to what is done, in a callback that eight others are around, runs when that one returns, or
    before that one calls, asks or waits for anything: so callbacks that begin the next call and add themselves to it
    may go on for as long as they like.

    What a callback raises is logged, if not `then` hands it on.
    """

    # What most futures never change is the class's: one is made for each call, message and step.
    _done = False  # guarded by _lock, as the next two
    _value: Any = None
    _error: BaseException | None = None
    _limit_s: float | None = None  # of a wait that names none
    _expired: Callable[[float | None], BaseException] = staticmethod(_late)  # what a wait raises that passed its limit
    _refuse: Callable[[], None] = staticmethod(_nothing)  # raises where a wait would be for the very thread that waits
    line: Line = staticmethod(anywhere)
    """What gives callbacks their turn."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may abort while the same thread holds it
        self._waiters: deque[Any] = deque()  # a held lock for each thread that waits; released once it is done
        self._callbacks: list[Task] = []  # guarded by _lock

    def bounded(
        self,
        limit_s: float | None,
        expired: Callable[[float | None], BaseException],
        refuse: Callable[[], None] = _nothing,
        line: Line = anywhere,
    ) -> None:
        """A wait without a timeout, also for what `then` makes of this, ends after `limit_s` and raises
        `expired(limit)`, which may do what the owner does then. `refuse()` is called before a wait, and may raise.
        `line` gives callbacks their turn. Before the future is handed out.
        """
        self._limit_s, self._expired, self._refuse, self.line = limit_s, expired, refuse, line

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError("Can not pickle resilin.futures.Future: send its value, when it is there")

    def done(self) -> bool:
        """Return whether a result or an error is there."""
        if not self._done:
            catch_up()
        return self._done

    def wait(self, timeout: timedelta | float | None = None) -> T:
        """Block until it is there and return it, or raise its error. CollectiveTimeout after `timeout` (seconds).

        Without `timeout` the group's limit holds where this is of a message; collectives end by themselves.
        """
        limit = self._limit_s if timeout is None else seconds(timeout, "Future.wait: timeout")
        if not self.settled_within(limit):
            error = self._expired(limit)
            if not self._done or self._error is not None:  # else it came while the wait was given up
                raise error
        return self.value()

    def settled_within(self, timeout: float | None) -> bool:
        """Block until a result or an error is there, at most `timeout` seconds; whether it is."""
        if self.done():
            return True
        self._refuse()
        waiter = threading.Lock()  # and nothing else is held: a signal handler may settle this, or wait for who does
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            if not self._done:  # else it has been done since, and nobody may have seen the waiter
                waiter.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))
        finally:
            with contextlib.suppress(ValueError):  # it was released
                self._waiters.remove(waiter)
        return self._done

    def value(self) -> T:
        """The result of a future that is done; raises its error. UsageError when it is not done."""
        if not self._done:
            raise UsageError("Future.value() before the future is done; use wait()")
        if self._error is not None:
            raise self._error
        result: T = self._value
        return result

    def exception(self) -> BaseException | None:
        """The error the future ended with, if any."""
        return self._error

    def set_result(self, result: T) -> None:
        """Complete the future."""
        self.settle(result, None)

    def set_exception(self, error: BaseException) -> None:
        """Fail the future: `wait` and `value` raise `error`."""
        self.settle(None, error)

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call `callback(self)` when done; at once when it is done already and nothing comes before."""
        _check_callable(callback, "Future.add_done_callback")
        callback = bound(callback)

        def run(over: Callable[[], None]) -> Sequence[Step]:
            try:
                _logged(callback, self)
            except BaseException:
                over()
                raise
            return (partial(_last, over),)

        self._in_turn(run)

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """A future for `callback(self)`, which runs when this one is done; its error fails the new future."""
        _check_callable(callback, "Future.then")
        callback = bound(callback)
        following: Future[S] = Future()
        following.bounded(self._limit_s, self._expired, self._refuse, self.line)

        def run(over: Callable[[], None]) -> Sequence[Step]:
            result, raised = None, None
            try:
                result = callback(self)
            except BaseException as error:  # noqa: BLE001 - handed on to the waiter of `following`
                raised = error
            return (partial(following._complete, result, raised, over),)

        self._in_turn(run)
        return following

    def when_done(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call `callback`, which calls no collective, as soon as it is done, in whatever thread."""
        task = partial(_logged, callback, self)
        if not self._attach(lambda over: task()):
            carry_out([task])

    def _in_turn(self, task: Task) -> None:
        if self.line(task) or self._attach(task):
            return
        step = partial(task, _nothing)
        if _here.depth < _NESTED:
            carry_out([step])
        else:
            _here.put_off = [*_here.put_off, step]

    def _attach(self, task: Task) -> bool:
        """Have `task` done when this is; False, and nothing is done, where it is already."""
        with self._lock:
            if self._done:
                return False
            self._callbacks.append(task)
            return True  # also where a signal handler has settled this since: it has done the task

    def settle(self, value: Any, error: BaseException | None, over: Callable[[], None] = _nothing) -> None:
        """Complete or fail the future. `over()` is called once: after the last callback, or, where there is none,
        before anybody can see that it is done.
        """
        carry_out(self._complete(value, error, over))

    def _complete(self, value: Any, error: BaseException | None, over: Callable[[], None]) -> Sequence[Step]:
        """`settle`, but for the callbacks: these are for the caller to carry out."""
        with self._lock:
            if self._done:
                raise UsageError("this Future is already done: Future can only be marked completed once")
            callbacks, self._callbacks = self._callbacks, []
            if not callbacks:
                over()
            self._value, self._error, self._done = value, error, True
            self._expired = _late  # who set it may hold this future: without the cycle, results go when both are let go
        with contextlib.suppress(IndexError):
            while True:
                self._waiters.popleft().release()
        return [*(partial(task, _nothing) for task in callbacks), partial(_last, over)] if callbacks else ()


def _check_callable(callback: Any, function: str) -> None:
    if not callable(callback):
        raise UsageTypeError(f"{function}: callback: expected a function of the future, got {callback!r:.80}")


def _checked(futures: Any, function: str) -> Sequence[Future[Any]]:
    if not isinstance(futures, list | tuple) or not all(isinstance(future, Future) for future in futures):
        raise UsageTypeError(f"{function}: futures: expected a list of Futures, got {futures!r:.80}")
    return futures


def _last(over: Callable[[], None]) -> Sequence[Step]:
    over()
    return ()


def _logged(callback: Callable[[Future[T]], Any], done: Future[T]) -> Sequence[Step]:
    """The thread that calls serves others, too: a callback's mistake is logged, also one that would end a thread."""
    try:
        callback(done)
    except BaseException as error:
        log.event(_LOG, logging.ERROR, "callback of a future failed", exc_info=error)
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise  # an interrupt
    return ()


def _first_late(futures: Sequence[Future[Any]], limit: float | None) -> BaseException:
    return next((future._expired(limit) for future in futures if not future.done()), _late(limit))


def refuse_first(futures: Sequence[Future[Any]]) -> None:
    """Raise what a wait for the first of `futures` that is not done would."""
    for future in futures:
        if not future.done():
            future._refuse()


def collect_all(futures: Sequence[Future[Any]]) -> Future[list[Future[Any]]]:
    """A future that is done when all of `futures` are; its result is the list of them."""
    futures = _checked(futures, "collect_all")
    every: Future[list[Future[Any]]] = Future()
    limits = [future._limit_s for future in futures if future._limit_s is not None]
    lines = {future.line for future in futures}
    line = lines.pop() if len(lines) == 1 else anywhere  # of several groups there is no order
    every.bounded(max(limits, default=None), partial(_first_late, futures), partial(refuse_first, futures), line)
    left = len(futures)
    lock = threading.Lock()

    def one(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            every.set_result(list(futures))

    if not futures:
        every.set_result([])
    for future in futures:
        future.when_done(one)
    return every


def wait_all(futures: Sequence[Future[Any]]) -> list[Any]:
    """Wait for all of `futures` and return their results; raises the first error in their order."""
    return [future.wait() for future in _checked(futures, "wait_all")]
