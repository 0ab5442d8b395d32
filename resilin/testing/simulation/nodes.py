"""A simulated node: the real `Agent` in a simulated process, and what stands in for its spawner and its files."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from resilin.elastic import failure
from resilin.elastic.agent.agent import Agent
from resilin.elastic.agent.config import AgentConfig, Outcome
from resilin.elastic.agent.process_supervisor import Worker
from resilin.elastic.agent.reachability_probe import TRY_S
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.streams import Plan
from resilin.elastic.control import Committed, Message, Progress, World
from resilin.elastic.membership.node_quarantine import Rules
from resilin.elastic.membership.view import Config
from resilin.elastic.spawn.environment import JobEnvironment
from resilin.elastic.spawn.program import Program
from resilin.elastic.spawn.spawner_client import Command
from resilin.errors import ResilinError
from resilin.testing.simulation.network import Network
from resilin.testing.simulation.store import Client, Server
from resilin.testing.simulation.universe import HostClock, Process, Universe
from resilin.testing.simulation.workers import Peers, SimWorker, Training, Witness

_NOWHERE = Path("/nonexistent")
EXCLUSION = Rules(failures=3, within_s=8.0, first_s=3.0, longest_s=12.0)  # short, as everything here
PIPE_S = 0.0001  # a message between an agent and its worker


class _NoStreams:
    """What a worker prints goes nowhere."""

    stderr_shown, stderr_kept, open = True, False, False
    error_file = folder = _NOWHERE

    def fd(self, name: str) -> None:
        return None

    def tail(self) -> Sequence[str]:
        return ()

    def started(self) -> None:
        pass

    def ended(self) -> None:
        pass

    def close(self) -> None:
        pass


class _NoPlan(Plan):
    def open(self, *args: Any) -> Any:
        return _NoStreams()


@cache
def _plan() -> Plan:
    """One for all nodes: each has a console, with descriptors of its own."""
    return _NoPlan(base=_NOWHERE, keep=False)


class _Lines:
    """What the agent says goes to the trace."""

    def __init__(self, universe: Universe, who: str) -> None:
        self._universe = universe
        self._who = who

    def write(self, text: str) -> int:
        if text.strip():
            self._universe.say(self._who, text.strip().removeprefix("elastic-run: "))
        return len(text)

    def flush(self) -> None:
        pass


class Setting:
    """What all nodes of a schedule share."""

    def __init__(
        self,
        universe: Universe,
        network: Network,
        server: Server,
        training: Training,
        job: Config,
        witness: Witness,
        *,
        program: type[SimWorker],
        warm: bool,
        lease_ttl_s: float,
        slots: int,
        grace_s: float = 2.0,
    ) -> None:
        self.grace_s = grace_s
        self.universe = universe
        self.network = network
        self.server = server
        self.training = training
        self.job = job
        self.witness = witness
        self.program = program
        self.warm = warm
        self.lease_ttl_s = lease_ttl_s
        self.slots = slots
        self.peers = Peers(network)


class SimNode:
    """One node from the start of its agent to its end. `outcome`: how it ended, if it did by itself."""

    def __init__(self, setting: Setting, name: str) -> None:
        self.setting = setting
        self.name = name
        self.outcome: Outcome | None = None
        self.ended = False
        self.leaving = False  # it was asked to
        self.spawner = SimSpawner(self)
        universe = setting.universe
        chance = universe.random
        self.clock = HostClock(universe, chance.uniform(0, 1e6), chance.uniform(-86_400, 86_400))
        self.process = Process(universe, name)  # type: ignore[abstract]  # it has what asyncio's tasks need
        self.client = Client(setting.server, setting.network, self.process, name)
        self.agent: Agent | None = None
        self.process.create_task(self._main())

    async def _main(self) -> None:
        setting = self.setting
        lines: Any = _Lines(setting.universe, self.name)
        config = AgentConfig(
            job=JobEnvironment(name="job", max_restarts=setting.job.max_restarts),
            membership=setting.job,
            program=Program(command=("program",), argv=("program",), warm=setting.warm),
            plan=_plan(),
            node_id=self.name,
            host=self.name,
            address=self.name,
            master_port=1,
            workers=setting.slots,
            inherited={},
            shutdown_timeout_s=setting.grace_s,
            join_timeout_s=60.0,
            outage_timeout_s=30.0,
            exclusion=EXCLUSION,
            lease_ttl_s=setting.lease_ttl_s,
            signals=(),
            caller=self.client,
            connect=self._connect,
        )
        quiet = setting.universe.trace is None
        reporter = Reporter(lines, quiet=quiet, clock=self.clock)
        self.agent = Agent(config, self.client, self.spawner.supervise, reporter, self.clock)
        try:
            self.outcome = await self.agent.run()
        except ResilinError as error:  # the store did not answer when it wanted to join
            self.outcome = Outcome(code=3, reason=str(error))
        if not self.process.dead:
            self.ended = True
            setting.universe.after(0.0, self.process.kill)
            setting.universe.say(self.name, f"ended: code {self.outcome.code}, {self.outcome.reason}")

    async def _connect(self, endpoint: str) -> bool:
        """Whether a worker with this endpoint takes a connection in time."""
        answer: asyncio.Future[bool] = self.process.create_future()

        def answered(works: bool) -> None:
            if not answer.done():
                answer.set_result(works)

        self.setting.peers.connect(self.name, endpoint, lambda works: self.process.call_soon(answered, works))
        self.process.call_later(TRY_S, answered, False)
        return await answer

    def crash(self, silently: bool) -> None:
        """The agent is killed, and with it its workers; `silently`: the whole host, so that nobody hears of it."""
        self.ended = True
        for worker in self.spawner.running:
            worker.end(-signal.SIGKILL, silently)
        self.process.kill()

    def pause(self) -> None:
        """Everything on this host stands still."""
        for process in self._processes():
            process.pause()

    def resume(self) -> None:
        """Everything goes on, save what was frozen by itself."""
        for process in self._processes():
            process.resume()

    def leave(self) -> None:
        """SIGTERM."""
        if self.agent is not None and not self.ended and not self.leaving:
            self.leaving = True
            for worker in self.spawner.running:
                if worker.sim is not None and worker.sim.asked_at is None:
                    worker.sim.asked_at = self.process.time()
            self.process.call_soon(self.agent.ask_to_leave, int(signal.SIGTERM))

    def _processes(self) -> list[Process]:
        return [self.process, *(worker.process for worker in self.spawner.running)]


class SimProcess(Worker):
    """The agent's side of a simulated worker."""

    def __init__(
        self, spawner: SimSpawner, command: Command, on_message: Callable[[Message], None], number: int
    ) -> None:
        self.pid = 0
        self.code: int | None = None
        self.refused = None
        node = spawner.node
        self.ended = node.process.create_future()
        self._spawner = spawner
        self._node = node
        self._hear = on_message
        setting = node.setting
        self.process = Process(setting.universe, f"{node.name}/{number}")  # type: ignore[abstract]
        self._number = number
        self.sim: SimWorker | None = None
        self.step: int | None = None  # that it has said it works on
        begin = setting.universe.random.uniform(0.02, 0.4)  # executed or forked
        self.process.call_later(begin, self._begin, dict(command.env))

    def _begin(self, env: dict[str, str]) -> None:
        self._from_worker(lambda: setattr(self, "pid", self._number))
        self._become(env)

    def _become(self, env: dict[str, str]) -> None:
        setting = self._node.setting
        self.sim = setting.program(
            self.process,
            setting.peers,
            self._node.name,
            env,
            setting.training,
            setting.witness,
            self._say,
            self._exit,
        )
        self.process.create_task(self._main(self.sim))

    async def _main(self, sim: SimWorker) -> None:
        try:
            self._exit(await sim.main())
        except Exception as error:  # noqa: BLE001 - a program that fails by itself is a fault of the simulation
            self._node.setting.universe.fail(f"{self.process.name}: {type(error).__name__}: {error}")

    # ------------------------------------------------------------------------- worker to agent

    def _say(self, message: Message) -> None:
        if isinstance(message, Progress):
            self.step = message.step
        elif isinstance(message, Committed):
            self.step = message.step + 1
        self._from_worker(partial(self._hear_if_alive, message))

    def _hear_if_alive(self, message: Message) -> None:
        if self.code is None:
            self._hear(message)

    def _from_worker(self, call: Callable[[], object]) -> None:
        if not self.process.dead:
            self._node.process.call_later(PIPE_S, call)

    def _exit(self, code: int) -> None:
        self._node.setting.universe.after(0.0, partial(self.end, code, False))

    def end(self, code: int, silently: bool) -> None:
        """The process ends with `code`; its agent hears it after what it had said."""
        if self.process.dead:
            return
        self.process.kill()
        self._node.setting.universe.say(self.process.name, f"ends with {code}")
        if self.step is not None and code and failure.fault_of(code) == "own":
            self._node.setting.witness.failed(self._node.name, self.step)
        if self.sim is not None:
            self.sim.die(silently)
        if not self._node.process.dead:
            self._node.process.call_later(PIPE_S, self.finished, code)

    def finished(self, code: int, refused: OSError | None = None) -> None:
        self.code = code
        self._spawner.forget(self)
        if not self.ended.done():
            self.ended.set_result(code)

    # ------------------------------------------------------------------------- agent to worker

    def send(self, message: Message) -> None:
        agent = self._node.agent
        current = agent.view.generation if agent is not None and isinstance(message, World) else None
        if not self.process.dead:
            self.process.call_later(PIPE_S, self._take, message, current.origin if current is not None else "")

    def _take(self, message: Message, beginning: str) -> None:
        if self.sim is not None:
            self.sim.beginning = beginning or self.sim.beginning
            self.sim.heed(message)

    def kill(self, number: int) -> None:
        if number == signal.SIGKILL:
            if not self.process.dead:
                self._node.setting.witness.killed(self.process.name)
            self._exit(-number)
        elif number == signal.SIGCONT:
            self._node.process.call_later(PIPE_S, self.process.resume)
        elif not self.process.dead:
            self.process.call_later(PIPE_S, self._signal, int(number))

    def _signal(self, number: int) -> None:
        if self.sim is not None:
            self.sim.signal(number)
        else:
            self._exit(-number)


class SimSpawner:
    """Starts simulated workers. Stands for the spawner process and the supervisor."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.running: list[SimProcess] = []
        self._count = 0

    def supervise(self, on_lost: Callable[[], None]) -> SimSpawner:
        """As `SpawnerProcess.supervise`."""
        return self

    def prepare(self, template: Command) -> None:
        """As `Supervisor.prepare`: how workers start makes no difference here."""

    def retire(self) -> None:
        """As `Supervisor.retire`."""

    def start(self, command: Command, on_message: Callable[[Message], None]) -> SimProcess:
        """As `Supervisor.start`."""
        self._count += 1
        worker = SimProcess(self, command, on_message, self._count)
        self.running.append(worker)
        return worker

    def forget(self, worker: SimProcess) -> None:
        """It has ended."""
        if worker in self.running:
            self.running.remove(worker)

    def purge(self) -> None:
        """Nothing is left behind in a simulation."""

    async def close(self) -> None:
        """As `Supervisor.close`."""
        for worker in list(self.running):
            worker.end(-signal.SIGKILL, False)
            worker.finished(-signal.SIGKILL)
        await asyncio.sleep(0)
