"""Tie a worker to its agent: one thread that listens to the control descriptor, and what it has heard so far.

    agent ══ socketpair ══> thread "control" ──> world, abort, pending, leave, finish
                                                     │ abort: the running group (or the forming one) raises at once
    main thread: next_world() ──> joined() ... committed() ... ──> finished()

`Solo` stands in where there is no agent: a world of one that never changes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from resilin._base import env, log
from resilin._base.clock import SYSTEM, Deadline
from resilin._base.interfaces import own_address
from resilin._base.threads import OwnedThread
from resilin.distributed.connections.listener import Listener
from resilin.elastic import control
from resilin.elastic.worker.agent_messages import AgentMessages, Interruption, Leaving
from resilin.elastic.worker.asked_recording import AskedRecording
from resilin.errors import ElasticError, RendezvousTimeout, UsageError

_LOG = log.logger("elastic.session")
WORLD_TIMEOUT_S = 900.0  # longer than agents look for a world (600 s) before they end their workers
_SEND_TIMEOUT_S = 30  # an agent that reads nothing for so long is as good as dead
_ANSWER_S = 5.0  # of an agent that is asked whether this worker may leave; later answers count for a later commit
_RECV_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class World:
    """Record who this process is in the current generation."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node_count: int
    generation: int
    """Number of the generation: grows with every change of the world."""
    reason: str
    """Why this generation was made."""


class Abortable(Protocol):
    """Declare what can be made to raise: a process group."""

    def abort(self, error: BaseException) -> None:
        """Make every blocked and later call raise `error`; never blocks."""


class Tie(Protocol):
    """Declare what the recovery loop and `State` ask of a session."""

    listener: Listener

    def next_world(self, after: int, returned: bool = False) -> control.World | None:
        """Wait for a world with a number greater than `after` that is not over yet.

        None: no world follows and all are done, of a worker whose function has `returned`, in a world that ended then.
        """

    def joined(self, generation: int, group: Abortable) -> None:
        """From now on an abort of `generation` aborts `group`. Raises WorldChanged when it is over already."""

    def left(self) -> None:
        """The group of `joined` is gone."""

    def working(self, step: int, parts: Sequence[int] = (), parts_of: int = 0) -> None:
        """Tell the agent that state is equal on all ranks and work on `step` begins.

        parts, parts_of: what this rank has of divided state, see `control.Progress`.
        """

    def asked_to_leave(self) -> bool:
        """Return whether this worker is to leave."""

    def committed(self, step: int, may_leave: Callable[[], bool] = lambda: True) -> None:
        """Tell the agent of a commit; then raise WorldChanged or Leaving when somebody waits for this boundary; not
        Leaving where `may_leave()`, called in between, says so."""

    def finished(self, step: int) -> None:
        """Say that the program is done and wait until all are; WorldChanged when a new world came first."""

    def stuck(self, generation: int, ranks: Collection[int], reason: str, unless_s: float = 0.0) -> None:
        """Tell the agent that `ranks` of `generation` do not answer, so that it is ended without them.

        unless_s: only if `next_world` has then waited for so many seconds, and nobody has ended that generation.
        """

    def interrupted(self, generation: int, reason: str) -> None:
        """Tell the agent that this worker's part in `generation` has ended, for `reason`, without a word of its own."""

    def pause(self, reason: str, at_most_s: float) -> None:
        """Tell the agent to expect no step for so long; 0: that the pause has ended."""

    def failed(self, report: dict[str, Any]) -> None:
        """Tell the agent why this worker is about to end."""


