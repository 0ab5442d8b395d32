"""Make calls, and tie together what one worker is: its queues, threads, peers, references and pending calls.

a blocking call    the calling thread has a queue of its own, and waits in it for the reply (blocking.py)
any other          a future waits in the table of pending calls (pending.py); a pool of threads takes the replies
a request          another pool runs it (server.py)
anything else      comes with the replies (control.py)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from resilin._base import log
from resilin._base.clock import SYSTEM, Deadline, spell
from resilin.errors import OwnerLost, PeerLost, RpcError, RpcTimeout, UsageError
from resilin.rpc.agent.blocking import BlockingCalls
from resilin.rpc.agent.control import ControlMessages
from resilin.rpc.agent.exchange import Exchange
from resilin.rpc.agent.gradient_messages import GradientMessages
from resilin.rpc.agent.peers import KnownPeers, Peer
from resilin.rpc.agent.pending import PendingCall, Table
from resilin.rpc.agent.server import Server
from resilin.rpc.agent.stats import Stats
from resilin.rpc.agent.thread_pool import ThreadPool, step_down
from resilin.rpc.agent.watch import Watch
from resilin.rpc.autograd.contexts import Contexts
from resilin.rpc.channels.base import TensorChannel
from resilin.rpc.constants import UNSET_RPC_TIMEOUT
from resilin.rpc.membership.membership import Membership, WorkerRecord
from resilin.rpc.references.rref_context import RRefContext
from resilin.rpc.references.states import OwnedValue, Recipe, UserReference
from resilin.rpc.serialization.messages import (
    CALL,
    FETCH,
    HEADER,
    LOST,
    REMOTE_CALL,
    REPLIES,
    RREF,
    TURN_BITS,
    expiry,
)
from resilin.rpc.serialization.serializer import Serializer
from resilin.rpc.timeouts import seconds
from resilin.rpc.transports.base import REQUESTS, Queues, RpcMessage, Transport
from resilin.rpc.worker_info import WorkerInfo

_LOG = log.logger("rpc.agent")
_MOST_REPLY_THREADS = 64
_EVENTS_S = 1.0  # that a profiled value may be waited for to have told what its making did, once it is there itself
_CLAIM_S = 2.0  # for a thread that has taken a reply to look up whose it is, on a busy machine


class Agent:
    """One worker. Made with everything it needs; `start` begins to serve, `close` ends it."""

    def __init__(
        self,
        me: WorkerRecord,
        membership: Membership,
        queues: Queues,
        channels: Sequence[TensorChannel],
        timeout_s: float,
        num_worker_threads: int,
        max_pending_calls: int,
    ) -> None:
        self.me = WorkerInfo(me.name, me.id)
        self.membership = membership
        self.timeout_s = timeout_s
        self.stats = Stats()
        self._queues = queues
        self._threads = num_worker_threads
        self._most_pending = max_pending_calls
        self._numbers = count((me.turn << TURN_BITS) + 1)
        self._closed = False
        self.pending = Table(self._wake)
        self.peers = KnownPeers(me, queues, membership, self._lost)
        self.rrefs = RRefContext(
            self.me, self._info, self.peers.turn_of, self.peers.before, self.tell, self._wake, me.turn << TURN_BITS
        )
        self._channels = {channel.name: channel for channel in channels}
        self.serializer = Serializer(channels, self.rrefs, me.allows_closures)
        contexts = Contexts(me.id, me.turn)
        self.server = Server(self.peers, self.serializer, self.rrefs, self.stats, contexts)
        self._requests, self._replies = queues.open(), queues.open()
        if (self._requests.number, self._replies.number) != (REQUESTS, REPLIES):
            raise UsageError("Agent: expected fresh queues")
        self._exchange = Exchange(self.peers, self.serializer, contexts)
        self._blocking = BlockingCalls(self._exchange, queues, self.peers, self._numbers, self.stats)
        self._control = ControlMessages(
            self.me,
            self._replies,
            self.peers,
            self.pending,
            self._exchange,
            self._numbers,
            self._channels,
            self.server,
            self.rrefs,
            self._take_lost,
        )
        self.gradients = self._control.gradients = GradientMessages(
            self.me, self.peers, self.serializer, contexts, self._numbers, self._control, lambda: self.timeout_s
        )
        self._watch: Watch | None = None
        self._pools: tuple[ThreadPool, ...] = ()
        self._transports: Sequence[Transport] = ()
        self.when_lost: list[Callable[[int, PeerLost], None]] = []
        """Called with each worker that is lost."""
        self.when_closed: list[Callable[[], None]] = []
        """Called when this worker ends."""

    def start(self, transports: Sequence[Transport]) -> None:
        """Serve what comes through `transports`, which are this agent's to close."""
        self._transports = transports
        self._watch = watch = Watch([lambda: any(pool.look() for pool in self._pools)], self._due)
        self._pools = (
            ThreadPool("rpc-call", self._requests, self.server.handle, self._threads, watch.begun),
            ThreadPool("rpc-reply", self._replies, self._control.handle, _MOST_REPLY_THREADS, watch.begun),
        )

    def _wake(self) -> None:
        if self._watch is not None:
            self._watch.wake()

    def _due(self) -> float | None:
        self.rrefs.sweep()
        return self.pending.expire()

    def _info(self, id: int) -> WorkerInfo:
        return self.peers.find(id).info

    def answer(self, kind: int, answer: Callable[[int, bytes], bytes]) -> None:
        """Have `answer(source, data)` answer messages of `kind`. Before `start`."""
        self._control.answers[kind] = answer

    def tell(
        self,
        peer: int,
        kind: int,
        data: bytes,
        then: Callable[[BaseException | None], None],
        heard: Callable[[bytes], None] | None = None,
    ) -> int:
        """Tell a worker something until it answers, or is gone; see `ControlMessages.tell`. Waits for nobody."""
        return self._control.tell(peer, kind, data, then, heard)

    @property
    def num_threads(self) -> int:
        """Return how many threads may run calls at once."""
        return self._threads

    def blocking_calls(self) -> list[tuple[int, int, bytes, float, int]]:
        """Return the calls that threads of this worker wait for; see `BlockingCalls.under_way`."""
        return self._blocking.under_way()

    def post(self, channel: str, peer: int, note: bytes) -> None:
        """Send a note to the same channel of a peer. Never raises."""
        self._control.post(channel, peer, note)

    def tell_member(self, member: WorkerRecord, joins: bool, deadline: Deadline) -> list[str]:
        """Tell all others that a worker has come, or leaves; return the names of those that do not answer in time."""
        return self._control.tell_member(member, joins, deadline)

    # --- calls ---

    def _limit(self, timeout: Any) -> float | None:
        """Seconds that a call may take; None: without end."""
        named = seconds(timeout, "timeout") if timeout != UNSET_RPC_TIMEOUT else self.timeout_s
        return named or None

    def call(self, to: Any, function: Any, args: Any, kwargs: Any, timeout: float) -> Any:
        """Run `function` at worker `to`, and return what it returns; see `rpc_sync`."""
        peer = self.peers.find(to)
        limit = self._limit(timeout)
        flags, name, rest, blocks, forks = self._exchange.make(b"", function, args, kwargs, peer)
        return self._blocking.call(peer, CALL, flags, name, rest, blocks, forks, limit)

    def fetch(self, user: UserReference, timeout: float) -> Any:
        """Return a copy of the value that `user` refers to; see `RRef.to_here`."""
        limit = self._limit(timeout)
        peer = self.peers.find(user.owner)
        try:
            flags, ids = self._exchange.in_context(RREF.pack(*user.id, *user.fork), peer)
            value = self._blocking.call(peer, FETCH, flags, b"", ids, (), (), limit)
            if user.profiled:
                user.creation.settled_within(_EVENTS_S)
            return value
        except OwnerLost:
            raise
        except PeerLost as error:
            if peer.id not in error.ranks:  # of another one, whom the value needed
                raise
            raise OwnerLost(f"{user}: the value is lost with its owner: {error}", error.ranks) from None

    def call_async(self, to: Any, function: Any, args: Any, kwargs: Any, timeout: float) -> Any:
        """Run `function` at worker `to`; return a future at once; see `rpc_async`."""
        peer = self.peers.find(to)
        limit = self._limit(timeout)
        made = self._exchange.make(b"", function, args, kwargs, peer)
        return self._begin(peer, CALL, made, limit).future

    def remote(
        self, to: Any, function: Any, args: Any, kwargs: Any, timeout: float, recreate: bool = False
    ) -> OwnedValue | UserReference:
        """Make a value at worker `to`; return the reference to it at once; see `remote`."""
        peer = self.peers.find(to)
        limit = self._limit(timeout)
        if peer.id == self.me.id:
            id, fork = self.rrefs.new_id(), self.rrefs.new_id()
            state: OwnedValue | UserReference = self.rrefs.owner(id)
        else:
            state = self.rrefs.new_user(peer.info)
            state.recipe = Recipe(function, args, kwargs, timeout) if recreate else None
            id, fork = state.id, state.fork
        try:
            made = self._exchange.make(RREF.pack(*id, *fork), function, args, kwargs, peer)
        except BaseException:
            if isinstance(state, UserReference):  # nobody will have it; the error is the caller's alone, and not kept
                self.rrefs.created(state, None)
                self.rrefs.drop(state)
            else:
                self.rrefs.drop_fork(id, fork)
            raise
        call = self._begin(peer, REMOTE_CALL, made, limit)
        state.creation, state.profiled = call.future, call.asked is not None
        call.future.when_done(lambda done: self._created(state, done.exception()))
        return state

    def make_again(self, state: UserReference) -> OwnedValue | UserReference:
        """Make the value of a reference, whose owner is gone, at a survivor; return the new reference at once."""
        recipe = state.recipe
        if recipe is None:
            raise UsageError("Agent.make_again: nobody has kept how the value is made")
        to = self.peers.survivor(state.owner, state.turn)
        made = self.remote(to, recipe.function, recipe.args, recipe.kwargs, recipe.timeout, recreate=True)
        log.event(
            _LOG, logging.WARNING, "a value is made again", lost=str(state), owner=state.owner.name, again_at=to.name
        )
        return made

    def _created(self, state: OwnedValue | UserReference, error: BaseException | None) -> None:
        if isinstance(state, UserReference):
            self.rrefs.created(state, error)
        elif error is not None and not state.value.done():
            self._not_created(state, error)

    def _not_created(self, state: OwnedValue | UserReference, error: BaseException) -> None:
        if isinstance(state, UserReference):
            self.rrefs.created(state, error)
        else:
            state.error = RpcError(f"RRef creation via rpc.remote() to self timed out or failed: {error}")

    def _begin(self, peer: Peer, kind: int, made: Any, limit: float | None) -> PendingCall:
        """Send a call whose reply completes a future. It fails the future, and raises nothing."""
        if len(self.pending) >= self._most_pending:
            self._wait_for_room(limit)
        flags, name, rest, blocks, forks = made
        number = next(self._numbers)
        counts = self.stats.called(name)
        call = PendingCall(peer, name, limit, counts, self._exchange.read)
        self.pending.add(number, call)
        counts.bytes += len(rest)
        head = HEADER.pack(kind, flags, REPLIES, len(name), number, expiry(call.at, peer.same_host))
        try:
            self._exchange.send(peer, [head + rest, *blocks], name, limit, forks)
        except Exception as error:  # noqa: BLE001 - whatever keeps the call from the peer: the future's
            if self.pending.pop(number) is not None:
                call.failed(error)
        return call

    def _wait_for_room(self, limit: float | None) -> None:
        """Block while as many calls are pending as may be: the callees' queues are bounded by this."""
        step_down()
        deadline = Deadline(limit)
        while len(self.pending) >= self._most_pending and not deadline.passed() and not self._closed:
            SYSTEM.sleep(0.0005)

    # --- ends ---

    def _lost(self, peer: int, error: PeerLost) -> None:
        self._blocking.lost(peer)
        if not self._replies.closed:  # behind what it had answered before
            self._replies.put(RpcMessage(peer, [HEADER.pack(LOST, 0, 0, 0, self.peers.turn_of(peer), 0.0)]))

    def _take_lost(self, peer: int, turn: int) -> None:
        for pool in self._pools[1:]:  # a queue may give what was put into it before what came from peers
            pool.catch_up(_CLAIM_S)
        error = self.peers.losses[peer]
        self.pending.lost(peer, error)
        self.rrefs.lost(peer, error, turn)
        self.gradients.lost(peer, error, turn)
        for channel in self._channels.values():
            channel.lost(peer)
        for told in list(self.when_lost):
            told(peer, error)

    def leave(self, deadline: Deadline) -> None:
        """Leave a dynamic group: the others hear of it, and return their references.

        Raises RpcTimeout, having left, where some have not answered in time: they find this worker lost.
        """
        silent = self.tell_member(self.peers.member, joins=False, deadline=deadline)
        self.membership.leave(deadline)
        if silent:
            raise RpcTimeout(
                f"workers {', '.join(silent)} have not answered within {spell(deadline.seconds)} that they know of "
                "this one's leave; it has left all the same"
            )

    @property
    def sent(self) -> int:
        """Calls that were made, about: what shutdown compares to find out whether any was."""
        return self._exchange.sent

    def uncount(self) -> None:
        """Take back one of `sent`: a call of shutdown's own."""
        self._exchange.sent -= 1

    def wait_idle(self, timeout_s: float | None) -> None:
        """Wait until no call is under way, from this worker or to it. RpcTimeout after `timeout_s`."""
        deadline = Deadline(timeout_s)
        pause = 0.0002
        while not self.is_idle():
            if deadline.passed():
                raise RpcTimeout(
                    f"calls are still under way after {spell(timeout_s)}: {len(self.pending)} of this worker, "
                    f"{len(self.server.active)} that it runs for others"
                )
            SYSTEM.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    def is_idle(self) -> bool:
        """Return whether no call is under way, from this worker or to it."""
        return not (len(self.pending) or self.server.active or self._blocking.waiting)

    @property
    def is_closed(self) -> bool:
        """Return whether this worker has ended."""
        return self._closed

    def close(self) -> None:
        """End every thread and transport. Pending calls fail. Idempotent."""
        if self._closed:
            return
        self._closed = self.peers.ended = True
        with contextlib.ExitStack() as rest:  # whatever fails, the others are closed
            rest.callback(self._queues.close)
            for channel in self._channels.values():
                rest.callback(channel.close)
            if self._watch is not None:
                rest.callback(self._watch.close)
            for pool in reversed(self._pools):
                rest.callback(self._close_pool, pool)
            rest.callback(self._fail_all)
            for told in self.when_closed:
                rest.callback(told)
            for transport in reversed(self._transports):
                rest.callback(transport.close)

    def _fail_all(self) -> None:
        for peer in [info.id for info in self.peers.infos()]:
            self.pending.lost(peer, PeerLost("RPC was shut down at this worker", [peer]))
        self._blocking.close()

    def _close_pool(self, pool: ThreadPool) -> None:
        try:
            pool.close(timeout_s=1.0)
        except TimeoutError as error:
            log.event(_LOG, logging.WARNING, "a worker thread still runs a call at shutdown", reason=str(error))

    # --- PyTorch's names ---

    def get_worker_info(self, to: Any = None) -> WorkerInfo:
        """Return the worker that `to` names; this one without it."""
        return self.me if to is None else self.peers.find(to).info

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all workers."""
        return self.peers.infos()

    def _get_device_map(self, to: Any) -> dict[str, str]:
        """Return where tensors of this worker's devices go at worker `to`."""
        return dict(self.peers.find(to).devices)

    def get_debug_info(self) -> dict[str, str]:
        """Return counts, for people."""
        return {
            "agent.num_pending_calls": str(len(self.pending)),
            "agent.num_running_calls": str(len(self.server.active)),
            "agent.num_worker_threads": str(self._threads),
        }
