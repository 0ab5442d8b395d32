"""One schedule: a job, its faults, and what became of it. Everything follows from the seed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from resilin.elastic.membership import queries
from resilin.elastic.membership.view import Config
from resilin.testing.simulation.invariants import Invariants
from resilin.testing.simulation.network import STORE, Network
from resilin.testing.simulation.nodes import Setting, SimNode
from resilin.testing.simulation.store import Server
from resilin.testing.simulation.universe import Broken, Universe
from resilin.testing.simulation.workers import GRACE_S, InPlace, Plain, Training

END_S = 190.0  # after the last fault the job has ended: every patience of an agent is shorter
TOP_UPS_S = (0.0, 8.0, 16.0)  # nodes that found no store have given up by then: others come
EVENTS = 400_000  # more than that in one schedule is a loop


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one schedule."""

    seed: int
    broken: str = ""
    """Which invariant does not hold, and when; empty: none."""
    outcome: str = ""
    generations: int = 0
    steps: int = 0
    faults: tuple[str, ...] = ()
    events: int = 0
    seconds: float = 0.0
    """Simulated."""
    ends: tuple[str, ...] = ()
    """Why each node that ended by itself with another exit code than 0 did so."""
    story: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FaultSet:
    """What may go wrong in a schedule."""

    faults: tuple[str, ...]
    seconds: float = 10.0
    """From then on nothing breaks any more."""
    longest_s: float = 6.0
    """Of a fault that passes."""
    blameless: bool = False
    """Nothing is ever wrong with a worker that runs: none is killed, and no state that one has is lost. In place."""
    divided: bool = False
    """See `Training`."""


def run(seed: int, *, trace: bool = False, kind: FaultSet | None = None) -> Result:
    """Play the schedule of `seed`. With `trace`, `Result.story` tells what happened. kind: None: ANY."""
    story: list[str] = []
    play = _Play(seed, story.append if trace else None, kind or ANY)
    broken = ""
    try:
        play.run()
    except Broken as error:  # what is not Broken is a fault of the simulation
        broken = f"at {play.universe.now:.4f} s: {error}"
    finally:
        play.close()
    invariants = play.invariants
    return Result(
        seed=seed,
        broken=broken,
        outcome=play.outcome,
        generations=len(invariants.generations),
        steps=len({entry.step for entry in invariants.entries}),
        faults=tuple(play.faults),
        events=play.universe.events,
        seconds=play.universe.now,
        ends=tuple(node.outcome.reason for node in play.nodes if node.outcome is not None and node.outcome.code),
        story=story,
    )