class Session:
    """The tie to a real agent. `close()` ends the thread; the descriptor is closed with it."""

    def __init__(self, sock: socket.socket, listener: Listener, limit: int = 0, timeout_s: float = 0.0) -> None:
        self.listener = listener
        self.rank: int | None = None  # in the world that was given out last
        self._sock = sock
        # a timeout for sending alone: settimeout would also end the reader's patience
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_TIMEOUT_S, 0))
        self._sending = threading.Lock()
        self._unsent: control.Leaving | None = None  # from a signal handler, which may have interrupted a sender
        self._changed = threading.Condition()
        self._messages = AgentMessages()  # guarded by _changed
        self._closing = False  # guarded by _changed
        self._group: Abortable | None = None  # guarded by _changed
        self._unsaid: tuple[control.Stuck, Deadline] | None = None  # guarded by _changed
        self._recording = AskedRecording(self._recorded)
        self._thread = OwnedThread("control", self._listen)
        hello = control.Hello(pid=os.getpid(), endpoint=listener.describe(), limit=limit, timeout_s=timeout_s)
        self._send(hello)

    # ------------------------------------------------------------------ main thread

    def next_world(self, after: int, returned: bool = False) -> control.World | None:
        """See `Tie`. RendezvousTimeout after WORLD_TIMEOUT_S, ElasticError when the agent is gone, Leaving if asked.

        A worker that stands by waits as long as its agent lives.
        """
        deadline = Deadline(WORLD_TIMEOUT_S)
        if after:
            with contextlib.suppress(ElasticError):  # an agent that is gone: below
                self._send(control.Waiting(generation=after))
                if (reason := self._messages.waits()) is not None:
                    self._send(control.Leaving(reason=reason))
        with self._changed:
            while (world := self._messages.offer(after, returned)) is None:
                if returned and self._messages.finish:
                    return None
                if deadline.passed() and not self._messages.standby:
                    raise RendezvousTimeout(
                        f"no world after generation {after} within {WORLD_TIMEOUT_S:.0f} s "
                        f"({self._messages.why or 'none yet'}); is this worker's agent alive, are enough nodes left?"
                    )
                waits_s = (None if self._messages.standby else deadline.left(), self._say_unsaid())
                self._changed.wait(min((one for one in waits_s if one is not None), default=None))
            self._unsaid = None
            log.stamp(rank=world.rank, generation=world.number)
            self.rank = world.rank
        with contextlib.suppress(ElasticError):  # an agent that is gone: the listening thread says so
            self._send(control.Entering(generation=world.number))
        return world

    def joined(self, generation: int, group: Abortable) -> None:
        """See `Tie`."""
        with self._changed:
            self._group = group
            self._messages.joined(generation)

    def left(self) -> None:
        """See `Tie`."""
        with self._changed:
            self._group = None

    def working(self, step: int, parts: Sequence[int] = (), parts_of: int = 0) -> None:
        """See `Tie`."""
        generation = self._messages.generation
        self._send(control.Progress(generation=generation, step=step, parts=tuple(parts), parts_of=parts_of))

    def asked_to_leave(self) -> bool:
        """See `Tie`."""
        return self._messages.leave is not None

    def committed(self, step: int, may_leave: Callable[[], bool] = lambda: True) -> None:
        """See `Tie`."""
        self._send(control.Committed(generation=self._messages.generation, step=step, wall=SYSTEM.wall()))
        if self._messages.asked is not None:
            with self._changed:
                self._changed.wait_for(lambda: not self._messages.unanswered(), _ANSWER_S)
        may = may_leave()
        if self._messages.wanted():  # read without the lock: a boundary missed by a moment is the next one
            with self._changed:
                self._messages.at_commit(step, may)

    def finished(self, step: int) -> None:
        """See `Tie`."""
        self._send(control.Done(generation=self._messages.generation))
        with self._changed:
            while not self._messages.at_end():
                self._changed.wait()

    def stuck(self, generation: int, ranks: Collection[int], reason: str, unless_s: float = 0.0) -> None:
        """See `Tie`. An agent that is gone cannot be told: ignored, because waiting for the next world says so."""
        message = control.Stuck(generation=generation, ranks=tuple(sorted(ranks)), reason=reason)
        if unless_s:
            with self._changed:
                self._unsaid = message, Deadline(unless_s)
            return
        with contextlib.suppress(ElasticError):
            self._send(message)

    def interrupted(self, generation: int, reason: str) -> None:
        """See `Tie`. An agent that is gone cannot be told: ignored, because waiting for the next world says so."""
        with contextlib.suppress(ElasticError):
            self._send(control.Interrupted(generation=generation, reason=reason))

    def _say_unsaid(self) -> float | None:
        """Say what `stuck` kept back if it is time; else, how long that is. The caller holds `_changed`."""
        if self._unsaid is None:
            return None
        message, deadline = self._unsaid
        if self._messages.over >= message.generation:  # the agent knows: another world follows
            self._unsaid = None
            return None
        if deadline.passed():
            self._unsaid = None
            with contextlib.suppress(ElasticError):
                self._send(message)
            return None
        return deadline.left()

    def pause(self, reason: str, at_most_s: float) -> None:
        """See `Tie`."""
        self._send(control.Pause(reason=reason, at_most_s=at_most_s))

    def leaves(self, reason: str) -> None:
        """Tell the agent that this worker ends before the others, as it was asked to; or nobody, when it is gone."""
        with contextlib.suppress(ElasticError):
            self._send(control.Left(reason=reason))

    def failed(self, report: dict[str, Any]) -> None:
        """See `Tie`. An agent that is gone cannot be told: ignored, because the error itself is about to be raised."""
        with contextlib.suppress(ElasticError):
            self._send(control.Failed(report=report))

    def ask_to_leave(self, reason: str) -> None:
        """Leave at a commit, as soon as the agent says so. Safe in a signal handler of any thread."""
        self._messages.ask(reason)
        self._unsent = control.Leaving(reason=reason)
        self._send_unsent()

    def close(self) -> None:
        """End the thread and close the descriptor."""
        self._recording.close()
        with self._changed:
            self._closing = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()

    def _send(self, message: control.Message) -> None:
        try:
            with self._sending:
                self._sock.sendall(control.encode(message))
        except OSError as error:
            raise ElasticError(f"cannot send {message.kind!r} to this worker's agent: {error}") from error
        self._send_unsent()

    def _send_unsent(self) -> None:
        """Send what a signal handler left; it never waits: whoever sends just now does it instead."""
        while (message := self._unsent) is not None and self._sending.acquire(blocking=False):
            try:
                self._unsent = None
                with contextlib.suppress(OSError):  # the agent is gone: waiting for it says so
                    self._sock.sendall(control.encode(message))
            finally:
                self._sending.release()

    # ------------------------------------------------------------------ control thread

    def _listen(self) -> None:
        decoder = control.Decoder()
        try:
            while data := self._sock.recv(_RECV_BYTES):
                for message in decoder.feed(data):
                    self._heed(message)
            error = ElasticError("the agent closed the control descriptor: it has died, and this worker ends with it")
        except (OSError, control.ControlError) as cause:
            error = ElasticError(f"the control descriptor failed: {cause}")
        with self._changed:
            if not self._closing:
                self._interrupt(self._messages.lose(error))
                self._changed.notify_all()

    def _heed(self, message: control.Message) -> None:
        if isinstance(message, control.Record):
            world = self._messages.world
            self._recording.begin(message, *((world.rank, world.world_size) if world is not None else (-1, -1)))
        else:
            with self._changed:
                self._interrupt(self._messages.heed(message))
                self._changed.notify_all()
        log.event(_LOG, logging.DEBUG, "heard from the agent", kind=message.kind)

    def _recorded(self, message: control.Recorded) -> None:
        with contextlib.suppress(ElasticError):  # an agent that is gone: the listening thread says so
            self._send(message)

    def _interrupt(self, what: Interruption | None) -> None:
        if what is None:
            return
        if what.group and self._group is not None:
            self._group.abort(what.error)
        self.listener.interrupt(what.error, what.generation)


