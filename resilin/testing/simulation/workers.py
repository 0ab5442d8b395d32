"""Simulated worker processes: what a program under `elastic-run` says and does, without computing anything.

`InPlace` is a program with `@elastic.run`: the order of events is that of `elastic.loop`, and what decides there
decides here: `AgentMessages` (what the agent said), `choose` (who has the state), `ElasticSampler`, ledger entries.
`Plain` knows only its environment, and ends with an exception when a peer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from resilin.data.elastic_sampler import ElasticSampler, StepPlan
from resilin.elastic import control
from resilin.elastic.ledger import Entry
from resilin.elastic.worker import source_election
from resilin.elastic.worker.agent_messages import AgentMessages, Interruption, Leaving
from resilin.errors import CollectiveTimeout, ElasticError, GroupAborted, PeerLost, StateError, WorldChanged
from resilin.testing.simulation.network import Network, Stream
from resilin.testing.simulation.universe import Process

CONNECT_S = 20.0
GRACE_S = 20.0  # of a worker that is asked to leave, where nothing is ever wrong with one
Lineage = tuple[Any, int, int]  # (before, step, generation it was applied in): equal lineages are equal parameters
RECOVERABLE = (WorldChanged, PeerLost, GroupAborted)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the program does."""

    steps: int
    samples: int
    batch: int
    shards: int
    step_s: float
    timeout_s: float
    """How long a collective waits for a rank that does not answer."""
    divided: bool = False
    """Whether each rank has a part of the state, and a copy of that of the rank half of the world before it."""


class Witness(Protocol):
    """Who checks what workers do."""

    def equal(
        self,
        beginning: str,
        generation: int,
        rank: int,
        step: int,
        lineage: Lineage | None,
        reports: list[source_election.Report],
    ) -> None:
        """All ranks of `generation` start from `step` with `lineage`; `reports`: what they said of themselves.

        beginning: the origin of the generation, as also below.
        """

    def reduced(self, generation: int, plan: StepPlan, parts: Mapping[int, Any], size: int) -> None:
        """A collective of `generation` has returned `parts` by rank, in a world of `size`."""

    def committed(self, beginning: str, entry: Entry, lineage: Lineage) -> None:
        """A rank applied a step."""

    def held(self, generation: int, step: int, elsewhere: Mapping[str, int]) -> None:
        """`generation` starts from `step`; `elsewhere`: the last steps of all workers that live and have the state."""

    def left(self, worker: str, alone: bool) -> None:
        """A worker has ended as it was asked to, long before its time was out; `alone`: nobody who stays has the state
        that it had, and somebody there has none."""

    def killed(self, worker: str) -> None:
        """An agent has killed its worker."""

    def failed(self, node: str, step: int) -> None:
        """A worker on `node` has failed by its own doing while it worked on `step`."""


class Peers:
    """Finds the process behind an endpoint, and carries messages between workers."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._by_endpoint: dict[str, SimWorker] = {}
        self._unclaimed: dict[str, list[tuple[SimWorker, tuple[Any, ...]]]] = {}  # sent before anybody was there
        self._streams: dict[tuple[str, str], Stream] = {}

    def add(self, worker: SimWorker) -> None:
        """From now on `worker` can be reached."""
        self._by_endpoint[worker.endpoint] = worker
        for source, message in self._unclaimed.pop(worker.endpoint, ()):
            self.send(source, worker.endpoint, message)

    def send(self, source: SimWorker, endpoint: str, message: tuple[Any, ...]) -> None:
        """Deliver `message` to the worker at `endpoint`, after what `source` sent it before."""
        target = self._by_endpoint.get(endpoint)
        if target is None:
            self._unclaimed.setdefault(endpoint, []).append((source, message))
            return
        key = (source.endpoint, endpoint)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(self.network, source.host, target.host)
        stream.send(lambda: self._arrive(source, target, message))

    def steps(self) -> dict[str, int]:
        """The last committed step of every worker that lives and has the job's state, by name."""
        living = [w for w in self._by_endpoint.values() if not w.process.dead and isinstance(w, InPlace) and w.settled]
        return {worker.process.name: worker.step for worker in living}

    def needs(self, leaver: SimWorker) -> bool:
        """Whether others that stay are there, and nobody else has the state that `leaver` has."""
        workers = [w for w in self._by_endpoint.values() if isinstance(w, InPlace) and w is not leaver]
        living = [w for w in workers if not w.process.dead]
        return any(w.asked_at is None for w in living) and not any(w.settled for w in living)

    def connect(self, host: str, endpoint: str, answered: Callable[[bool], object]) -> None:
        """Try to connect from `host`, as the kernels do: a worker that is stopped takes connections, too."""
        target = self._by_endpoint.get(endpoint)
        if target is None or target.host_down:
            return
        back = Stream(self.network, target.host, host)

        def arrived() -> None:
            back.send(lambda: answered(not target.process.dead))

        Stream(self.network, host, target.host).send(arrived)

    def _arrive(self, source: SimWorker, target: SimWorker, message: tuple[Any, ...]) -> None:
        if not target.process.dead:
            target.process.call_soon(target.receive, message)
        elif not target.host_down and message[0] != "closed":  # nobody listens there any more
            self.network.packet(target.host, source.host, lambda: source.lose(message, "connection refused"))


