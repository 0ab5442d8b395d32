"""Make authenticated connections between every pair of ranks from agreed endpoints, in one step.

Connections that the process has already are taken into the new generation (`renewal`). For the others every rank dials
the ranks below it and accepts those above it, so each pair has exactly one dialer. All of it runs at once and nothing
blocks: an interrupt ends it at any point, at the deadline the error names every rank that is missing, and a rank that
gives up tells those it has reached why.
"""

from __future__ import annotations

import contextlib
import hashlib
import selectors
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from resilin._base.clock import SYSTEM, Deadline, spell
from resilin.distributed.connections.connect import AGAIN, Dial, Probe
from resilin.distributed.connections.connection import PeerConnection, Waste, Wire
from resilin.distributed.connections.handover import Handover, Unusable, Wants
from resilin.distributed.connections.handshake import Hello, Renewal, name_on_wire
from resilin.distributed.connections.listener import CONTROL, DATA, Connections, Endpoint, Expectation, Listener
from resilin.distributed.wire.error_codec import decode_reason, encode_reason, in_world
from resilin.distributed.wire.frames import Frame
from resilin.errors import CollectiveTimeout, DistNetworkError, HandshakeError, PeerLost, UsageError

_AGAIN_S = 0.01
_FIRST_PROBE_S = 0.25  # a peer that we wait for and that has died is found by asking whether it still listens
_LONGEST_PROBE_S = 2.0
_REFUSALS = 2  # of probes in a row that tell a death: one may cross the connection that its listener closed after


Watched = Callable[[Callable[[BaseException], None]], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Topology:
    """Hold what all ranks conclude from the same list of endpoints."""

    endpoints: tuple[Endpoint, ...]

    @property
    def shared_memory(self) -> bool:
        """Return whether all ranks can use one shared-memory segment."""
        return len(self.hosts()) == 1

    def hosts(self) -> list[list[int]]:
        """The ranks cut into sets that share memory, ascending, in the order of their first ranks (their leaders)."""
        sets: dict[str, list[int]] = {}
        for rank, endpoint in enumerate(self.endpoints):
            sets.setdefault(endpoint.host if endpoint.shm else f"alone {rank}", []).append(rank)
        return list(sets.values())

    def channels(self) -> tuple[int, ...]:
        """Channels that each pair opens: data travels through memory where it can."""
        return (CONTROL,) if self.shared_memory else (CONTROL, DATA)

    def digest(self) -> str:
        """Equal on ranks that were given the same list."""
        text = "\n".join(endpoint.describe() for endpoint in self.endpoints)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class FullMesh:
    """A rank's connections to all others."""

    links: dict[int, PeerConnection]
    """By rank."""
    kept: int
    """Sockets that come from an older generation."""
    mapped: frozenset[int]
    """Ranks that keep the memory of this one which they have mapped."""


def assemble(
    listener: Listener,
    topology: Topology,
    rank: int,
    *,
    group: str,
    generation: int,
    secret: str,
    deadline: Deadline,
    kept: Iterable[PeerConnection] = (),
    maps: bool = False,
    ranks: Sequence[int] | None = None,
    watched: Watched | None = None,
) -> FullMesh:
    """Connect `rank` with all others. The caller owns the links.

    `kept` are links of an older generation; those to members are used again where both ends still have them, and stay
    the caller's when this fails. `maps`: this rank keeps the memory of its peers that it has mapped. `ranks`: the
    members' ranks in the world. `watched(told)`: while this runs, `told(error)` is called when it has become pointless.
    Raises: CollectiveTimeout naming the ranks that did not come by the deadline; PeerLost when a peer is gone;
    HandshakeError when one refuses us; what a peer gave up for; whatever `Listener.interrupt` was given.
    """
    size = len(topology.endpoints)
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} is not in a group of {size} endpoints")
    expectation = Expectation(name_on_wire(group), generation, secret, rank, set())
    before = list(kept)
    for link in before:
        if not link.usable:
            link.hang_up()  # the peer, to which it may look well, makes a fresh one, too
    work = _Assembly(listener, topology, expectation, deadline)
    try:
        with contextlib.nullcontext() if watched is None else watched(expectation.fail):
            work.begin({link.endpoint: link for link in before if link.usable}, maps)
            work.run()
    except BaseException as error:
        if isinstance(error, CollectiveTimeout) and ranks is not None:
            error.world_ranks = in_world(error.ranks, ranks)
        work.give_up(error)
        raise
    finally:
        try:
            work.close()
        except BaseException:  # an interrupt
            work.close()
            raise
    for link in before:
        if work.links.get(link.rank) is not link:
            link.close()
    return work.mesh()