class Solo:
    """A world of one, without an agent."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def next_world(self, after: int, returned: bool = False) -> control.World | None:
        """See `Tie`. There is only generation 1: its own collectives cannot lose a peer."""
        if after:
            raise ElasticError("a world of one has ended, and without a launcher there is no other; use elastic-run")
        return control.World(
            number=1,
            rank=0,
            local_rank=0,
            world_size=1,
            local_world_size=1,
            node_rank=0,
            node_count=1,
            endpoints=(self.listener.describe(),),
            members=(control.Member(rank=0, node="", slot=0, incarnation=0),),
            reason="no launcher",
        )

    def joined(self, generation: int, group: Abortable) -> None:
        """See `Tie`."""

    def left(self) -> None:
        """See `Tie`."""

    def working(self, step: int, parts: Sequence[int] = (), parts_of: int = 0) -> None:
        """See `Tie`."""

    def asked_to_leave(self) -> bool:
        """See `Tie`: nobody asks."""
        return False

    def committed(self, step: int, may_leave: Callable[[], bool] = lambda: True) -> None:
        """See `Tie`."""

    def finished(self, step: int) -> None:
        """See `Tie`."""

    def stuck(self, generation: int, ranks: Collection[int], reason: str, unless_s: float = 0.0) -> None:
        """See `Tie`."""

    def interrupted(self, generation: int, reason: str) -> None:
        """See `Tie`."""

    def pause(self, reason: str, at_most_s: float) -> None:
        """See `Tie`."""

    def failed(self, report: dict[str, Any]) -> None:
        """See `Tie`."""

    def close(self) -> None:
        """Nothing to end."""


_active: Session | Solo | None = None  # one per process, while elastic.run runs
_world: World | None = None
_spent = False  # a launched process runs one elastic program


def is_elastic() -> bool:
    """Return whether `elastic-run` started this process."""
    return env.get(control.ENV_FD) is not None


def world() -> World:
    """Say who this process is: in the running generation, else as the launcher's variables say, else a world of one."""
    return _world or _world_of_environment()


