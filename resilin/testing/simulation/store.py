"""The real store (`StoreState` behind a `SharedState`) at one host of the simulated network, and its clients.

A client behaves as `resilin.store.client` does: calls with a deadline, repeated when a repetition does no harm, leases
renewed after a third of their time, watches that resume where they were.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from resilin.errors import Compacted, ResilinError, StoreAmbiguous, StoreTimeout
from resilin.store.base import (
    Compare,
    ErrorCallback,
    Event,
    EventsCallback,
    Lease,
    Op,
    Store,
    TxnResult,
    Watch,
    prefix_range,
)
from resilin.store.shared_state import SharedState, Subscription
from resilin.store.state import StoreState
from resilin.testing.simulation.network import STORE, Network, Stream
from resilin.testing.simulation.universe import HostClock, Process, Universe

_T = TypeVar("_T")
CALL_S = 5.0  # the deadline of one call
ATTEMPT_S = 1.0  # without an answer for this long the connection is taken for broken
RENEW_PART = 3


class Server(SharedState):
    """The data, and who is subscribed. `down`: it answers nobody, and keeps its data."""

    def __init__(self, universe: Universe) -> None:
        super().__init__(HostClock(universe), StoreState())
        self._universe = universe
        self._due = math.inf  # when the next look at leases is planned
        self.down = False
        self._ids = random.Random(0)
        self.watches: dict[_Watch, None] = {}  # of all clients, in order

    def back(self, extend: bool) -> None:
        """It answers again. `extend`: leases begin anew (a new leader of an etcd); else some may have run out."""
        self.down = False
        for lease_id in self.leases() if extend else ():
            self.renew(lease_id)
        self._look()

    def next_lease(self) -> int:
        """An id that is random, and the same in each replay."""
        return self._ids.getrandbits(62) + 1

    def lose(self) -> None:
        """Everything is gone, and another, empty store is there in its place: a process that was memory alone."""
        state, self._state = self._state, StoreState()
        for record in list(state.leases()):
            self._on_lease_end.pop(record.id, None)
        self.id += 1
        self._pushed = self._state.revision
        replaced = Compacted("the store was replaced by another one, its history is gone; list again", 0)
        for watch in list(self.watches):
            watch.fail(replaced)

    def leases(self) -> list[int]:
        """All leases, also those that ran out while it was down."""
        return [record.id for record in self._state.leases()]

    def renew(self, lease_id: int) -> float:
        """As `SharedState.renew`, but lets nothing run out before."""
        record = self._state.lease(lease_id)
        if record is None:
            return 0.0
        self._state.renew(lease_id, self.clock.monotonic() + record.ttl_s)
        return record.ttl_s

    def _watch_expiry(self) -> None:
        due = self._state.next_expiry()
        if due < self._due:
            self._due = due
            self._universe.at(due, self._look)

    def _look(self) -> None:
        self._due = math.inf
        if not self.down:
            with self._changed:
                self._expire()
                self._watch_expiry()


class _Described(Exception):
    """What a call is, told instead of making it."""

    def __init__(self, repeatable: bool) -> None:
        self.repeatable = repeatable


class Client(Store):
    """One process's client; also its `Caller`: a call is made at the server, and answered, as packets arrive."""

    def __init__(self, server: Server, network: Network, process: Process, host: str) -> None:
        self._server = server
        self._network = network
        self._process = process
        self._host = host
        self._describing = False
        self._watches: dict[str, _Watch] = {}  # by prefix

    # ------------------------------------------------------------------------------- the caller

    async def __call__(self, call: Callable[[], _T]) -> _T:
        """Make `call`, which is one call of this store, over the network."""
        if self._process.dead:
            raise StoreTimeout("the process is dead")
        repeatable = self._describe(call)
        deadline = self._process.time() + CALL_S
        while self._process.time() < deadline:
            future: asyncio.Future[_T] = self._process.create_future()
            self._network.packet(self._host, STORE, partial(self._serve, call, future))
            timer = self._process.call_later(ATTEMPT_S, _fail, future)
            try:
                answer = await future
                if isinstance(answer, _Lease):
                    answer.hold()  # one whose grant was not heard of is not renewed
                return answer
            except TimeoutError:
                if not repeatable:
                    raise StoreAmbiguous("the answer was lost") from None
            finally:
                timer.cancel()
        raise StoreTimeout("store: no answer")

    def close(self) -> None:
        """As `Store.close`."""
        for watch in self._watches.values():
            watch.close()

    def _serve(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        """At the server."""
        if self._server.down:
            return
        try:
            answer = partial(_answer, future, call(), None)
        except ResilinError as error:
            answer = partial(_answer, future, None, error)
        self._network.packet(STORE, self._host, lambda: self._process.call_soon(answer))

    def _describe(self, call: Callable[[], object]) -> bool:
        self._describing = True
        try:
            call()
        except _Described as told:
            return told.repeatable
        finally:
            self._describing = False
        raise AssertionError("expected one call of the store")

    def describe(self, repeatable: bool) -> None:
        """Every call of the store begins with this."""
        if self._describing:
            raise _Described(repeatable)

    # ------------------------------------------------------------------------------- the store

    def txn(self, compare: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = ()) -> TxnResult:
        """As `Store.txn`."""
        self.describe(not (compare and any(op.kind != "range" for op in (*then, *orelse))))
        return self._server.txn(compare, then, orelse)

    def compact(self, revision: int) -> None:
        """As `Store.compact`."""
        self._server.compact(revision)

    def lease(self, ttl_s: float, on_lost: Callable[[], None] | None = None) -> Lease:
        """As `Store.lease`."""
        self.describe(True)
        return _Lease(self, ttl_s, on_lost)

    def watch(
        self,
        prefix: str,
        on_events: EventsCallback,
        start_revision: int | None = None,
        on_error: ErrorCallback | None = None,
    ) -> Watch:
        """As `Store.watch`; a client has one for each prefix."""
        self.describe(True)
        if prefix in self._watches:
            self._watches[prefix].close()
        self._watches[prefix] = _Watch(self, prefix, on_events, start_revision, on_error)
        return self._watches[prefix]

    def break_watch(self) -> None:
        """What it has not heard is gone: the history was compacted while it was away."""
        for watch in self._watches.values():
            watch.fail(Compacted("watch: compacted", self._server.revision))


class _Watch(Watch):
    def __init__(
        self,
        client: Client,
        prefix: str,
        on_events: EventsCallback,
        start_revision: int | None,
        on_error: ErrorCallback | None,
    ) -> None:
        self._client = client
        self._on_events = on_events
        self._on_error = on_error
        self._closed = False
        self._stream = Stream(client._network, STORE, client._host)
        self._subscription: Subscription = client._server.subscribe(*prefix_range(prefix), start_revision, self._push)
        client._server.watches[self] = None

    def _push(self, events: tuple[Event, ...]) -> None:
        self._stream.send(lambda: self._client._process.call_soon(self._call, events))

    def _call(self, events: tuple[Event, ...]) -> None:
        if not self._closed:
            self._on_events(events)

    def fail(self, error: Exception) -> None:
        if not self._closed and self._on_error is not None:
            self.close()
            self._client._process.call_soon(self._on_error, error)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stream.close()
            self._client._server.watches.pop(self, None)
            self._client._server.unsubscribe(self._subscription)


class _Lease(Lease):
    def __init__(self, client: Client, ttl_s: float, on_lost: Callable[[], None] | None) -> None:
        self.ttl_s = ttl_s
        self._client = client
        self._on_lost = on_lost
        self._process = client._process
        self._alive = True
        self._expires_at = self._process.time() + ttl_s
        self.id = client._server.grant(ttl_s, client._server.next_lease())

    def hold(self) -> None:
        """Renew it from now on."""
        self._process.call_later(self.ttl_s / RENEW_PART, self._renew)

    @property
    def alive(self) -> bool:
        return self._alive

    def revoke(self) -> None:
        self._client.describe(True)
        self._alive = False
        self._client._server.revoke(self.id)

    def _renew(self) -> None:
        if not self._alive:
            return
        now = self._process.time()
        if now >= self._expires_at:
            self._end()
            return
        client = self._client
        client._network.packet(client._host, STORE, partial(self._serve_renewal, now))
        self._process.call_later(self.ttl_s / RENEW_PART, self._renew)

    def _serve_renewal(self, sent_at: float) -> None:
        client = self._client
        if not client._server.down:
            left = client._server.renew(self.id)
            answer = partial(self._process.call_soon, self._renewed, sent_at, left)
            client._network.packet(STORE, client._host, answer)

    def _renewed(self, sent_at: float, ttl_s: float) -> None:
        if not self._alive:
            return
        if ttl_s:
            self._expires_at = max(self._expires_at, sent_at + ttl_s)
        else:
            self._end()

    def _end(self) -> None:
        self._alive = False
        if self._on_lost is not None:
            self._on_lost()


def _answer(future: asyncio.Future[Any], value: Any, error: ResilinError | None) -> None:
    if future.done():  # the caller has sent its request again, or has given up
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _fail(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