_Item = Dial | Handover | PeerConnection | Probe


class _Assembly:
    """All connections of one rank on their way."""

    def __init__(self, listener: Listener, topology: Topology, expectation: Expectation, deadline: Deadline) -> None:
        self.links: dict[int, PeerConnection] = {}
        self._listener = listener
        self._endpoints = topology.endpoints
        self._channels = topology.channels()
        self._members = topology.digest()
        self._expectation = expectation
        self._rank = expectation.rank
        self._deadline = deadline
        self._dials: set[Dial] = set()
        self._renewing: dict[int, Handover] = {}
        self._kept: dict[int, Handover] = {}  # those that were renewed
        self._old_wires: set[Wire | None] = set()
        self._older: dict[int, str] = {}  # by rank: what to add to its loss
        self._half: Connections = {}  # data sockets whose link is not there yet
        self._probes: dict[Probe, int] = {}
        self._refused: Counter[int] = Counter()
        self._probe_s = _FIRST_PROBE_S
        self._next_probe = SYSTEM.monotonic() + _FIRST_PROBE_S
        self._due: set[_Item] = set()
        self._selector = selectors.DefaultSelector()
        self._wants: dict[_Item, Wants] = {}
        self._waker, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._waker, selectors.EVENT_READ)
        expectation.wake = self._wake

    # --- the whole ---

    def begin(self, kept: Mapping[Endpoint, PeerConnection], maps: bool) -> None:
        """Start all connections."""
        mine = self._expectation
        fresh = {(peer, channel) for peer in self._peers() for channel in self._channels}
        for peer in self._peers():
            link = kept.get(self._endpoints[peer])
            if link is not None:
                fresh -= {(peer, channel) for channel in self._channels}
                link.rank = peer
                link.disown()
                if link.wire is not None:
                    link.wire.renew()
                self._old_wires |= {link.wire} - {None}
                sent = -1 if link.wire is None or link.wire.broken else link.wire.sent
                hello = Renewal(mine.group, mine.generation, self._rank, peer, self._members, sent, maps)
                self._renewing[peer] = Handover(link, hello, mine.secret, DATA in self._channels)
        mine.wanted = {(peer, channel) for peer, channel in fresh if peer > self._rank}
        self._listener.expect(mine)
        self._due |= set(self._renewing.values())
        for peer, channel in sorted(fresh):
            if peer < self._rank:
                self._dial(peer, channel)

    def run(self) -> None:
        """Until every peer is connected."""
        while not self._over():
            again = self._step_all()
            if self._over():
                return
            if self._deadline.passed():
                raise self._late()
            pause = _AGAIN_S if again else min(self._probe_s, max(0.0, self._next_probe - SYSTEM.monotonic()))
            left = self._deadline.left()
            for key, _ in self._selector.select(pause if left is None else min(pause, left)):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        self._waker.recv(4096)
                else:
                    self._due.add(key.data)
            self._due |= again
            self._ask()

    def mesh(self) -> FullMesh:
        """What has been assembled."""
        renewed = {renewing.link.wire for renewing in self._kept.values()} & self._old_wires
        mapped = [
            peer
            for peer, each in self._kept.items()
            if each.mine.maps and each.theirs is not None and each.theirs.maps  # else either sends its memory again
        ]
        return FullMesh(self.links, len(self._kept) + len(renewed), frozenset(mapped))

    def give_up(self, error: BaseException) -> None:
        """Tell those that are connected why, and let go of what this assembly made."""
        self._expectation.fail(error)
        self._take_arrivals()
        text = encode_reason(error, self._rank)
        for renewing in {**self._renewing, **self._kept}.values():
            renewing.give_up(text)
        renewed = {id(renewing.link) for renewing in self._kept.values()}
        for link in self.links.values():
            if id(link) not in renewed:
                link.tell(Frame.ABORT, text)
                link.close()
        for dial in self._dials:
            peer = dial.hello.target
            link = PeerConnection(self._endpoints[peer], peer, dial.sock)
            if dial.introduced and dial.hello.channel == CONTROL:
                link.tell(Frame.ABORT, text)
            link.close()
        for sock in self._half.values():
            sock.close()

    def close(self) -> None:
        """Free what only the assembly needed. Idempotent."""
        self._listener.forget(self._expectation)
        with self._expectation.changed:
            self._expectation.wake = None
        for sock in [self._waker, self._wake, *(probe.sock for probe in self._probes)]:
            sock.close()
        self._selector.close()

    def _over(self) -> bool:
        with self._expectation.changed:
            if self._expectation.error is not None:
                raise self._expectation.error
        self._take_arrivals()
        with self._expectation.changed:
            waiting = bool(
                self._expectation.wanted or self._expectation.arrived
            )  # now: a listener's thread changes them
        return not (waiting or self._dials or self._renewing)

    def _peers(self) -> list[int]:
        return [peer for peer in range(len(self._endpoints)) if peer != self._rank]

    # --- steps ---

    def _step_all(self) -> set[_Item]:
        """Step what is due; return what to step again soon."""
        due, self._due, again = self._due, set(), set()
        for item in due:
            for sock, _ in self._wants.pop(item, ()):
                self._selector.unregister(sock)
            wants = self._step(item)
            if wants is None:
                continue
            if not wants:
                again.add(item)
            self._wants[item] = wants
            for sock, events in wants:
                self._selector.register(sock, events, item)
        return again

    def _step(self, item: _Item) -> Wants | None:
        if isinstance(item, PeerConnection):
            return self._watch(item)
        if isinstance(item, Handover):
            return self._renew(item)
        if isinstance(item, Probe):
            return self._probe(item)
        event = self._step_dial(item)
        if event is not None:
            return [] if event == AGAIN else [(item.sock, event)]
        self._dials.discard(item)
        self._connected((item.hello.target, item.hello.channel), item.sock)
        return None

    def _dial(self, peer: int, channel: int) -> None:
        mine = self._expectation
        hello = Hello(mine.group, mine.generation, self._rank, peer, channel)
        dial = Dial(self._endpoints[peer], self._endpoints[self._rank], hello, mine.secret)
        self._dials.add(dial)
        self._due.add(dial)

    def _step_dial(self, dial: Dial) -> int | None:
        peer = dial.hello.target
        who = f"rank {peer} ({self._endpoints[peer]})"
        try:
            return dial.step()
        except HandshakeError as error:
            raise HandshakeError(f"{self._name()}: {error}") from error
        except (OSError, DistNetworkError) as error:
            what = (
                f"{who} left before the group was made: {error}"
                if dial.connected
                else f"{who} cannot be reached: {error}; its process ended or its network is down"
            )
            raise PeerLost(f"{self._name()}: {what}{self._older.get(peer, '')}", [peer]) from error

    def _renew(self, renewing: Handover) -> Wants | None:
        peer = renewing.mine.target
        try:
            wants = renewing.step()
        except HandshakeError as error:
            raise HandshakeError(f"{self._name()}: {error}") from error
        except Unusable:
            del self._renewing[peer]
            if renewing.older >= 0:
                self._older[peer] = f"; it was last heard to make generation {renewing.older}"
            renewing.link.hang_up()
            self._anew(peer, self._channels)
            return None
        except (OSError, EOFError, ValueError) as error:
            raise self._lost(peer, f"its data connection ended: {error}") from error
        if wants is None:
            del self._renewing[peer]
            self._kept[peer] = renewing
            self.links[peer] = renewing.link
            self._due.add(renewing.link)
            if DATA in self._channels and renewing.link.wire is None:
                self._anew(peer, [DATA])
        return wants

    def _anew(self, peer: int, channels: Iterable[int]) -> None:
        """Make connections with `peer` afresh."""
        if peer > self._rank:
            self._listener.want(self._expectation, {(peer, channel) for channel in channels})
            self._probe_s, self._next_probe = _AGAIN_S, SYSTEM.monotonic()
            return
        for channel in channels:
            self._dial(peer, channel)

    def _watch(self, link: PeerConnection) -> Wants | None:
        """A peer that is connected may die or give up while others are still on their way."""
        try:
            if link.next_kind() != Frame.ABORT:
                return None  # it is ahead of us, or has left already: for the group to read
            _, _, body = link.next_frame(lambda tag, length: Waste(length))
        except BlockingIOError:
            return [(link.sock, selectors.EVENT_READ)]
        except (OSError, EOFError) as error:
            why = str(error) or "it closed the connection"
            raise self._lost(link.rank, f"left before the group was made: {why}") from error
        reason = decode_reason(body.decode(errors="replace"), link.rank)
        refusals = self._expectation.refusals()
        if refusals and isinstance(reason, CollectiveTimeout):  # who gave up may not know why nobody came
            reason = CollectiveTimeout(f"{reason}; here {refusals}", reason.ranks, reason.world_ranks)
        raise reason

    # --- those that come to us ---

    def _take_arrivals(self) -> None:
        with self._expectation.changed:
            arrived = dict(self._expectation.arrived)
            self._expectation.arrived.clear()
        for key, sock in arrived.items():
            self._connected(key, sock)

    def _connected(self, key: tuple[int, int], sock: socket.socket) -> None:
        peer, channel = key
        if channel == CONTROL:
            self.links[peer] = PeerConnection(self._endpoints[peer], peer, sock)
            self._due.add(self.links[peer])
            if (peer, DATA) in self._half:
                self.links[peer].wire = Wire(self._half.pop((peer, DATA)))
        elif peer in self.links:
            self.links[peer].wire = Wire(sock)
        else:
            self._half[key] = sock

    def _ask(self) -> None:
        """Now and then, ask whether those we wait for still listen."""
        now = SYSTEM.monotonic()
        if now < self._next_probe:
            return
        self._next_probe = now + self._probe_s
        self._probe_s = min(2 * self._probe_s, _LONGEST_PROBE_S)
        asked = set(self._probes.values())
        for peer in self._absent() - asked:
            probe = Probe(self._endpoints[peer], self._endpoints[self._rank])
            self._probes[probe] = peer
            self._due.add(probe)

    def _probe(self, probe: Probe) -> Wants | None:
        peer = self._probes[probe]
        try:
            event = probe.step()
        except OSError as error:
            self._refused[peer] += 1
            if self._refused[peer] >= _REFUSALS and peer in self._absent():
                what = f"cannot be reached: {error}; its process ended or its network is down"
                raise self._lost(peer, what) from error
            self._probe_s, self._next_probe = _AGAIN_S, SYSTEM.monotonic() + _AGAIN_S
        else:
            if event is not None:
                return [(probe.sock, event)]
            self._refused[peer] = 0
        del self._probes[probe]
        probe.sock.close()
        return None

    def _absent(self) -> set[int]:
        with self._expectation.changed:
            return {peer for peer, _ in self._expectation.wanted}

    # --- errors ---

    def _lost(self, peer: int, what: str) -> PeerLost:
        text = f"{self._name()}: rank {peer} ({self._endpoints[peer]}) {what}{self._older.get(peer, '')}"
        return PeerLost(text, [peer])

    def _late(self) -> CollectiveTimeout:
        missing = self._absent() | {dial.hello.target for dial in self._dials} | set(self._renewing)
        names = ", ".join(f"rank {peer}" for peer in sorted(missing))
        late = f"{names} did not join within {spell(self._deadline.seconds)}"
        advice = "check that the process was started, is at the same generation and can reach this host"
        parts = filter(None, [late, self._expectation.refusals(), advice])
        return CollectiveTimeout(f"{self._name()}: {'; '.join(parts)}", missing)

    def _name(self) -> str:
        mine = self._expectation
        at = f"rank {self._rank} of {len(self._endpoints)}"
        return f"connect, group {mine.group!r} generation {mine.generation}, {at}"