class _Play:
    def __init__(self, seed: int, trace: Callable[[str], None] | None, kind: FaultSet) -> None:
        self.kind = kind
        self.universe = Universe(seed, trace)
        self.random = random.Random(seed ^ 0x5EED)  # faults are chosen apart from delays
        loss = self.random.choice([0.0, 0.0, 0.02, 0.1])
        self.network = Network(self.universe, loss=0.0 if kind.blameless else loss)
        self.server = Server(self.universe)
        self.faults: list[str] = []
        self.nodes: list[SimNode] = []
        self.outcome = "no end"
        self._make_job()

    def _make_job(self) -> None:
        choose = self.random.choice
        count = choose([1, 2, 2, 3, 3, 4])
        in_place = self.random.random() < 0.75 or self.kind.blameless
        self.job = Config(
            min_nodes=self.random.randint(1, count) if not self.kind.blameless else 1,
            max_nodes=count + choose([0, 0, 1]),
            max_restarts=choose([0, 1, 3, 3, 10]) if not self.kind.blameless else 30,
        )
        training = Training(
            steps=self.random.randint(4, 16) if not self.kind.blameless else int(self.kind.seconds),
            samples=10,
            batch=4,
            shards=choose([2, 4, 8]),
            step_s=choose([0.1, 0.5, 1.0, 1.5]),
            timeout_s=2.0,
            divided=self.kind.divided,
        )
        self.invariants = Invariants(self.universe, self.job, training, in_place, blameless=self.kind.blameless)
        self.server.subscribe("\0", "\0", None, self.invariants.changed)
        self.setting = Setting(
            self.universe,
            self.network,
            self.server,
            training,
            self.job,
            self.invariants,
            program=InPlace if in_place else Plain,
            warm=choose([True, False]),
            lease_ttl_s=2.0,
            slots=choose([1, 1, 2]),
            grace_s=GRACE_S if self.kind.blameless else 2.0,
        )
        self.universe.say("job", f"{self.job}, {training}, in place: {in_place}, {count} nodes of {self.setting.slots}")
        for _ in range(count):
            self.universe.at(choose([0.0, self.random.uniform(0, 3)]), self._join)
        for _ in range(choose([0, 1, 2, 3, 4, 6, 8, 12])):
            self.universe.at(self.random.uniform(0, self.kind.seconds), self._fault)
        self.universe.at(self.kind.seconds, self._heal)

    # ---------------------------------------------------------------------------------- the course

    def run(self) -> None:
        universe = self.universe
        end = self.kind.seconds + END_S
        universe.run(self.kind.seconds + 0.001, lambda: universe.events > EVENTS)
        while universe.now < end and not self._over() and universe.events <= EVENTS:
            universe.run(min(end, universe.now + 0.5), lambda: universe.events > EVENTS)
        self._judge()

    def close(self) -> None:
        """Unwind every coroutine."""
        for node in self.nodes:
            node.crash(silently=True)

    def _over(self) -> bool:
        done = self.invariants.closed is not None or self.universe.now > self.kind.seconds + TOP_UPS_S[-1]
        return done and all(node.ended for node in self.nodes)

    def _judge(self) -> None:
        """Progress once faults have stopped, and a good end unless there is a reason for a bad one."""
        late = [node.name for node in self.nodes if not node.ended]
        if late:
            raise Broken(f"no end of {', '.join(late)}, {END_S:.0f} s after the last fault")
        internal = [node.outcome.reason for node in self.nodes if node.outcome is not None and node.outcome.code == 6]
        if internal:
            raise Broken(internal[0])
        closed = self.invariants.closed
        self.outcome = closed.reason if closed is not None else "not closed"
        if closed is not None and closed.outcome == "succeeded":
            self.invariants.finished()
        elif not self._excused():
            ends = {node.name: node.outcome.reason for node in self.nodes if node.outcome is not None}
            raise Broken(f"the job has not succeeded, though it could have: {self.outcome}; {ends}")

    def _excused(self) -> bool:
        """Whether the job had a reason not to succeed."""
        known = ("restarts are used", "interrupted: ", "times in a row: the fault is of that step")
        if any(text in self.outcome for text in known):
            return True
        ends = [node.outcome.reason for node in self.nodes if node.outcome is not None and not node.leaving]
        views = [node.agent.view for node in self.nodes if node.agent is not None]
        spent = any(view.generation and queries.restarts_used(view) >= self.job.max_restarts for view in views)
        if not self.invariants.closed and (spent or any(" failed" in reason for reason in ends)):
            return all("of at least" in reason for reason in ends)  # and no worker may be started any more
        staying = [node for node in self.nodes if not node.leaving and node.outcome is not None]
        return self.invariants.closed is None and not staying

    # ---------------------------------------------------------------------------------- faults

    def _join(self) -> SimNode | None:
        if self.invariants.closed is not None:  # it would begin another job of the same name
            return None
        node = SimNode(self.setting, f"n{len(self.nodes)}")
        self.nodes.append(node)
        self.universe.say(node.name, "starts")
        return node

    def _fault(self) -> None:
        live = [node for node in self.nodes if not node.ended]
        if not live:
            return
        node = self.random.choice(live)
        name = self.random.choice(self.kind.faults)
        told = getattr(self, f"_{name}")(node)
        if told:
            self.faults.append(name)
            self.universe.say("fault", f"{name}: {told}")

    def _heal(self) -> None:
        self.universe.say("fault", "none from now on")
        self.network.heal_all()
        if self.server.down:
            self.server.back(extend=True)
        for node in self.nodes:
            node.resume()
        for seconds in TOP_UPS_S:
            self.universe.after(seconds, self._top_up)

    def _top_up(self) -> None:
        """As many nodes with workers as the job needs."""
        staying = [node for node in self.nodes if not node.ended and (node.agent is None or not node.leaving)]
        for _ in range(sum(not _is_empty(node) for node in staying), self.job.min_nodes):
            if self.invariants.closed is None:
                self._join()

    def _for_a_while(self, undo: Callable[[], object], most: float = 0.0) -> str:
        most = most or self.kind.longest_s
        seconds = self.random.choice([self.random.uniform(0, 0.5), self.random.uniform(0, most)])
        self.universe.after(seconds, undo)
        return f"for {seconds:.2f} s"

    def _kill_worker(self, node: SimNode) -> str:
        workers = node.spawner.running
        if not workers:
            return ""
        worker = self.random.choice(workers)
        code = self.random.choice([-signal.SIGKILL, -signal.SIGKILL, -signal.SIGSEGV, 1])
        worker.end(code, silently=False)
        return f"{worker.process.name} with {code}"

    def _break_node(self, node: SimNode) -> str:
        """Its workers fail, and those that come after them: something is wrong with the machine."""
        times = self.random.randint(3, 6)

        def fail(left: int) -> None:
            for worker in node.spawner.running[:1]:
                worker.end(1, silently=False)
            if left > 1 and not node.ended and self.universe.now < self.kind.seconds:
                self.universe.after(self.random.uniform(0.3, 1.2), lambda: fail(left - 1))

        fail(times)
        return f"{node.name} {times} times"

    def _freeze_worker(self, node: SimNode) -> str:
        workers = node.spawner.running
        if not workers:
            return ""
        process = self.random.choice(workers).process
        process.pause()
        return f"{process.name} {self._for_a_while(process.resume, 20.0)}"

    def _kill_agent(self, node: SimNode) -> str:
        node.crash(silently=False)
        self._come_back()
        return node.name

    def _lose_host(self, node: SimNode) -> str:
        node.crash(silently=True)
        self._come_back()
        return node.name

    def _come_back(self) -> None:
        if self.random.random() < 0.6:
            self.universe.after(self.random.uniform(0, 4), self._join)

    def _pause_host(self, node: SimNode) -> str:
        node.pause()
        return f"{node.name} {self._for_a_while(node.resume)}"

    def _cut_from_store(self, node: SimNode) -> str:
        return self._cut(node.name, STORE)

    def _cut_from_peer(self, node: SimNode) -> str:
        others = [other for other in self.nodes if other is not node and not other.ended]
        return self._cut(node.name, self.random.choice(others).name) if others else ""

    def _cut_from_peers(self, node: SimNode) -> str:
        """Some nodes from all others."""
        live = [other.name for other in self.nodes if not other.ended]
        side = [name for name in live if name == node.name or self.random.random() < 0.4]
        ways = [way for a in side for b in live if b not in side for way in ((a, b), (b, a))]
        return f"{', '.join(side)} from all others {self._cut_ways(ways)}" if ways else ""

    def _cut(self, one: str, other: str) -> str:
        ways = self.random.choice([((one, other),), ((other, one),), ((one, other), (other, one))])
        return f"{' and '.join('->'.join(way) for way in ways)} {self._cut_ways(ways)}"

    def _isolate(self, node: SimNode) -> str:
        others = [STORE, *(other.name for other in self.nodes if other is not node and not other.ended)]
        ways = [way for other in others for way in ((node.name, other), (other, node.name))]
        return f"{node.name} {self._cut_ways(ways)}"

    def _cut_ways(self, ways: Sequence[tuple[str, str]]) -> str:
        def heal() -> None:
            for way in ways:
                self.network.heal(*way)

        for way in ways:
            self.network.cut(*way)
        return self._for_a_while(heal)

    def _store_away(self, node: SimNode) -> str:
        if self.server.down:
            return ""
        self.server.down = True
        extend = self.random.random() < 0.5
        return f"{self._for_a_while(lambda: self.server.back(extend))}, leases {'begin anew' if extend else 'go on'}"

    def _lose_store(self, node: SimNode) -> str:
        """It was one process's memory: another process takes its place, with nothing."""
        if self.server.down:
            return ""
        self.server.down = True

        def begin() -> None:
            if self.server.down:
                self.server.down = False
                self.server.lose()
                self.invariants.store_lost()

        return f"it is empty, and was away {self._for_a_while(begin)}"

    def _slow_network(self, node: SimNode) -> str:
        self.network.slow = self.random.choice([10.0, 100.0])
        return f"by {self.network.slow} {self._for_a_while(lambda: setattr(self.network, 'slow', 1.0))}"

    def _break_watch(self, node: SimNode) -> str:
        node.client.break_watch()
        return node.name

    def _add_node(self, node: SimNode) -> str:
        joined = self._join() if len(self.nodes) < 6 else None
        return joined.name if joined is not None else ""

    def _leave(self, node: SimNode) -> str:
        node.leave()
        return node.name

    def _ask_worker(self, node: SimNode) -> str:
        """SIGTERM to a worker alone."""
        workers = node.spawner.running
        if not workers:
            return ""
        worker = self.random.choice(workers)
        worker.kill(signal.SIGTERM)
        return worker.process.name

    def _kill_and_ask(self, node: SimNode) -> str:
        """Some workers are killed and all others asked to leave, or their nodes, within a moment: but for one node."""
        others = [each for each in self.nodes if not each.ended and each is not node]
        told = []
        for each in [node, *others]:
            for worker in list(each.spawner.running):
                wait = self.random.choice([0.0, self.random.uniform(0, 0.002), self.random.uniform(0, 0.1)])
                if self.random.random() < 0.5:
                    self.universe.after(wait, partial(worker.end, -signal.SIGKILL, False))
                    told.append(f"{worker.process.name} is killed")
                elif each is node or self.random.random() < 0.5:
                    self.universe.after(wait, partial(worker.kill, signal.SIGTERM))
                    told.append(f"{worker.process.name} is asked to leave")
                else:
                    self.universe.after(wait, each.leave)
                    told.append(f"{each.name} is asked to leave")
        return ", ".join(told)


