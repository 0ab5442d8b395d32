"""A simulated network of named hosts: delay, loss, reordering of packets, cuts in one or both directions.

A `packet` is on its own: it may be lost, and may overtake. A `Stream` is a TCP connection: in order, nothing lost while
it is open; what is lost below it only arrives later, and during a cut nothing arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from resilin.testing.simulation.universe import Universe

STORE = "store"


class Network:
    """Who hears whom, and when. `messages` counts all that was sent."""

    def __init__(self, universe: Universe, loss: float = 0.0) -> None:
        self.universe = universe
        self.loss = loss
        self.slow = 1.0  # factor on all delays
        self.messages = 0
        self._cuts: set[tuple[str, str]] = set()
        self._streams: dict[tuple[str, str], list[Stream]] = {}  # that have something to deliver after a cut

    def delay(self) -> float:
        """How long one packet takes, in seconds; some take much longer."""
        chance = self.universe.random.random()
        return (0.0002 + 0.002 * chance if chance < 0.97 else 0.2 * (chance - 0.97) / 0.03) * self.slow

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from one to the other."""
        return (source, target) in self._cuts

    def cut(self, source: str, target: str) -> None:
        """From now on nothing gets from one to the other."""
        self._cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """End a cut; streams go on."""
        self._cuts.discard((source, target))
        for stream in self._streams.pop((source, target), ()):
            stream.go_on()

    def heal_all(self) -> None:
        """End every cut, loss and slowness."""
        self.loss, self.slow = 0.0, 1.0
        for source, target in sorted(self._cuts):
            self.heal(source, target)

    def packet(self, source: str, target: str, arrive: Callable[[], object]) -> None:
        """Call `arrive` at the target after a while, or never."""
        self.messages += 1
        if self.universe.random.random() >= self.loss:
            self.universe.after(self.delay(), partial(self._arrive, source, target, arrive))

    def _arrive(self, source: str, target: str, arrive: Callable[[], object]) -> None:
        if (source, target) not in self._cuts:
            arrive()

    def waits(self, stream: Stream) -> None:
        """Let `stream` go on when its way is free again."""
        waiting = self._streams.setdefault((stream.source, stream.target), [])
        if stream not in waiting:
            waiting.append(stream)


class Stream:
    """One direction of a connection."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self._network = network
        self._queue: deque[Callable[[], object]] = deque()
        self._last = 0.0
        self._open = True

    def send(self, arrive: Callable[[], object]) -> None:
        """Call `arrive` at the target, after all that was sent before."""
        network = self._network
        network.messages += 1
        again = 0.2 if network.loss and network.universe.random.random() < network.loss else 0.0  # sent once more
        self._queue.append(arrive)
        self._schedule(network.delay() + again)

    def close(self) -> None:
        """What is still under way never arrives."""
        self._open = False
        self._queue.clear()

    def go_on(self) -> None:
        """A cut has ended."""
        for _ in self._queue:
            self._schedule(self._network.delay())

    def _schedule(self, delay: float) -> None:
        universe = self._network.universe
        self._last = max(self._last, universe.now + delay)
        universe.at(self._last, self._deliver)

    def _deliver(self) -> None:
        if not self._open or not self._queue:
            return
        if self._network.is_cut(self.source, self.target):
            self._network.waits(self)
            return
        self._queue.popleft()()
