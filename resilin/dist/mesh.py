"""From agreed endpoints to authenticated connections between every pair of ranks, in one step.

Every rank dials the ranks below it and accepts those above it, so each pair has exactly one dialer. All dials run at
once and none blocks: an interrupt ends them at any point, and at the deadline the error names every rank that is
missing, not just one.
"""

from __future__ import annotations

import selectors
import socket
from dataclasses import dataclass

from resilin._base.clock import Deadline, spell
from resilin.dist.dial import AGAIN, Dial
from resilin.dist.endpoint import CONTROL, DATA, Connections, Endpoint, Expectation, Listener
from resilin.dist.hello import Hello
from resilin.errors import CollectiveTimeout, DistNetworkError, HandshakeError, PeerLost, UsageError

_AGAIN_S = 0.01


@dataclass(frozen=True)
class Topology:
    """What all ranks conclude from the same list of endpoints."""

    endpoints: tuple[Endpoint, ...]

    @property
    def shared_memory(self) -> bool:
        """Whether all ranks can use one shared-memory segment."""
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


def assemble(
    listener: Listener, topology: Topology, rank: int, *, group: str, generation: int, secret: str, deadline: Deadline
) -> Connections:
    """Connect `rank` with all others. The caller owns the sockets.

    Raises: CollectiveTimeout naming the ranks that did not come by the deadline; PeerLost when a peer's listener is
    gone; HandshakeError when a peer refuses us; whatever `Listener.interrupt` was given.
    """
    size = len(topology.endpoints)
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} is not in a group of {size} endpoints")
    wanted = {(peer, channel) for peer in range(rank + 1, size) for channel in topology.channels()}
    expectation = Expectation(group, generation, secret, rank, wanted)
    dialed: Connections = {}
    listener.expect(expectation)
    try:
        _dial_all(dialed, topology, rank, expectation, deadline)
        _wait_arrivals(expectation, deadline)
    except BaseException as error:
        expectation.fail(error)
        for sock in [*dialed.values(), *expectation.arrived.values()]:
            sock.close()
        raise
    finally:
        listener.forget(expectation)
    return {**dialed, **expectation.arrived}


def _dial_all(dialed: Connections, topology: Topology, rank: int, expectation: Expectation, deadline: Deadline) -> None:
    me = topology.endpoints[rank]
    dials: set[Dial] = set()
    for peer in range(rank):
        for channel in topology.channels():
            hello = Hello(expectation.group, expectation.generation, rank, peer, channel)
            dial = Dial(topology.endpoints[peer], me, hello, expectation.secret)
            dialed[peer, channel] = dial.sock
            dials.add(dial)
    waker, wake = socket.socketpair()
    with waker, wake, selectors.DefaultSelector() as selector:
        expectation.wake = wake
        selector.register(waker, selectors.EVENT_READ)
        due = set(dials)
        while dials:
            with expectation.changed:
                if expectation.error is not None:
                    raise expectation.error
            again = _step_all(due, dials, selector, expectation, topology)
            if not dials:
                break
            left = deadline.left()
            ready = selector.select((_AGAIN_S if left is None else min(left, _AGAIN_S)) if again else left)
            if deadline.passed():
                raise _missing(expectation, topology, rank, {dial.hello.target for dial in dials}, deadline)
            due = again | {event.data for event, _ in ready if event.data is not None}
        with expectation.changed:
            expectation.wake = None


def _step_all(
    due: set[Dial], dials: set[Dial], selector: selectors.BaseSelector, expectation: Expectation, topology: Topology
) -> set[Dial]:
    """Step the dials that are `due`; take those that are done out of `dials`; return those to step again soon."""
    again = set()
    for dial in due:
        event = _step(dial, expectation, topology)
        if dial.sock in selector.get_map():
            selector.unregister(dial.sock)
        if event is None:
            dials.discard(dial)
        elif event == AGAIN:
            again.add(dial)
        else:
            selector.register(dial.sock, event, dial)
    return again


def _step(dial: Dial, expectation: Expectation, topology: Topology) -> int | None:
    peer = dial.hello.target
    who = f"rank {peer} ({topology.endpoints[peer]})"
    try:
        return dial.step()
    except HandshakeError as error:
        raise HandshakeError(f"{_name(expectation, dial.hello.source, topology)}: {error}") from error
    except (OSError, DistNetworkError) as error:
        what = (
            f"{who} left before the group was made: {error}"
            if dial.connected
            else f"{who} cannot be reached: {error}; its process ended or its network is down"
        )
        raise PeerLost(f"{_name(expectation, dial.hello.source, topology)}: {what}", [peer]) from error


def _wait_arrivals(expectation: Expectation, deadline: Deadline) -> None:
    with expectation.changed:
        while expectation.wanted and expectation.error is None:
            if not expectation.changed.wait(deadline.left()) and deadline.passed():
                break
        if expectation.error is not None:
            raise expectation.error
        missing = {peer for peer, _ in expectation.wanted}
    if missing:
        raise _missing(expectation, None, expectation.rank, missing, deadline)


def _missing(
    expectation: Expectation, topology: Topology | None, rank: int, missing: set[int], deadline: Deadline
) -> CollectiveTimeout:
    with expectation.changed:
        missing = missing | {peer for peer, _ in expectation.wanted}
    names = ", ".join(f"rank {peer}" for peer in sorted(missing))
    late = f"{names} did not join within {spell(deadline.seconds)}"
    advice = "check that the process was started, is at the same generation and can reach this host"
    return CollectiveTimeout(
        f"{_name(expectation, rank, topology)}: {'; '.join(filter(None, [late, expectation.refusals(), advice]))}",
        missing,
    )


def _name(expectation: Expectation, rank: int, topology: Topology | None) -> str:
    of = f" of {len(topology.endpoints)}" if topology is not None else ""
    return f"connect, group {expectation.group!r} generation {expectation.generation}, rank {rank}{of}"
