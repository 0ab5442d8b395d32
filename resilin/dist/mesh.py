"""From agreed endpoints to authenticated connections between every pair of ranks, in one step.

Every rank dials the ranks below it and accepts those above it, so each pair has exactly one dialer. All dials are
started before the first is waited for: at the deadline the error names every rank that is missing, not just one.
"""

from __future__ import annotations

import selectors
import socket
from dataclasses import dataclass

from resilin._base.clock import Deadline
from resilin.dist.endpoint import CONTROL, DATA, Connections, Endpoint, Expectation, Hello, Listener, dial, finish_dial
from resilin.errors import CollectiveTimeout, DistNetworkError, HandshakeError, PeerLost, UsageError


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
    hellos: dict[tuple[int, int], Hello] = {}
    for peer in range(rank):
        for channel in topology.channels():
            hello = Hello(expectation.group, expectation.generation, rank, peer, channel)
            try:
                dialed[peer, channel] = dial(topology.endpoints[peer], me, hello, deadline)
            except TimeoutError:
                continue  # not there at all: reported with the others below
            except OSError as error:
                raise PeerLost(
                    f"{_name(expectation, rank, topology)}: rank {peer} ({topology.endpoints[peer]}) cannot be "
                    f"reached: {error}; its process ended or its network is down",
                    [peer],
                ) from error
            hellos[peer, channel] = hello
    waker, expectation.wake = socket.socketpair()
    with waker, expectation.wake, selectors.DefaultSelector() as selector:
        selector.register(waker, selectors.EVENT_READ)
        for key, sock in dialed.items():
            selector.register(sock, selectors.EVENT_READ, key)
        waiting = {(peer, channel) for peer in range(rank) for channel in topology.channels()}
        while waiting:
            with expectation.changed:
                if expectation.error is not None:
                    raise expectation.error
            ready = selector.select(deadline.left())
            if not ready and deadline.passed():
                raise _missing(expectation, topology, rank, {peer for peer, _ in waiting}, deadline)
            for event, _ in ready:
                if event.data is None:
                    continue
                _finish(dialed[event.data], hellos[event.data], expectation, topology, deadline)
                selector.unregister(event.fileobj)
                waiting.discard(event.data)
    with expectation.changed:
        expectation.wake = None


def _finish(
    sock: socket.socket, hello: Hello, expectation: Expectation, topology: Topology, deadline: Deadline
) -> None:
    try:
        finish_dial(sock, expectation.secret, hello, deadline)
    except HandshakeError as error:
        raise HandshakeError(f"{_name(expectation, hello.source, topology)}: {error}") from error
    except (OSError, DistNetworkError) as error:
        raise PeerLost(
            f"{_name(expectation, hello.source, topology)}: rank {hello.target} "
            f"({topology.endpoints[hello.target]}) closed the connection before the group was made",
            [hello.target],
        ) from error


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
    return CollectiveTimeout(
        f"{_name(expectation, rank, topology)}: {names} did not join within {deadline.seconds} s; check that the "
        "process was started, is at the same generation and can reach this host",
        missing,
    )


def _name(expectation: Expectation, rank: int, topology: Topology | None) -> str:
    of = f" of {len(topology.endpoints)}" if topology is not None else ""
    return f"connect, group {expectation.group!r} generation {expectation.generation}, rank {rank}{of}"
