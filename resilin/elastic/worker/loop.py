"""Run `@elastic.run`: join a generation, make state equal, call the function; again when the world changes."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, cast, overload

import resilin.distributed as dist
from resilin._base import env, excepthook, log, trace
from resilin._base import secret as job_secret
from resilin._base.clock import SYSTEM
from resilin.distributed.connections.listener import check_addresses
from resilin.distributed.group import process_group
from resilin.distributed.wire.error_codec import copy_error
from resilin.distributed.work.work import seconds
from resilin.elastic import control
from resilin.elastic.chaos import records
from resilin.elastic.ledger import Ledger
from resilin.elastic.worker import fault_injection, session, sync
from resilin.elastic.worker.agent_messages import Leaving
from resilin.elastic.worker.session import Tie
from resilin.elastic.worker.state import State
from resilin.errors import (
    CollectiveTimeout,
    DistNetworkError,
    GroupAborted,
    PeerLost,
    ResilinError,
    UsageError,
    WorldChanged,
)

_LOG = log.logger("elastic.loop")
TIMEOUT_S = 60.0  # of collectives, unless the program says another: whoever is silent for longer is replaced
CONNECT_TIMEOUT_S = 60.0  # peers that died are heard of at once; this is for one that lives but does not come
LOST_S = 10.0  # agents hear of a death at once, and of a lost node within its lease
# what a lost member looks like from here: another world follows
RECOVERABLE = (WorldChanged, PeerLost, GroupAborted, DistNetworkError)
_MAX_MESSAGE_CHARS = 4_000  # a report goes into the store, for the agents of all nodes to read
_MAX_TRACEBACK_CHARS = 20_000

P = ParamSpec("P")
R = TypeVar("R")


@overload
def run(function: Callable[P, R]) -> Callable[P, R]: ...


@overload
def run(
    *, timeout: timedelta | float | None = None, state: State | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def run(
    function: Callable[..., Any] | None = None,
    *,
    timeout: timedelta | float | None = None,
    state: State | None = None,
) -> Callable[..., Any]:
    """Make `function` elastic: it survives the loss, arrival and replacement of other workers in place.

        @elastic.run(timeout=120)
        def train(state):
            model = DistributedDataParallel(net, shards=8)
            for step in elastic.steps(state.loader, epochs=10):
                optimizer.zero_grad()
                for x, y in step:
                    loss_fn(model(x), y).backward()
                optimizer.step()

        train(elastic.State(net=net, optimizer=optimizer, loader=loader))

    For every generation: a process group is formed and made the default one, the `State` among the arguments is made
    equal on all ranks, and `function` is called; it goes on from `state`'s last commit. When the world changes, it ends
    by WorldChanged or PeerLost (do not catch them), state goes back to its last commit, and it is called again.
    Its result is returned when every rank has returned. Any other exception ends this worker; a replacement may follow.
    Without a launcher: a world of one.

    timeout: seconds (or a timedelta) after which a collective stops waiting for a rank that is alive but does not
        answer: frozen, deadlocked, or stuck in a system call. That rank's process is then killed and replaced, and the
        others go back to the last commit, as after a death. It must be longer than any rank ever keeps the others
        waiting (loading data, validating or writing a checkpoint on one rank). The default is a minute, not PyTorch's
        30: a job that nobody watches goes on soon, and what takes longer says so here.
    state: the State, where there is none among the arguments of `function`.
    """
    if function is None:
        return functools.partial(_elastic, timeout=timeout, given=state)
    return _elastic(function, timeout)


def _elastic(function: Callable[P, R], timeout: timedelta | float | None, given: State | None = None) -> Callable[P, R]:
    named = "elastic.run, which takes a timeout above 0 s"
    timeout_s = TIMEOUT_S if timeout is None else seconds(timeout, named)
    if not callable(function) or timeout_s is None or not timeout_s > 0:
        raise UsageError(
            f"elastic.run: expected a function and a timeout above 0 s, got {function!r} and timeout={timeout!r}; "
            "write @elastic.run or @elastic.run(timeout=120)"
        )
    if given is not None and not isinstance(given, State):
        raise UsageError(f"elastic.run: expected state=elastic.State(...), got {given!r:.80}")

    excepthook.watch()

    @functools.wraps(function)
    def elastic(*args: P.args, **kwargs: P.kwargs) -> R:
        state = next((value for value in (*args, *kwargs.values(), given) if isinstance(value, State)), None)
        with session.opened(state._largest_world() if state is not None else 0, timeout_s) as tie:
            path = env.get("RESILIN_LEDGER")
            book = Ledger(path) if path else None
            if state is not None:
                state._use_ledger(book)
            try:
                with fault_injection.armed(state):
                    return cast(R, _Loop(tie, state, timeout_s).run(functools.partial(function, *args, **kwargs)))
            finally:
                if state is not None:
                    state._ends()
                if book is not None:
                    book.close()

    return elastic


class _Loop:
    def __init__(self, tie: Tie, state: State | None, timeout_s: float) -> None:
        self._tie = tie
        self._state = state
        self._timeout_s = timeout_s
        self._generation = 0
        self._returned: tuple[Any] | None = (
            None  # what the function returned in a world that ended before all were done
        )
        self._works = False  # in that generation: its group is formed, state is equal, and nothing has ended it
        self._doing = ""  # before that
        self._group: dist.ProcessGroup | None = None  # at work, or the last one: the next takes its connections over

    def run(self, call: Callable[[], Any]) -> Any:
        ended: control.World | None = None
        while (offer := self._next(ended)) is not None:
            self._generation, self._works, self._doing, self._returned = offer.number, False, "", None
            try:
                return self._generation_of(offer, call)
            except Leaving:
                self._leave_group(None)
                raise
            except Exception as error:
                if not self._recoverable(error, offer):
                    self._fail(error, offer)
                    raise
                log.event(_LOG, logging.INFO, "generation ended", generation=offer.number, cause=str(error))
                self._leave_group(copy_error(error))  # the copy holds no frames, so the call's memory is freed
            ended = offer

        assert self._returned is not None
        self._leave_group(None)
        return self._returned[0]

    def _next(self, ended: control.World | None) -> control.World | None:
        """The world after `ended`, whose steps since the last commit are undone; None: all are done, and none follows.

        State of a function that has returned is left as it is until then: its result may be this worker's last.
        """
        returned = self._returned is not None
        if ended is not None and not returned:
            self._roll_back(ended)
        with trace.span("elastic.next_world", trace.Kind.ELASTIC, after=self._generation):
            offer = self._tie.next_world(after=self._generation, returned=returned)
        if ended is not None and returned and offer is not None:
            self._roll_back(ended)
        return offer

    def _fail(self, error: Exception, offer: control.World) -> None:
        """Tell the agent why this worker is about to end, and leave the others."""
        self._tie.failed(self._report(error, offer))
        self._leave_group(error)
        self._leave_group(None)

    def _roll_back(self, offer: control.World) -> None:
        state = self._state
        if state is None:
            return
        self._works, self._doing = False, f"the return to step {state.step}'s state"
        try:
            with trace.span("elastic.roll_back", trace.Kind.ELASTIC, step=state.step):
                state._roll_back()
        except Exception as error:
            self._fail(error, offer)
            raise

    def _recoverable(self, error: Exception, offer: control.World) -> bool:
        """Whether another world follows. Ranks that a collective waited for in vain are reported to the agent.

        Those that were lost are, too, if no agent knows of it: a link may be cut while all processes live.
        """
        if isinstance(error, RECOVERABLE) and not isinstance(error, WorldChanged):
            self._tie.interrupted(offer.number, _shortened(str(error), _MAX_MESSAGE_CHARS))
        if isinstance(error, (PeerLost, DistNetworkError)):
            ranks = (error.ranks if isinstance(error, PeerLost) else frozenset()) or frozenset(range(offer.world_size))
            if others := ranks - {offer.rank}:
                unless_s = min(max(self._timeout_s, LOST_S), CONNECT_TIMEOUT_S)
                self._tie.stuck(offer.number, others, _shortened(str(error), _MAX_MESSAGE_CHARS), unless_s)
        if not isinstance(error, CollectiveTimeout):
            return isinstance(error, RECOVERABLE)
        others = error.world_ranks - {offer.rank}
        if others:
            self._tie.stuck(offer.number, others, _shortened(str(error), _MAX_MESSAGE_CHARS))
        return bool(error.world_ranks)  # without a name nobody would be replaced, and no world would follow

    def _generation_of(self, offer: control.World, call: Callable[[], Any]) -> Any:
        start = SYSTEM.monotonic()
        facts: dict[str, Any] = {"generation": offer.number, "world_size": offer.world_size, "reason": offer.reason}
        with trace.span("elastic.form_group", trace.Kind.ELASTIC, **facts):
            group = self._group = self._formed(offer)
        dist.set_default_group(group)
        self._tie.joined(offer.number, group)
        session.announce(offer)
        wired = SYSTEM.monotonic()
        if self._state is not None:
            self._doing = "the comparison of all ranks' states"
            with trace.span("elastic.make_equal", trace.Kind.ELASTIC, generation=offer.number):
                sync.make_equal(self._state, group, offer.rank, offer.world_size, self._does)
            self._doing = "the work that was due at the last commit"
            self._state._begins()
        equal = SYSTEM.monotonic()
        log.event(
            _LOG,
            logging.INFO,
            "generation starts",
            world_size=offer.world_size,
            reason=offer.reason,
            wire_ms=round((wired - start) * 1e3, 1),
            state_ms=round((equal - wired) * 1e3, 1),
        )
        self._works = True
        parts, parts_of = self._state._kept_parts() if self._state is not None else ((), 0)
        self._tie.working(self._step_at_work() or 1, parts, parts_of)
        result = call()
        if self._state is not None:
            self._state._commit_left()
        if self._state is not None and env.get(records.FOLDER) is not None:
            self._state._seal()
        self._returned = (result,)
        self._tie.finished(self._state.step if self._state is not None else 0)
        self._leave_group(None)
        return result

    def _formed(self, offer: control.World) -> dist.ProcessGroup:
        """The group of a generation, over the connections of the last one where it has them."""
        check_addresses(offer.endpoints)
        if self._group is not None:
            return self._group.reconfigure(
                offer.number, offer.endpoints, timeout_s=self._timeout_s, connect_timeout_s=CONNECT_TIMEOUT_S
            )
        return process_group.connect(
            self._tie.listener,
            offer.endpoints,
            offer.rank,
            group_name="world",
            generation=offer.number,
            secret=job_secret.from_environment(),
            timeout_s=self._timeout_s,
            connect_timeout_s=CONNECT_TIMEOUT_S,
        )

    def _leave_group(self, error: BaseException | None) -> None:
        """With an error, abort the default group, so that no helper thread waits for a peer; without one, close it."""
        self._tie.left()
        group = self._group
        if group is None:
            return
        if error is not None:
            group.abort(error)
        dist.set_default_group(None)  # closes the groups that the function made of it
        if error is None:
            self._group = None
            group.close()

    def _does(self, what: str) -> None:
        self._doing = what

    def _step_at_work(self) -> int | None:
        """The step after the last committed one, counted from 1; None when there is no State to count them."""
        return self._state.step + 1 if self._state is not None else None

    def _report(self, error: Exception, offer: control.World) -> dict[str, Any]:
        lines = traceback.format_exception(_without_own_frames(error))
        text = "".join(_shortened(line, _MAX_MESSAGE_CHARS) for line in lines)
        where = {"step": self._step_at_work()} if self._works else {"step": None, "at": self._doing, "entering": True}
        return {
            "type": type(error).__name__,
            "message": _shortened(str(error), _MAX_MESSAGE_CHARS),
            "traceback": _shortened(text, _MAX_TRACEBACK_CHARS),
            "generation": offer.number,
            "rank": offer.rank,
            **where,
            "ours": isinstance(error, ResilinError),
        }


def _shortened(text: str, limit: int) -> str:
    """`text`, or `limit` characters of it, beginning and end, with a note of how many are left out between."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[head - limit :]}"


def _without_own_frames(error: Exception) -> Exception:
    """The error with the frames of this file taken off the top: the user's own function comes first."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)