def _is_empty(node: SimNode) -> bool:
    """Return whether all workers of a node were asked to leave, and have: it starts no others."""
    record = None if node.agent is None else node.agent.view.node(node.name)
    return record is not None and bool(record.slots) and all(slot.state == "left" for slot in record.slots)


FAULTS = (
    "kill_worker",
    "kill_worker",
    "break_node",
    "freeze_worker",
    "kill_agent",
    "lose_host",
    "pause_host",
    "cut_from_store",
    "cut_from_peer",
    "isolate",
    "store_away",
    "slow_network",
    "break_watch",
    "add_node",
    "leave",
    "ask_worker",
    "lose_store",
)
ANY = FaultSet(faults=FAULTS)
LEAVERS = FaultSet(
    faults=("kill_worker", "ask_worker", "kill_and_ask", "add_node", "leave"),
    seconds=60.0,
    longest_s=60.0,
    blameless=True,
)
"""Workers and nodes are asked to leave while others are killed: what one alone has is handed over."""
LINKS = FaultSet(
    faults=("cut_from_peer", "cut_from_peer", "cut_from_peer", "kill_worker", "kill_agent", "add_node"),
    seconds=60.0,
    longest_s=60.0,
    blameless=True,
)
"""Links between nodes are cut, for long, while the store is there for all; and workers are killed as ever."""
HALVES = FaultSet(
    faults=("cut_from_peer", "cut_from_peer", "cut_from_peers", "add_node"),
    seconds=60.0,
    longest_s=60.0,
    blameless=True,
    divided=True,
)
"""Links between nodes are cut, for long, and state is divided: who goes on has all of it, or all wait."""
KINDS = {"any": ANY, "links": LINKS, "leavers": LEAVERS, "halves": HALVES}