def active() -> Session | Solo | None:
    """The session of the running `elastic.run`, if any."""
    return _active


def rank_at_work() -> int:
    """Return `world().rank`, but already while the new generation is being formed."""
    rank = _active.rank if isinstance(_active, Session) else None
    return world().rank if rank is None else rank


@contextlib.contextmanager
def long_pause(reason: str, at_most: float = 3600.0) -> Iterator[None]:
    """Inside this block no step is expected: to evaluate, to write a checkpoint, to load data on one rank.

        with elastic.long_pause("evaluation", at_most=600):
            evaluate(model)

    Without it, a pause far longer than the steps and pauses before may be taken for a hang (`--hang-timeout`). Every
    rank may announce, one is enough. at_most: seconds after which it counts as a hang all the same. No effect outside
    of `@elastic.run`.
    """
    if not reason or not 0 < at_most < math.inf:
        raise UsageError(f"long_pause: expected a reason and at_most > 0 s, got {reason!r} and at_most={at_most!r}")
    tie = _active
    if tie is None:
        yield
        return
    tie.pause(reason, at_most)
    try:
        yield
    finally:
        with contextlib.suppress(ElasticError):  # the agent is gone: waiting for the next world says so
            tie.pause("", 0.0)


def announce(offer: control.World) -> None:
    """Make `offer` what `world()` returns."""
    global _world
    _world = World(
        rank=offer.rank,
        world_size=offer.world_size,
        local_rank=env.get_int("LOCAL_RANK", offer.local_rank) or 0,  # 0 for all with --virtual-local-rank
        local_world_size=offer.local_world_size,
        node_rank=offer.node_rank,
        node_count=offer.node_count,
        generation=offer.number,
        reason=offer.reason,
    )


@contextlib.contextmanager
def opened(limit: int = 0, timeout_s: float = 0.0) -> Iterator[Session | Solo]:
    """The session of this process: a real one under `elastic-run`, else a world of one. Ends with the block.

    limit, timeout_s: see `control.Hello`.
    """
    global _active, _spent
    if _active is not None:
        raise UsageError("elastic.run is already running in this process; it cannot be nested")
    if _spent:
        raise UsageError("elastic.run has ended in this process; put everything that must be elastic in one function")
    descriptor = env.get_int(control.ENV_FD)
    with Listener(own_address()) as listener:
        if descriptor is None:
            _active = Solo(listener)
        else:
            os.set_inheritable(descriptor, False)
            _active, _spent = Session(socket.socket(fileno=descriptor), listener, limit, timeout_s), True
        try:
            with _leave_on_sigterm(_active):
                yield _active
        except Leaving as leaving:
            if isinstance(_active, Session):
                _active.leaves(leaving.reason)
            raise
        finally:
            ending, _active = _active, None
            ending.close()


@contextlib.contextmanager
def _leave_on_sigterm(session: Session | Solo) -> Iterator[None]:
    """SIGTERM finishes the step, commits it and leaves; a second one kills."""
    if isinstance(session, Solo) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        session.ask_to_leave("SIGTERM")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _world_of_environment() -> World:
    return World(
        rank=env.get_int("RANK", 0) or 0,
        world_size=env.get_int("WORLD_SIZE", 1) or 1,
        local_rank=env.get_int("LOCAL_RANK", 0) or 0,
        local_world_size=env.get_int("LOCAL_WORLD_SIZE", 1) or 1,
        node_rank=env.get_int("GROUP_RANK", 0) or 0,
        node_count=env.get_int("GROUP_WORLD_SIZE", 1) or 1,
        generation=env.get_int("RESILIN_GENERATION", 1) or 1,
        reason="the launcher's environment" if env.get("RANK") else "no launcher",
    )
