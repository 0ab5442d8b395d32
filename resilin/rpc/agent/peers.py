"""Know the workers of the group, reach each by the best transport, and hear of those that are gone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from resilin._base.clock import SYSTEM, Deadline
from resilin._base.threads import OwnedThread
from resilin.errors import PeerLost, ResilinError, RpcError, UsageError
from resilin.rpc.membership.membership import Membership, WorkerRecord
from resilin.rpc.serialization.messages import TURN_BITS
from resilin.rpc.transports.base import Buffer, Queues, RpcMessage, Transport
from resilin.rpc.worker_info import WorkerInfo

_CONNECT_S = 30.0
_OFFER_CONNECT_S = 5.0
_SAID_S = 1.0  # so long a transport may take to notice the end of a process
_LOOK_S = 1.0  # so long a call waits for the store, which may be lost itself
_ENDED = "RPC was shut down at this worker before a message was sent"


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker as the receiver of messages of one kind: calls, or replies to its calls."""

    id: int
    name: str
    info: WorkerInfo
    channels: Mapping[str, str]
    allows_closures: bool
    same_host: bool
    devices: Mapping[str, str]

    def device_for(self, device: str) -> str | None:
        """Return the device there that tensors of `device` go to; None where nobody has said."""
        return self.devices.get(device)


class _Loopback:
    """Carry messages of a worker to itself."""

    def __init__(self, me: int, queues: Queues) -> None:
        self._me, self._queues = me, queues

    def send(self, peer: int, parts: Sequence[Buffer], queue: int, deadline: Deadline) -> None:
        """Put a message into the worker's own queue: its parts are copied, as they are the receiver's from now on."""
        found = self._queues.find(queue)
        if found is not None:
            own = [part if isinstance(part, bytes) else bytearray(part) for part in parts]
            found.put(RpcMessage(self._me, own))


