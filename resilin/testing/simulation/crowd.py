"""What a change of the world costs in a job of many nodes: messages, bytes, time.

A few nodes are real agents. The others are what a node without anything to say is for the store: a record and a watch;
they are counted, and what the agent of such a node writes during a change is measured on the real ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilin.elastic import control, records
from resilin.elastic.records import Node, Slot
from resilin.elastic.view import Config
from resilin.store.base import Event, Op, prefix_range
from resilin.testing.simulation.invariants import Invariants
from resilin.testing.simulation.network import Network
from resilin.testing.simulation.nodes import Setting, SimNode
from resilin.testing.simulation.store import Server
from resilin.testing.simulation.universe import Broken, Universe
from resilin.testing.simulation.workers import SimWorker, Training

REAL = 6  # the leader, two that go, and followers to measure
PATIENCE_S = 60.0
_PREFIX = "/resilin/job/"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one change, from its cause until every real worker has its new world."""

    change: str
    nodes: int
    writes: int
    """To the store, by all."""
    follower_writes: int
    """By nodes that the change is not about and that do not lead: each would be told to all."""
    messages: int
    """Events to watchers, one for each watcher and revision, and writes."""
    sent_bytes: int
    """In events to watchers."""
    simulated_s: float
    cpu_s: float
    """Of one real agent, with its share of the simulation."""


class Follower(SimWorker):
    """A worker that takes every world as it comes and never ends by itself."""

    world = 0

    async def main(self) -> int:
        self._say(control.Hello(pid=1, endpoint=self.endpoint))
        self._left = self.process.create_future()
        code: int = await self._left
        return code

    def heed(self, message: control.Message) -> None:
        if isinstance(message, control.World):
            self.world = message.number
            self._say(control.Progress(generation=message.number, step=1))
        elif isinstance(message, control.Leave) and not self._left.done():
            self._say(control.Left(reason=message.reason))
            self._left.set_result(0)


class Crowd:
    """A job of `count` nodes that has formed. `change` measures what follows from a cause."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self.universe = Universe(seed)
        self.server = Server(self.universe)
        job = Config(min_nodes=1, max_nodes=2 * count, max_restarts=3)
        training = Training(steps=1, samples=1, batch=1, shards=2 * count, step_s=1.0, timeout_s=10.0)
        witness = Invariants(self.universe, job, training, in_place=True)
        self.server.subscribe("\0", "\0", None, witness.changed)
        network = Network(self.universe)
        self._setting = Setting(
            self.universe,
            network,
            self.server,
            training,
            job,
            witness,
            program=Follower,
            warm=False,
            lease_ttl_s=2.0,
            slots=1,
        )
        self._witness = witness
        self._batches: list[int] = []  # bytes of each revision
        self.nodes = [self.join() for _ in range(min(REAL, count))]
        self._until(self._all_in_world)
        self._add_others(count - len(self.nodes))
        self._until(self._all_in_world)
        self.server.subscribe(*prefix_range(_PREFIX), None, self._count)

    def join(self) -> SimNode:
        """Start a real node."""
        node = SimNode(self._setting, f"real{self.universe.random.getrandbits(40):x}")
        self.universe.say(node.name, "starts")
        return node

    def change(self, name: str, cause: Callable[[], SimNode | None]) -> Cost:
        """What follows from `cause`, which returns the node that joins, if it is that."""
        self._batches.clear()
        before = {node.name: self._version(node) for node in self.nodes}
        number = len(self._witness.generations)
        begin, cpu = self.universe.now, time.process_time()
        joined = cause()
        self.nodes += [joined] if joined is not None else []
        self._until(lambda: len(self._witness.generations) > number and self._all_in_world())
        took, cpu = self.universe.now - begin, time.process_time() - cpu
        self.universe.run(self.universe.now + 2.0, lambda: False)  # what still follows is counted, too
        staying = [node for node in self.nodes if not node.ended and node is not joined]
        quiet = [self._version(node) - before[node.name] for node in staying[1:]]
        watchers = self.count
        return Cost(
            change=name,
            nodes=self.count,
            writes=len(self._batches),
            follower_writes=sum(quiet),
            messages=len(self._batches) * (watchers + 1),
            sent_bytes=sum(self._batches) * watchers,
            simulated_s=took,
            cpu_s=cpu / len(staying),
        )

    def close(self) -> None:
        """End all processes."""
        for node in self.nodes:
            node.crash(silently=True)

    def _add_others(self, count: int) -> None:
        slot = Slot(index=0, incarnation=1, state="ready", endpoint="elsewhere", pid=1)
        puts = []
        for number in range(count):
            node = Node(id=f"other{number}", host="h", address="h", master_port=1, slots=(slot,))
            puts.append(Op("put", f"{_PREFIX}nodes/{node.id}", value=records.to_bytes(node)))
        if puts:
            self.server.txn((), puts)

    def _count(self, events: Sequence[Event]) -> None:
        self._batches.append(sum(len(event.kv.key) + len(event.kv.value) for event in events))

    def _version(self, node: SimNode) -> int:
        found = self.server.txn((), [Op.get(f"{_PREFIX}nodes/{node.name}")]).results[0].kvs
        return found[0].version if found else 0

    def _all_in_world(self) -> bool:
        known = self._witness.generations
        if not known:
            return False
        workers = [p.sim for node in self.nodes if not node.ended for p in node.spawner.running]
        here = {node.name for node in self.nodes if not node.ended}
        members = {member.node for member in known[-1].members}
        settled = all(isinstance(sim, Follower) and sim.world == known[-1].number for sim in workers)
        others = sum(name.startswith("other") for name in members)
        wanted = self.count - REAL if self.server.txn((), [Op.get(f"{_PREFIX}nodes/other0")]).results[0].kvs else 0
        return (
            settled
            and members - here == {m for m in members if m.startswith("other")}
            and others >= wanted
            and (here - {n.name for n in self.nodes if n.leaving} <= members)
        )

    def _until(self, condition: Callable[[], bool]) -> None:
        end = self.universe.now + PATIENCE_S
        while not condition():
            if self.universe.now >= end:
                raise Broken(f"{self.count} nodes: nothing changed within {PATIENCE_S:.0f} s")
            self.universe.run(self.universe.now + 0.001, lambda: False)
