"""What a change of the world costs in a job of many nodes: messages, bytes, time.

A few nodes are real agents. The others are what a node is for the store: a record, a watch, and, when all workers are
started again, the writes that a real agent makes then (`Cost.follower_writes` says how many that are).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from resilin.elastic import control, records
from resilin.elastic.membership.view import Config
from resilin.elastic.records import Node, Slot
from resilin.store.base import Event, Op, prefix_range
from resilin.testing.simulation.invariants import Invariants
from resilin.testing.simulation.network import Network
from resilin.testing.simulation.nodes import Setting, SimNode
from resilin.testing.simulation.store import Server
from resilin.testing.simulation.universe import Broken, Universe
from resilin.testing.simulation.workers import SimWorker, Training

REAL = 6  # the leader, two that go, and followers to measure
PATIENCE_S = 60.0
SETTLED_S = 2.0
_KEYS = records.Keys("job")


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


class Runner(SimWorker):
    """A worker that knows only its environment and runs until it is ended."""

    world = 0

    async def main(self) -> int:
        self.world = int(self.env["RESILIN_GENERATION"])
        code: int = await self.process.create_future()
        return code


class Crowd:
    """A job of `count` nodes that has formed. `change` measures what follows from a cause.

    in_place: whether its program recovers in place; else every change starts all workers again.
    """

    def __init__(self, count: int, seed: int = 0, in_place: bool = True) -> None:
        self.count = count
        self.in_place = in_place
        self.universe = Universe(seed)
        self.server = Server(self.universe)
        job = Config(min_nodes=1, max_nodes=2 * count, max_restarts=3)
        training = Training(steps=1, samples=1, batch=1, shards=2 * count, step_s=1.0, timeout_s=10.0)
        witness = Invariants(self.universe, job, training, in_place)
        self.server.subscribe("\0", "\0", None, witness.changed)
        network = Network(self.universe)
        self._setting = Setting(
            self.universe,
            network,
            self.server,
            training,
            job,
            witness,
            program=Follower if in_place else Runner,
            warm=False,
            lease_ttl_s=2.0,
            slots=1,
        )
        self._witness = witness
        self._batches: list[tuple[int, int]] = []  # watchers and bytes of each revision
        self._others: dict[str, Node] = {}
        self.nodes = [self.join() for _ in range(min(REAL, count))]
        self._until(self._all_in_world)
        self._add_others(count - len(self.nodes))
        self.server.subscribe(*prefix_range(_KEYS.job), None, self._count)
        self.server.subscribe(*prefix_range(_KEYS.job), None, self._follow_suit)
        self._until(self._all_in_world)
        self.universe.run(self.universe.now + SETTLED_S, lambda: False)

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
        self.universe.run(self.universe.now + SETTLED_S, lambda: False)  # what still follows is counted, too
        staying = [node for node in self.nodes if not node.ended and node is not joined]
        quiet = [self._version(node) - before[node.name] for node in staying[1:]]
        return Cost(
            change=name,
            nodes=self.count,
            writes=len(self._batches),
            follower_writes=sum(quiet),
            messages=sum(1 + watchers for watchers, _ in self._batches),
            sent_bytes=sum(watchers * size for watchers, size in self._batches),
            simulated_s=took,
            cpu_s=cpu / len(staying),
        )

    def close(self) -> None:
        """End all processes."""
        for node in self.nodes:
            node.crash(silently=True)

    def _add_others(self, count: int) -> None:
        slot = Slot(index=0, incarnation=1, state="ready", endpoint="elsewhere", pid=1)
        slot = slot if self.in_place else Slot(index=0)
        for number in range(count):
            self._others[f"other{number}"] = Node(
                id=f"other{number}", host="h", address="h", master_port=1, slots=(slot,)
            )
        if count:
            self.server.txn((), [self._put(node) for node in self._others.values()])

    def _put(self, node: Node) -> Op:
        return Op("put", f"{_KEYS.nodes}{node.id}", value=records.to_bytes(node))

    def _count(self, events: Sequence[Event]) -> None:
        told_all = any(event.kv.key.startswith(_KEYS.world) for event in events)
        size = sum(len(event.kv.key) + len(event.kv.value) for event in events)
        self._batches.append((self.count if told_all else 1, size))

    def _follow_suit(self, events: Sequence[Event]) -> None:
        """The others do what real nodes do: end their workers when those do, start them in a new generation."""
        for event in events if not self.in_place else ():
            if event.kind == "put" and event.kv.key == _KEYS.generation:
                for member in records.generation(event.kv.key, event.kv.value).members:
                    self._become(member.node, Slot(index=0, incarnation=member.incarnation, state="running", pid=1))
            elif event.kind == "put" and event.kv.key.startswith(f"{_KEYS.nodes}real"):
                slot = records.node(event.kv.key, event.kv.value).slots[0]
                if slot.state == "idle" and slot.stopped:
                    for name, node in self._others.items():
                        if node.slots[0].state == "running":
                            self._become(name, replace(node.slots[0], state="idle", stopped=node.slots[0].incarnation))

    def _become(self, name: str, slot: Slot) -> None:
        if name in self._others:
            node = self._others[name] = replace(self._others[name], slots=(slot,))
            delay = self._setting.peers.network.delay()
            self.universe.after(delay, partial(self.server.txn, (), [self._put(node)]))

    def _version(self, node: SimNode) -> int:
        found = self.server.txn((), [Op.get(f"{_KEYS.nodes}{node.name}")]).results[0].kvs
        return found[0].version if found else 0

    def _all_in_world(self) -> bool:
        known = self._witness.generations
        if not known:
            return False
        workers = [p.sim for node in self.nodes if not node.ended for p in node.spawner.running]
        here = {node.name for node in self.nodes if not node.ended}
        members = {member.node for member in known[-1].members}
        settled = all(isinstance(sim, (Follower, Runner)) and sim.world == known[-1].number for sim in workers)
        others = sum(name in members for name in self._others)
        settled = settled and all(one.slots[0].alive for one in self._others.values())
        return (
            settled
            and members - here == {name for name in members if name in self._others}
            and others == len(self._others)
            and (here - {n.name for n in self.nodes if n.leaving} <= members)
        )

    def _until(self, condition: Callable[[], bool]) -> None:
        end = self.universe.now + PATIENCE_S
        while not condition():
            if self.universe.now >= end:
                raise Broken(f"{self.count} nodes: nothing changed within {PATIENCE_S:.0f} s")
            self.universe.run(self.universe.now + 0.001, lambda: False)