class Group:
    """One worker's end of a process group: messages of its own generation, by round and rank."""

    def __init__(self, worker: SimWorker, generation: int, rank: int, endpoints: tuple[str, ...]) -> None:
        self.generation = generation
        self.rank = rank
        self.endpoints = endpoints
        self.formed = False
        self._worker = worker
        self._round = 0
        self._got: dict[int, dict[int, Any]] = {}
        self._gone: dict[int, str] = {}
        self._error: BaseException | None = None
        self._wake: asyncio.Future[None] | None = None

    def abort(self, error: BaseException) -> None:
        """Whoever waits raises `error`."""
        self._error = self._error or error
        self._awake()

    def take(self, number: int, rank: int, value: Any) -> None:
        """A message of a peer."""
        self._got.setdefault(number, {})[rank] = value
        self._awake()

    def lose(self, rank: int, why: str) -> None:
        """The connection to a peer has ended."""
        self._gone.setdefault(rank, why)
        self._awake()

    async def exchange(self, value: Any, timeout_s: float) -> dict[int, Any]:
        """Give `value` to all, get one from each. PeerLost, CollectiveTimeout, or what the group was aborted with."""
        number, self._round = self._round, self._round + 1
        source = self._worker.endpoint
        for rank, endpoint in enumerate(self.endpoints):
            if rank != self.rank:
                self._worker.say_to(endpoint, ("value", self.generation, number, self.rank, value, rank, source))
        mine = self._got.setdefault(number, {})
        mine[self.rank] = value
        end = self._worker.process.time() + timeout_s
        while len(mine) < len(self.endpoints):
            if self._error is not None:
                raise self._error
            lost = {rank for rank in self._gone if rank not in mine}
            if lost:
                raise PeerLost(f"ranks {sorted(lost)} are gone ({self._gone[min(lost)]})", frozenset(lost))
            if not await self._wait(end):
                silent = frozenset(range(len(self.endpoints))) - mine.keys()
                raise _timeout(silent)
        if self._error is not None:
            raise self._error
        return self._got.pop(number)

    def close(self, why: str) -> None:
        """Leave: peers hear it."""
        for rank, endpoint in enumerate(self.endpoints):
            if rank != self.rank:
                self._worker.say_to(endpoint, ("closed", self.generation, self.rank, why))

    async def _wait(self, until: float) -> bool:
        process = self._worker.process
        if process.time() >= until:
            return False
        self._wake = process.create_future()
        timer = process.call_at(until, self._awake)
        await self._wake
        timer.cancel()
        return True

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def _timeout(silent: frozenset[int]) -> CollectiveTimeout:
    return CollectiveTimeout(f"ranks {sorted(silent)} did not answer", silent)