class KnownPeers:
    """The workers that one worker knows."""

    def __init__(self, me: WorkerRecord, queues: Queues, membership: Membership, gone: Callable[[int, PeerLost], None]):
        self.me = WorkerInfo(me.name, me.id)
        self.member, self._queues, self._membership, self._on_gone = me, queues, membership, gone
        self._transports: tuple[Transport, ...] = ()
        self._lock = threading.RLock()
        self._members: dict[int, WorkerRecord] = {}  # guarded by _lock for writing
        self._ids: dict[str, int] = {}  # guarded by _lock for writing
        self.calls: dict[int, Peer] = {}
        """Workers as receivers of calls, by id."""
        self.replies: dict[int, Peer] = {}
        """Workers as receivers of replies, by id."""
        self._loopback = _Loopback(me.id, queues)
        self._routes: dict[int, Transport | _Loopback] = {me.id: self._loopback}
        self.gone: dict[int, PeerLost] = {}
        """Workers that were lost, with what is raised for them."""
        self.losses: dict[int, PeerLost] = {}
        """The same, also of those in whose place others have come since."""
        self.ended = False
        """Whether this worker is ending: its transports are closed."""
        self._questions: dict[int | None, tuple[OwnedThread, Deadline]] = {}  # guarded by _lock: to the store, by id

    def use(self, transports: Sequence[Transport]) -> None:
        """Send by the first of `transports` that reaches a worker."""
        self._transports = tuple(transports)

    # --- who there is ---

    def take(self, members: Sequence[WorkerRecord]) -> None:
        """Take up workers that have come, or records that are newer."""
        for member in members:
            with self._lock:
                old = self._members.get(member.id)
                if old is not None and member.turn < old.turn:
                    continue  # it is told late: another one has taken its place
                if old is not None and old.incarnation != member.incarnation and member.id != self.me.id:
                    if member.id not in self.gone:
                        self.replaced(old)
                    self._routes.pop(member.id, None)
                    self.gone.pop(member.id, None)
                self._members[member.id] = member
                self._ids[member.name] = member.id
                there = {str(there): str(here) for here, there in member.device_maps.get(self.me.name, {}).items()}
                ours = dict(self.member.device_maps.get(member.name, {}))
                common = (WorkerInfo(member.name, member.id), member.channels, member.allows_closures)
                here = member.host == self.member.host
                self.calls[member.id] = Peer(member.id, member.name, *common, here, ours)
                self.replies[member.id] = Peer(member.id, member.name, *common, here, there)

    def replaced(self, old: WorkerRecord) -> None:
        """Note that another process has come in the place of one of whose end nothing was heard here."""
        self.losses[old.id] = PeerLost(f"{old.described()} is lost: another process has taken its place", [old.id])

    def before(self, id: int) -> str:
        """Return who was worker `id` before the one that is known, and how it ended, as far as this worker knows."""
        known = self.losses.get(id)
        return f"another process is worker {id} now" if known is None else str(known)

    def left(self, member: WorkerRecord) -> None:
        """Forget a worker that has left: its calls and values are as those of a lost one.

        Nothing where it is told late, and another one has taken its place.
        """
        with self._lock:
            known = self._members.get(member.id)
            if known is None or known.incarnation != member.incarnation or member.id == self.me.id:
                return
            error = self.losses[member.id] = PeerLost(f"{member.described()} has left", [member.id])
        self._on_gone(member.id, error)
        with self._lock:
            del self._members[member.id]
            self._ids.pop(member.name, None)
            self.calls.pop(member.id, None)
            self.replies.pop(member.id, None)
            self._hang_up(member.id)

    def _hang_up(self, id: int) -> None:
        self._routes.pop(id, None)
        self.gone.pop(id, None)
        for transport in self._transports:
            transport.forget(id)

    def is_gone(self, id: int, number: int) -> bool:
        """Return whether the process that has sent message `number` as worker `id` is gone: also if replaced since."""
        member, turn = self._members.get(id), number >> TURN_BITS
        known = -1 if member is None else member.turn
        return turn < known or (turn == known and id in self.gone)

    def turn_of(self, id: int) -> int:
        """Return how many processes have been worker `id` before the one that is known."""
        member = self._members.get(id)
        return 0 if member is None else member.turn

    def record_of(self, id: int) -> WorkerRecord | None:
        """Return what worker `id` has told of itself; None of one that nobody knows here."""
        return self._members.get(id)

    def name_of(self, id: int) -> str:
        """Return the name of worker `id`; empty where it is not known."""
        member = self._members.get(id)
        return "" if member is None else member.name

    def infos(self) -> list[WorkerInfo]:
        """Return the workers, this one included, by id."""
        return [peer.info for _, peer in sorted(self.calls.items())]

    def find(self, to: object) -> Peer:
        """Return the worker that `to` (its name, id or WorkerInfo) names. RpcError where there is none."""
        id = self._ids.get(to) if isinstance(to, str) else getattr(to, "id", to)
        if type(id) is int and id in self.calls:
            return self.calls[id]
        if not isinstance(to, str | WorkerInfo) and type(to) is not int:
            raise UsageError(f"Cannot get WorkerInfo from name {to!r:.80}: expected a worker's name, id or WorkerInfo")
        if not self._membership.is_static:  # a newcomer whose greeting is still under way
            self._ask(None, self._look_for_newcomers, Deadline(None))
            id = self._ids.get(to) if isinstance(to, str) else id
            if type(id) is int and id in self.calls:
                return self.calls[id]
        known = ", ".join(peer.name for peer in list(self.calls.values())[:20])
        raise RpcError(f"could not find destination: no worker is called {to!r}; there are {known}")

    def answering(self, id: int) -> Peer:
        """Return worker `id` as the receiver of a reply."""
        found = self.replies.get(id)
        if found is None:
            self.find(id)
            found = self.replies[id]
        return found

    # --- the way to them ---

    def send(self, peer: int, parts: Sequence[Buffer], queue: int, deadline: Deadline) -> None:
        """Send a message. Raises: PeerLost, which names the worker; TimeoutError; UsageError for one too long; RpcError
        where this worker ends."""
        route = self._routes.get(peer) or self._connect(peer, deadline)
        try:
            route.send(peer, parts, queue, deadline)
        except PeerLost as error:  # the transport tells of it by itself, behind what has come from there
            raise self._named(peer, error) from None
        except UsageError:
            if self.ended:
                raise RpcError(_ENDED) from None
            known = self.losses.get(peer)
            if known is None or self._routes.get(peer) is route:
                raise
            raise _copied(known) from None  # it has left meanwhile

    def is_connected(self, peer: int) -> bool:
        """Return whether something has been sent to a worker, which is not known to be gone."""
        return peer in self._routes

    def offer(self, peer: int, parts: Sequence[Buffer], queue: int) -> None:
        """Send a message where there is room for it now, having connected before. Raises what `send` does."""
        if peer not in self._routes:
            self._connect(peer, Deadline(_OFFER_CONNECT_S))
        self.send(peer, parts, queue, Deadline(0.0))

    def reach(self, to: str | int) -> None:
        """Connect to a worker, so that its end is noticed. Raises PeerLost where it is gone."""
        id = self.find(to).id
        if id not in self._routes:
            self._connect(id, Deadline(None))

    def survivor(self, lost: WorkerInfo, turn: int) -> WorkerInfo:
        """Return who takes over from a worker that is gone: the process that has come in its place, else the worker of
        the lowest id that is reached, else this one. turn: how many had been that worker before the one that is gone.
        """
        others = [info for info in self.infos() if info.id not in (self.me.id, lost.id)]
        for info in (lost, *others):
            with contextlib.suppress(PeerLost, RpcError):  # it is gone, too, or has left
                self.reach(info.name)
                if info is not lost or self.turn_of(lost.id) > turn:
                    return self.find(info.name).info
        return self.me

    def _connect(self, id: int, deadline: Deadline) -> Transport | _Loopback:
        if id in self.gone:
            self._ask(id, lambda: self._look_for_replacement(id), deadline)
        with self._lock:
            route = self._routes.get(id)
            if route is not None:
                return route
            if id in self.gone:
                raise _copied(self.gone[id])
            member = self._members.get(id)
            if member is None:
                raise RpcError(f"could not find destination: worker {id} has left")
            transport = self._choose(member)
        left = deadline.left()
        limit = Deadline(_CONNECT_S if left is None else min(left, _CONNECT_S))
        try:
            try:
                transport.connect(id, member.addresses[transport.name], limit)
            except PeerLost:  # of one whose place the other has taken? What came from it is kept as long as may be
                transport.forget(id)
                transport.connect(id, member.addresses[transport.name], limit)
        except PeerLost as error:
            raise self.lost(id, error) from None
        except UsageError:
            if self.ended:
                raise RpcError(_ENDED) from None
            raise
        with self._lock:
            self._routes[id] = transport
        return transport

    def _choose(self, member: WorkerRecord) -> Transport:
        for transport in self._transports:
            address = member.addresses.get(transport.name)
            if address is not None and transport.reaches(address):
                return transport
        raise UsageError(
            f"no transport reaches {member.described()}: here there are "
            f"{', '.join(each.name for each in self._transports) or 'none'}, there "
            f"{', '.join(member.addresses) or 'none'} (TensorPipeRpcBackendOptions(transports=...))"
        )

    def _ask(self, about: int | None, look: Callable[[], None], deadline: Deadline) -> None:
        """Look into the store, in a thread of its own: nobody waits for a store that is lost. Raises what `look` does.

        The question is asked once at a time; who comes when it has been open for long does not wait at all.
        """
        with self._lock:
            thread, patience = self._questions.get(about, (None, Deadline(_LOOK_S)))
            if thread is None or not thread.is_alive():
                thread, patience = self._questions[about] = OwnedThread("rpc-lookup", look), Deadline(_LOOK_S)
        left, most = deadline.left(), patience.left()
        with contextlib.suppress(TimeoutError):
            thread.join(most if left is None or most is None else min(left, most))

    def close(self) -> None:
        """End the threads that ask the store, which is closed. Idempotent."""
        with self._lock:
            threads = [thread for thread, _ in self._questions.values()]
        for thread in threads:
            with contextlib.suppress(ResilinError, TimeoutError):  # nobody waits for its answer any more
                thread.join()

    def _look_for_replacement(self, id: int) -> None:
        """Take up the worker that has come in the place of a lost one."""
        present = self._membership.record(id)
        with self._lock:
            known = self._members.get(id)
            if present is not None and (known is None or present.incarnation != known.incarnation):
                self.take([present])

    def _look_for_newcomers(self) -> None:
        members = self._membership.current() or ()
        self.take([member for member in members if member.id not in self.calls])

    def named(self, id: int, cause: PeerLost) -> PeerLost:
        """Return what is raised for a worker that something else than its transport tells to be gone.

        Waits a moment for that: it knows which process it was, where another one has come in its place.
        """
        deadline = Deadline(_SAID_S)
        while id not in self.gone and not deadline.passed():
            SYSTEM.sleep(0.001)
        known = self.gone.get(id) or self.losses.get(id)
        return self._named(id, cause) if known is None else _copied(known)

    def _named(self, id: int, cause: PeerLost) -> PeerLost:
        member = self._members.get(id)
        who, why = f"worker {id}" if member is None else member.described(), str(cause)
        return PeerLost(why if why.startswith(who) else f"{who} is lost: {why}", [id])

    def lost(self, id: int, cause: PeerLost) -> PeerLost:
        """Note that worker `id` is gone; return what is raised for it."""
        with self._lock:
            known = self.gone.get(id)
            if known is not None:
                return _copied(known)
            error = self.gone[id] = self.losses[id] = self._named(id, cause)
            self._routes.pop(id, None)
        self._on_gone(id, error)
        return _copied(error)


def _copied(error: PeerLost) -> PeerLost:
    """What is raised instead of an error that is kept, which would keep all that its traceback leads to."""
    return PeerLost(str(error), error.ranks)
