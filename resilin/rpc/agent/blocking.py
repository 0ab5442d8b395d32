"""Make calls for which a thread waits, in a queue of its own: the reply passes no other thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from resilin._base.clock import SYSTEM
from resilin.errors import PeerLost, RpcError
from resilin.rpc.agent.exchange import Exchange
from resilin.rpc.agent.peers import KnownPeers, Peer
from resilin.rpc.agent.pending import late
from resilin.rpc.agent.stats import Stats
from resilin.rpc.agent.thread_pool import step_down
from resilin.rpc.serialization.messages import FETCH, HEADER, LOST, PROFILED, REPLIES, expiry
from resilin.rpc.tracing.remote_events import here
from resilin.rpc.transports.base import REQUESTS, Queues, ReceiveQueue, RpcMessage

_NOBODY = -1
TO_HERE = b"to_here"
monotonic = SYSTEM.monotonic


class _Caller:
    """A thread that makes blocking calls, with the queue that it waits in."""

    def __init__(self, queue: ReceiveQueue) -> None:
        self.queue = queue
        self.thread = threading.get_ident()
        self.peer, self.number = _NOBODY, 0
        self.name, self.begun = b"", 0.0

    def __del__(self) -> None:
        self.queue.close()


class BlockingCalls:
    """Those of one worker. numbers: of its calls."""

    def __init__(
        self, exchange: Exchange, queues: Queues, peers: KnownPeers, numbers: Iterator[int], stats: Stats
    ) -> None:
        self._exchange, self._queues, self._peers, self._numbers, self._stats = exchange, queues, peers, numbers, stats
        self._here = threading.local()
        self._callers: dict[int, _Caller] = {}  # by queue: threads that wait
        self._closed = False

    @property
    def waiting(self) -> int:
        """Return how many threads wait for a reply."""
        return len(self._callers)

    def under_way(self) -> list[tuple[int, int, bytes, float, int]]:
        """Return the calls that threads wait for: peer, number, name, when it began, and the thread."""
        callers = list(self._callers.values())
        return [(each.peer, each.number, each.name or TO_HERE, each.begun, each.thread) for each in callers]

    def call(
        self,
        peer: Peer,
        kind: int,
        flags: int,
        name: bytes,
        rest: bytes,
        blocks: Sequence[Any],
        forks: Sequence[Any],
        limit: float | None,
    ) -> Any:
        """Send a call, wait for its reply, and return what is in it; raise the error that is."""
        step_down()
        caller = getattr(self._here, "caller", None)
        if caller is None or caller.peer != _NOBODY:  # the latter: a signal handler calls amid a call
            caller = _Caller(self._queues.open())
            if getattr(self._here, "caller", None) is None:
                self._here.caller = caller
        number, queue, begun = next(self._numbers), caller.queue.number, monotonic()
        at = None if limit is None else begun + limit
        caller.peer, caller.number, caller.name, caller.begun = peer.id, number, name, begun
        self._callers[queue] = caller
        failed = True
        try:
            head = HEADER.pack(kind, flags, queue, len(name), number, expiry(at, peer.same_host))
            self._exchange.send(
                peer, [head + rest, *blocks], name, limit, forks, REPLIES if kind == FETCH else REQUESTS
            )
            value = self._await(caller, peer, name, at, limit)
            failed = False
            return value
        finally:
            caller.peer = _NOBODY
            self._callers.pop(queue, None)
            counts = self._stats.called(name or b"to_here")
            counts.add(monotonic() - begun, failed)
            counts.bytes += len(rest)

    def _await(self, caller: _Caller, peer: Peer, name: bytes, at: float | None, limit: float | None) -> Any:
        take, number = caller.queue.take, caller.number
        while True:
            left = None
            if at is not None:
                left = at - monotonic()
                if left <= 0:
                    raise late(name.decode() or "to_here", peer.name, limit)
            for message in take(left, 1):
                if message.parts[0][0] == LOST:
                    message = self._last_reply(caller, message)
                kind, flags, _, _, answered, _ = HEADER.unpack_from(message.parts[0])
                if answered == number:
                    if kind == LOST:
                        lost = self._peers.losses.get(peer.id)
                        why = str(lost) if lost is not None else f"worker {peer.name!r} is lost"
                        raise PeerLost(f"{name.decode() or 'to_here'}: {why}", [peer.id])
                    if flags & PROFILED and here.asked is not None:
                        here.asked.take(message.parts[-1], peer.same_host)
                    value, error = self._exchange.read(kind, flags, message)
                    if error is not None:
                        raise error
                    return value
                self._exchange.throw_away(flags, message)
            if self._closed:
                raise RpcError(f"{name.decode()}: RPC was shut down before worker {peer.name!r} had answered")

    def _last_reply(self, caller: _Caller, lost: RpcMessage) -> RpcMessage:
        """The reply that came before its sender was lost; `lost` where there is none."""
        found = lost
        while rest := caller.queue.take(0.0):
            for message in rest:
                kind, flags, _, _, answered, _ = HEADER.unpack_from(message.parts[0])
                if answered == caller.number and kind != LOST:
                    found = message
                else:
                    self._exchange.throw_away(flags, message)
        return found

    def lost(self, peer: int) -> None:
        """Tell those who wait for `peer` that it is gone, behind what it has answered before."""
        for queue, caller in list(self._callers.items()):
            if caller.peer == peer:
                found = self._queues.find(queue)
                if found is not None:
                    found.put(RpcMessage(peer, [HEADER.pack(LOST, 0, 0, 0, caller.number, 0.0)]))

    def close(self) -> None:
        """Have nobody wait any more."""
        self._closed = True
        for caller in list(self._callers.values()):
            caller.queue.wake()