class SimWorker:
    """A process that is a worker. `say` carries messages to its agent, `exit` ends it with a code."""

    def __init__(
        self,
        process: Process,
        peers: Peers,
        host: str,
        env: Mapping[str, str],
        training: Training,
        witness: Witness,
        say: Callable[[control.Message], None],
        exit: Callable[[int], None],
    ) -> None:
        self.process = process
        self.host = host
        self.host_down = False
        self.asked_at: float | None = None  # when it was asked to leave, or its node
        self.env = env
        self.endpoint = self.own_endpoint()
        self.training = training
        self.witness = witness
        self.group: Group | None = None
        self.beginning = ""  # the origin of the newest generation that its agent gave it
        self._early: list[tuple[Any, ...]] = []  # messages of generations that this worker has not entered yet
        self._newest = 0  # generations below are over here
        self._peers = peers
        self._say = say
        self._exit = exit
        peers.add(self)

    def own_endpoint(self) -> str:
        """Where peers reach it."""
        return self.process.name

    # ------------------------------------------------------------------------------- messages

    def say_to(self, endpoint: str, message: tuple[Any, ...]) -> None:
        """To another worker."""
        self._peers.send(self, endpoint, message)

    def receive(self, message: tuple[Any, ...]) -> None:
        """From another worker. Traffic of an old generation is refused, of a later one kept."""
        generation = message[1]
        if self.accepts(generation):
            if self.group is None or self.group.generation < generation:
                self._early.append(message)
            else:
                self._deliver(self.group, message)
        elif message[0] == "value":
            self.say_to(message[6], ("closed", generation, message[5], "it refuses an old generation"))

    def accepts(self, generation: int) -> bool:
        """Whether messages of `generation` are heard."""
        return generation >= self._newest and (self.group is None or generation >= self.group.generation)

    def lose(self, message: tuple[Any, ...], why: str) -> None:
        """A message of this worker found nobody."""
        if self.group is not None and self.group.generation == message[1] and not self.process.dead:
            self.process.call_soon(self.group.lose, message[5], why)

    def enter(self, generation: int, rank: int, endpoints: tuple[str, ...]) -> Group:
        """Begin to form the group of a generation."""
        self.tell(f"enters generation {generation} as rank {rank} of {len(endpoints)}")
        group = self.group = Group(self, generation, rank, endpoints)
        self._newest = generation
        early, self._early = self._early, []
        for message in early:
            if message[1] == generation:
                self._deliver(group, message)
            elif message[1] > generation:
                self._early.append(message)
        return group

    def tell(self, text: str) -> None:
        """For the trace."""
        self.process.universe.say(self.process.name, text)

    def leave_group(self, why: str) -> None:
        """Close the group, if there is one."""
        group, self.group = self.group, None
        if group is not None:
            self.tell(f"leaves generation {group.generation}: {why}")
            self._newest = group.generation + 1
            group.close(why)

    @staticmethod
    def _deliver(group: Group, message: tuple[Any, ...]) -> None:
        if message[0] == "closed":
            group.lose(message[2], message[3])
        else:
            group.take(message[2], message[3], message[4])

    # ------------------------------------------------------------------------------- life

    def heed(self, message: control.Message) -> None:
        """From the agent."""

    def signal(self, number: int) -> None:
        """Any signal but SIGKILL and SIGSTOP."""
        self._exit(-number)

    def die(self, silently: bool) -> None:
        """The process has ended: its connections are closed by the kernel, unless its host is down."""
        self.host_down = silently
        if not silently:
            self.leave_group("it died")
        self.group = None

    async def main(self) -> int:
        """The program; returns its exit code."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Work for a while."""
        done = self.process.create_future()
        self.process.call_later(seconds, _set, done)
        await done


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class InPlace(SimWorker):
    """A program with `@elastic.run` and a `State` with an `ElasticSampler`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        what = self.training
        self.heard = AgentMessages()
        self.sampler = ElasticSampler(what.samples, what.batch, what.shards, shuffle=False)
        self.lineage: Lineage | None = None
        self.settled = False
        self.returned = False  # from its function, in a world that may have ended before all were done
        self._changed: asyncio.Future[None] | None = None

    @property
    def step(self) -> int:
        """Committed steps."""
        return self.sampler.step

    def heed(self, message: control.Message) -> None:
        self._interrupt(self.heard.heed(message))
        if self._changed is not None:
            _set(self._changed)

    def signal(self, number: int) -> None:
        """SIGTERM: leave at a commit, when the agent says so."""
        if self.asked_at is None:
            self.asked_at = self.process.time()
        self.heard.ask("SIGTERM")
        self._say(control.Leaving(reason="SIGTERM"))

    def _interrupt(self, what: Interruption | None) -> None:
        group = self.group
        if what is None or group is None:
            return
        if what.group if group.formed else group.generation <= what.generation:
            group.abort(what.error)

    async def main(self) -> int:
        what = self.training
        hello = control.Hello(pid=1, endpoint=self.endpoint, limit=what.shards, timeout_s=what.timeout_s)
        self._say(hello)
        generation = 0
        try:
            while True:
                if generation:
                    self._say(control.Waiting(generation=generation))
                    if (reason := self.heard.waits()) is not None:
                        self._say(control.Leaving(reason=reason))
                while (offer := self.heard.offer(generation, self.returned)) is None:
                    if self.returned and self.heard.finish:
                        return 0
                    await self._wait()
                generation, self.returned = offer.number, False
                self._say(control.Entering(generation=generation))
                try:
                    await self._generation(offer)
                    return 0
                except RECOVERABLE as error:
                    if not isinstance(error, WorldChanged):
                        self._say(control.Interrupted(generation=generation, reason=str(error)))
                    self.leave_group(str(error))
                except CollectiveTimeout as error:
                    others = tuple(sorted(error.world_ranks - {offer.rank}))
                    if others:
                        self._say(control.Stuck(generation=generation, ranks=others, reason=str(error)))
                    self.leave_group(str(error))
        except Leaving as leaving:
            if self.settled and self.step < what.steps:
                self.witness.left(self.process.name, self._peers.needs(self))
            self.leave_group("it leaves")
            self._say(control.Left(reason=leaving.reason))
            return 0
        except (StateError, ElasticError) as error:
            self._say(control.Failed(report={"type": type(error).__name__, "message": str(error), "step": self.step}))
            self.leave_group(str(error))
            return 1

    async def _wait(self) -> None:
        self._changed = self.process.create_future()
        await self._changed

    async def _generation(self, offer: control.World) -> None:
        group = self.enter(offer.number, offer.rank, offer.endpoints)
        await group.exchange("hello", CONNECT_S)
        group.formed = True
        self.heard.joined(offer.number)
        await self._make_equal(group)
        size = offer.world_size
        parts = {offer.rank, (offer.rank - size // 2) % size} if self.training.divided else set[int]()
        told = tuple(sorted(parts)), size if parts else 0
        self._say(control.Progress(generation=offer.number, step=self.step + 1, parts=told[0], parts_of=told[1]))
        await self._train(group, offer)
        self.returned = True
        self._say(control.Done(generation=offer.number))
        while not self.heard.at_end():
            await self._wait()
        self.leave_group("done")

    async def _make_equal(self, group: Group) -> None:
        """As `sync.make_equal`."""
        what = self.training
        digests = {"sampler": repr(self.sampler.state_dict()).encode()}
        applied_in = self.lineage[2] if self.lineage is not None else 0
        report = source_election.Report(
            settled=self.settled, step=self.step, intact=True, digests=digests, generation=applied_in
        )
        told = await group.exchange((report, self.lineage, self.sampler.state_dict()), what.timeout_s)
        reports = [told[rank][0] for rank in range(len(told))]
        choice = source_election.choose(reports)
        if choice.receivers or not choice.agreed:
            await group.exchange("state", what.timeout_s)  # a source that dies half-way leaves receivers as they were
            if group.rank in choice.receivers:
                _, self.lineage, state = told[choice.sources[0]]
                self.sampler.load_state_dict(state)
        self.settled = True
        self.sampler.bind(group.rank, len(group.endpoints))
        self.witness.equal(self.beginning, group.generation, group.rank, self.step, self.lineage, reports)
        self.witness.held(group.generation, self.step, self._peers.steps())

    async def _train(self, group: Group, offer: control.World) -> None:
        what = self.training
        while self.step < what.steps:
            for plan in self.sampler.steps():
                await self.sleep(what.step_s)
                mine = (offer.number, plan.position, [shard.number for shard in plan.shards])
                parts = await group.exchange(mine, what.timeout_s)
                self.witness.reduced(offer.number, plan, parts, offer.world_size)
                self.sampler.advance(plan)
                after = 0 if self.lineage is None else self.lineage[2]
                self.lineage = (self.lineage, plan.step, offer.number)
                entry = Entry(plan.epoch, plan.step, plan.position, plan.size, offer.number, offer.rank, after)
                self.witness.committed(self.beginning, entry, self.lineage)
                self.tell(f"committed step {self.step}")
                self._say(control.Committed(generation=offer.number, step=self.step))
                while self.heard.unanswered():
                    await self._wait()
                self.heard.at_commit(self.step)
                if self.step >= what.steps:
                    break


class Plain(SimWorker):
    """A program written for PyTorch: it meets its peers by the environment, and ends when one is lost."""

    def own_endpoint(self) -> str:
        return f"{self.env['RESILIN_GENERATION']}/{self.env['RANK']}"

    async def main(self) -> int:
        what, env = self.training, self.env
        generation, rank, size = int(env["RESILIN_GENERATION"]), int(env["RANK"]), int(env["WORLD_SIZE"])
        group = self.enter(generation, rank, tuple(f"{generation}/{r}" for r in range(size)))
        try:
            await group.exchange("hello", CONNECT_S)
            group.formed = True
            for _ in range(what.steps):
                await self.sleep(what.step_s)
                await group.exchange("gradient", what.timeout_s)
        except (PeerLost, CollectiveTimeout) as error:
            self._say(control.Failed(report={"type": type(error).__name__, "message": str(error)}))
            self.leave_group(str(error))
            return 1
        self.leave_group("done")
        return 0
