"""Find out with whose workers this node cannot connect: after its own waited in vain, and until it works again.

A worker misses others ──> its node tries theirs, and theirs try all (`queries.to_try`) ──> records say which failed
(`Node.unreachable`), and that all were tried (`Node.tried_in`) ──> `membership.reachability` decides who goes on ──>
tries go on, rarer and rarer, until one succeeds ──> the record says so, and the node may take part again

Long before a worker gives up, its node tries everybody when a world takes long to form, or training stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from resilin._base import json_text
from resilin._base.clock import Clock
from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.membership import queries
from resilin.elastic.membership.view import View

FORM_S = 5.0  # so long a world may take to form before everybody is tried
MOST_AT_ONCE = 64  # nodes of a large world that are tried before anybody is missed
TRY_S = 3.0  # a connection that takes longer is none: TCP has repeated its first packet twice by then
SLOW_S = 1.0  # TCP has repeated its first packet by then: the link was cut for a while
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
WELL_S = 300.0  # without a failed try: the next one counts as the first

Connect = Callable[[str], Awaitable[bool]]


async def connects(endpoint: str) -> bool:
    """Return whether the worker with this endpoint (`Hello.endpoint`) takes a connection within `TRY_S`.

    True for one that takes none over TCP (it is on its peers' host), or has an endpoint of its own making.
    """
    try:
        card = json_text.parse(endpoint)
        host, port = str(card["address"]), int(card["port"])
    except (ValueError, LookupError, TypeError):
        return True
    if not host or not port:
        return True
    try:
        async with asyncio.timeout(TRY_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # TimeoutError among them
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


class _Peer:
    """A node that is tried."""

    def __init__(self) -> None:
        self.trying = False
        self.tried_at = -math.inf  # monotonic
        self.failed = False
        self.failures = 0  # in a row, or soon after one another
        self.failed_at = 0.0  # monotonic
        self.slow_at = -math.inf  # when a try ended that took long, or failed; monotonic
        self.next = 0.0  # not before this one that failed is tried again


class ReachabilityProbe:
    """Tries for node `node_id`. `spawn` owns a task, `changed` has the agent look again. In the agent's loop.

    `tried_in`, `cut_in` and `unreachable` are what the node's record says; tries of several nodes at once are told
    together.
    """

    def __init__(
        self,
        node_id: str,
        slots: Sequence[LocalSlot],
        connect: Connect,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        changed: Callable[[], None],
        say: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._slots = slots
        self._connect = connect
        self._spawn = spawn
        self._changed = changed
        self._say = say
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        self._generation = 0  # in which ranks were missed ...
        self._since = 0.0  # ... as was heard then, monotonic
        self._told: tuple[str, ...] = ()
        self._settled = asyncio.Event()  # nobody is tried of whom no failure is known
        self._settled.set()
        self.tried_in = self.cut_in = 0

    @property
    def unreachable(self) -> tuple[str, ...]:
        """The ids of the nodes with which the last try failed. While others are tried: as before."""
        if self._settled.is_set():
            self._told = tuple(sorted(name for name, peer in self._peers.items() if peer.failed))
        return self._told

    async def settled(self) -> None:
        """Wait until every try is over, but for repeated ones of what has failed: `TRY_S` at most."""
        await self._settled.wait()

    def look(self, view: View, now: float, stalled_at: float | None) -> float | None:
        """Try what is due, and say when to look again. `now`: monotonic, in seconds; stalled_at: since when training
        stands still, if it does."""
        for gone in [name for name in self._peers if view.node(name) is None]:
            del self._peers[gone]
        self._settle()
        self._try_missed(view, now)
        until = self._try_early(view, now, stalled_at)
        for name, peer in self._peers.items():
            if not peer.failed or peer.trying:
                continue
            if now >= peer.next:
                self._try(view, name, peer)
            else:
                until = peer.next if until is None else min(until, peer.next)
        return until

    def _try_missed(self, view: View, now: float) -> None:
        """Try, once in a generation, those that somebody misses."""
        to_try = queries.to_try(view, self._node_id)
        if to_try is None or view.generation is None:
            return
        names, number = [name for name in to_try if view.node(name) is not None], view.generation.number
        if number != self._generation:
            self._generation, self._since = number, now
        peers = [(name, self._peers.setdefault(name, _Peer())) for name in sorted(names)]
        for name, peer in peers:
            if not peer.trying and not peer.failed and peer.tried_at < self._since:
                self._try(view, name, peer)
        if not any(peer.trying for _, peer in peers):
            self.tried_in = number
            self.cut_in = number if any(peer.slow_at >= self._since for _, peer in peers) else 0
        elif self.tried_in == number:
            self.tried_in = 0

    def _try_early(self, view: View, now: float, stalled_at: float | None) -> float | None:
        """Try everybody before anybody is missed, if it is time; else, when that is."""
        current = view.generation
        if current is None or self._node_id not in current.nodes:
            return None
        forming = [s.sent_at + FORM_S for s in self._slots if s.running and s.taken_up < s.sent == current.number]
        due = [at for at in (*forming, stalled_at) if at is not None]
        since = max((at for at in due if at <= now), default=None)
        if since is None:
            return min(due, default=None)
        own = current.nodes.index(self._node_id)
        others = [*current.nodes[own + 1 :], *current.nodes[:own]]
        for name in [name for name in others[:MOST_AT_ONCE] if view.node(name) is not None]:
            peer = self._peers.setdefault(name, _Peer())
            if not peer.trying and not peer.failed and peer.tried_at < since:
                self._try(view, name, peer)
        return None

    def _try(self, view: View, name: str, peer: _Peer) -> None:
        peer.tried_at = self._clock.monotonic()
        endpoint = _endpoint(view, name)
        if not endpoint:  # nobody is there: who comes next is tried when somebody misses it
            peer.failed = False
            self._changed()
            return
        peer.trying = True
        self._settle()
        self._spawn(self._connect_with(name, peer, endpoint, _host(view, name)))

    async def _connect_with(self, name: str, peer: _Peer, endpoint: str, host: str) -> None:
        try:
            works = await self._connect(endpoint)
        finally:
            peer.trying = False
            self._settle()
        now = self._clock.monotonic()
        if not works or now >= peer.tried_at + SLOW_S:
            peer.slow_at = now
        if works and peer.failed:
            self._say(f"connections with node {name} ({host}) work again")
        elif not works:
            if not peer.failed:
                self._say(f"this node's workers cannot connect with those of node {name} ({host})")
            peer.failures = 1 if now - peer.failed_at > WELL_S else peer.failures + 1
            peer.failed_at = now
        peer.failed = not works
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(peer.failures - 1, 30))
        peer.next = now + pause_s
        self._changed()

    def _settle(self) -> None:
        if any(peer.trying and not peer.failed for peer in self._peers.values()):
            self._settled.clear()
        else:
            self._settled.set()


def _endpoint(view: View, name: str) -> str:
    node = view.node(name)
    slots = node.slots if node is not None else ()
    return next((slot.endpoint for slot in slots if slot.endpoint and (slot.alive or slot.state == "done")), "")


def _host(view: View, name: str) -> str:
    node = view.node(name)
    return node.host if node is not None else ""
