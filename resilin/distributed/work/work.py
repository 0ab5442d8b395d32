"""Define the handle of an asynchronous collective."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from resilin._base.clock import spell
from resilin.distributed.wire.timeouts import seconds as seconds
from resilin.distributed.work.future import Future, Line, anywhere
from resilin.errors import CollectiveTimeout, UsageError


class _Outcome(Future[Any]):
    """What a Work ends with, which nobody but its owner says, by `settle`."""

    def set_result(self, result: Any) -> None:
        """UsageError."""
        self._refuse_to_be("set_result")

    def set_exception(self, error: BaseException) -> None:
        """UsageError."""
        self._refuse_to_be("set_exception")

    def _refuse_to_be(self, how: str) -> NoReturn:
        raise UsageError(
            f"Future.{how}: this future is of a collective or a message, which completes it; expected a Future() of "
            "your own"
        )


class Work:
    """Returned by collectives with `async_op=True` and by `isend`/`irecv`. Wait before touching the tensors.

    `on_timeout(error)` is what the owner of a message does when a wait passes its limit. `limit_s` is the limit of a
    wait that names none; None where the work ends by itself. `awaited` is the one rank a wait is for, in the group and
    in the world, if there is one. `refuse`, `line`: see `Future.bounded`.
    """

    def __init__(
        self,
        what: str,
        on_timeout: Callable[[BaseException], None] | None = None,
        source: int | None = None,
        awaited: tuple[int, int] | tuple[()] = (),
        limit_s: float | None = None,
        refuse: Callable[[], None] = lambda: None,
        line: Line = anywhere,
    ) -> None:
        self.what = what
        self._future: Future[Any] = _Outcome()
        self._on_timeout = on_timeout
        self._source = source
        self._awaited = awaited
        self._limit_s = limit_s
        self._future.bounded(limit_s, self._expired, refuse, line)
        self._attend: Callable[[float | None], bool] | None = None  # waits for it up to a limit; None: as usual

    def let_go(self) -> None:
        """Forget what only waits need and holds this work: without the cycle, tensors go when it is let go. Done."""
        self._on_timeout = self._attend = None

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Block until it has finished: True, or its error is raised. `timeout`: seconds or a timedelta.

        CollectiveTimeout after `timeout`; without one, or with 0, as in PyTorch, after the group's, from the start of
        the collective or of this wait for a message. A collective goes on, and may be waited for again; a receive is
        withdrawn. UsageError in a callback that runs before it has its turn.
        """
        limit = seconds(timeout, "Work.wait: timeout") or self._limit_s
        future = self._future
        if not future.done():
            attend = self._attend  # once: another thread may end this work
            done = future.settled_within(limit) if attend is None else attend(limit)
            if not done:
                error = self._expired(limit)
                if not self.is_success():  # else it came while the wait was given up
                    raise error
        if future._error is not None:
            raise future._error
        return True

    def _expired(self, limit: float | None) -> BaseException:
        own = self._limit_s is None  # the caller's own limit; the group's ends the group
        more = " of Work.wait; it goes on: wait for it again, or abort() the group" if own else ""
        what = f"{self.what} did not finish within {spell(limit)}{more}"
        error = CollectiveTimeout(what, self._awaited[:1], self._awaited[1:])
        on_timeout = self._on_timeout
        if on_timeout is not None:
            on_timeout(error)
        return error

    def synchronize(self) -> None:
        """Same as `wait()`: CPU collectives have no stream."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it has finished, well or not."""
        return self._future.done()

    def is_success(self) -> bool:
        """Return whether it has finished well."""
        return self._future.done() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        """The error it finished with, if any."""
        return self._future.exception()

    def get_future(self) -> Future[Any]:
        """A future with the list of output tensors."""
        return self._future

    def result(self) -> Any:
        """The list of output tensors, once finished."""
        return self._future.value()

    def source_rank(self) -> int:
        """For a receive: the rank it came from, in the group. UsageError for anything else."""
        if self._source is None:
            raise UsageError(f"{self.what}: source_rank() is for receives only")
        return self._source

    _source_rank = source_rank  # PyTorch's other name of it

    def __repr__(self) -> str:
        state = "pending" if not self.is_completed() else "done" if self.exception() is None else "failed"
        return f"<Work {self.what} {state}>"
