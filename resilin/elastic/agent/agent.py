"""The agent of one node: owns its workers, takes part in the rendezvous, and carries out what membership decides.

Everything happens in one asyncio loop. Whatever occurs (a death, a message, a change in the store, a timer) ends in
`_step`, which compares what is with what should be and acts on the difference; it may run any number of times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from resilin._base import log
from resilin._base.clock import SYSTEM, Clock
from resilin.elastic import control, failure
from resilin.elastic.agent import ending, placing
from resilin.elastic.agent.config import AgentConfig, Outcome
from resilin.elastic.agent.describing import Describing
from resilin.elastic.agent.filling import Filler
from resilin.elastic.agent.live import Showing
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.slots import LocalSlot, Owner
from resilin.elastic.agent.supervise import Supervise
from resilin.elastic.agent.telling import Teller
from resilin.elastic.agent.waiting import Waiting
from resilin.elastic.agent.watchdog import Watchdog
from resilin.elastic.deciding import facts, membership, sizing, worlds
from resilin.elastic.deciding.backoff import Restarts
from resilin.elastic.deciding.exclusion import Exclusion
from resilin.elastic.deciding.mishaps import Mishaps
from resilin.elastic.deciding.terms import Terms
from resilin.elastic.deciding.view import Config, Situation, View
from resilin.elastic.failure import Failure
from resilin.elastic.records import INTERRUPTED, Closed, Generation, Node
from resilin.elastic.rendezvous.rendezvous import Options, Rendezvous
from resilin.errors import ResilinError
from resilin.store.base import Store

_log = log.logger("elastic.agent")


@dataclass
class _Told:
    """What was already said or started, so that `_step` can run again."""

    generation: Generation | None = None  # the last one carried out
    restarted: int = 0  # number of the last one that starts all workers
    closed: Closed | None = None  # the end that is being carried out
    alone: bool = False  # that end was not agreed on in the store, which was away
    reason: str = ""
    last_commit: float = 0.0  # monotonic; 0: never
    stateful: bool = False  # a worker committed a step: the next generation takes the state over from somebody

    @property
    def applied(self) -> int:
        """The number of the last generation carried out."""
        return self.generation.number if self.generation is not None else 0


class Agent:
    """Runs one node's workers until the job ends. Use `run()` once."""

    def __init__(
        self, config: AgentConfig, store: Store, supervise: Supervise, reporter: Reporter, clock: Clock = SYSTEM
    ) -> None:
        self._config = config
        self._store = store
        self._reporter = reporter
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._supervisor = supervise(self._spawner_lost)
        options = Options(
            job=config.job.name,
            node_id=config.node_id,
            lease_ttl_s=config.lease_ttl_s,
            direct=config.store_in_process,
            caller=config.caller,
        )
        self._rendezvous = Rendezvous(store, options, self._step, clock)
        owner = Owner(
            node_id=config.node_id,
            host=config.host,
            role=config.job.role,
            program=config.program,
            plan=config.plan,
            supervisor=self._supervisor,
            inherited=config.inherited,
            on_message=self._on_message,
            on_end=self._on_end,
            clock=clock,
        )
        self._slots = [LocalSlot(index, owner) for index in range(config.workers)]
        self._teller = Teller(config.node_id, self._slots, reporter)
        self._showing = Showing(self._rendezvous, self._slots, clock)
        self._restarts = Restarts()
        self._filler = Filler(config, self._slots, self._supervisor)
        self._told = _Told()
        self._waiting = Waiting(
            reporter.line,
            join_timeout_s=config.join_timeout_s,
            outage_timeout_s=config.outage_timeout_s,
            min_nodes=config.membership.min_nodes,
            meeting=config.meeting,
            hosted=config.hosted,
        )
        self._mishaps = Mishaps(config.node_id)
        self._exclusion = Exclusion(config.node_id, config.exclusion, reporter.line)
        self._terms = Terms(config.node_id, reporter.line)
        self._describing = Describing(config, self._slots, self._mishaps, self._exclusion)
        self._watchdog = Watchdog(config, self._slots, self._rendezvous, reporter, self._step, self._spawn_task, clock)
        self._leaving: int | None = None  # the signal that asked this node to go
        # what is ignored from the start (nohup, a job in the background) stays so
        self._signals = [n for n in config.signals if signal.getsignal(n) is not signal.SIG_IGN]
        self._joined = False
        self._stepping = self._again = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def view(self) -> View:
        """The job as far as this agent knows."""
        return self._rendezvous.view

    @contextlib.contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """The signals that ask this node to leave are heard in the block: around `run`, and all that goes with it."""
        for number in self._signals:
            self._loop.add_signal_handler(number, self.ask_to_leave, number)
        try:
            yield
        finally:
            for number in self._signals:
                self._loop.remove_signal_handler(number)

    async def run(self) -> Outcome:
        """Take part until the job ends, or this node is asked to leave. StoreError when the store never answers."""
        try:
            if await self._join():
                self._refuse_ended_job()
                self._step()
            return await self._outcome
        finally:
            await self._shutdown()

    async def _join(self) -> bool:
        """Take part in the rendezvous; False when this node was asked to leave before it could."""
        config = self._config
        work = self._rendezvous.join(self._record(), config.outage_timeout_s, self._waiting.join_outage)
        joining = self._loop.create_task(work)
        await asyncio.wait((joining, self._outcome), return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            await joining  # its error is this node's
            self._joined = True
        joining.cancel()
        return self._joined

    def _refuse_ended_job(self) -> None:
        closed = self._rendezvous.view.closed
        if closed is not None:
            self._end(ending.came_late(self._config.job.name, closed))

    async def _shutdown(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._showing.close()
        for task in self._tasks:
            task.cancel()
        await self._supervisor.close()
        if self._joined:
            await self._rendezvous.leave()

    # ------------------------------------------------------------------------------------ the one step

    def _step(self) -> None:
        """Compare what is with what should be and act on the difference. Never nests."""
        self._again = True
        if self._stepping or not self._joined:
            return
        self._stepping = True
        try:
            while self._again and not self._outcome.done():
                self._again = False
                self._evaluate()
        except Exception as error:  # noqa: BLE001 - the agent's top: it becomes the outcome
            _log.debug("agent failed", exc_info=error)
            known = error if isinstance(error, ResilinError) else None
            self._end(Outcome(code=6, reason=f"internal error: {type(error).__name__}: {error}", error=known))
        finally:
            self._stepping = False

    def _evaluate(self) -> None:
        if self._told.alone:
            return  # the store may be back meanwhile: too late
        refusal = self._rendezvous.refusal
        if refusal is not None and self._leaving is None:
            self._end(ending.refused(refusal, self._mishaps.first(self._rendezvous.view.generation)))
            return
        excluded = self._exclusion.update(self._rendezvous.view, self._limits.min_nodes, self._clock.monotonic())
        self._rendezvous.publish(self._record())
        view = self._rendezvous.view
        forgotten = ending.forgotten(self._config.job.name, self._told.generation, view.generation)
        if forgotten is not None:
            self._end(forgotten)
            return
        self._apply(view)
        situation = membership.assess(view, self._limits, self._clock.monotonic())
        if situation.reason != self._told.reason:
            log.event(_log, logging.INFO, "situation", action=situation.action, reason=situation.reason)
            self._told.reason = situation.reason
        away = self._rendezvous.outage
        untold, alone = self._waiting.alone(view, situation, away, self._config.node_id, self._clock.monotonic())
        if (closed := view.closed or alone) is not None:
            self._told.alone = view.closed is None
            self._close_down(closed)
            return
        cause = self._waiting.cause(view, situation, self._clock.monotonic())
        if situation.action == "stop" and self._leaving is None and cause is None:  # to leave has its own way to stop
            self._stop_workers(self._slots)
        self._again |= self._teller.deaths(view, self._told.reason)
        paused = self._restarts.until(view, situation, self._clock.monotonic())
        if view.leader() == self._config.node_id and cause is None and paused is None:
            self._lead(view, situation)
        self._again |= self._teller.worlds(view, self._clock.monotonic())
        self._teller.standbys(view)
        self._terms.look(view)
        self._dismiss(view)
        held = self._fill(view)
        self._showing.update()
        unanswered = self._teller.unresponsive(view, self._clock.monotonic())
        silent = self._watchdog.look(view, self._clock.monotonic())
        absent = self._look_for_absent(view, situation)
        self._arm(situation, cause, paused, held, unanswered, silent, absent, excluded, untold)

    def _lead(self, view: View, situation: Situation) -> None:
        if situation.action in ("form", "reshape"):
            new, _ = membership.decide(view, self._limits, self._clock.monotonic())
            if new is not None:
                self._rendezvous.propose(new)
        elif situation.action == "fail":
            first = worlds.first_failure(view)
            self._rendezvous.close_job(Closed(outcome="failed", reason=situation.reason, failure=first))
        elif situation.action == "interrupt":
            self._rendezvous.close_job(Closed(outcome="failed", reason=situation.reason, code=INTERRUPTED))
        elif situation.action == "succeed":
            self._rendezvous.close_job(Closed(outcome="succeeded", reason=situation.reason))

    def _look_for_absent(self, view: View, situation: Situation) -> float | None:
        """Say whom everybody waits for, and end the job when that takes too long; else, when to look again."""
        until, closed = self._waiting.look(view, situation, self._clock.monotonic())
        if closed is not None and view.leader() == self._config.node_id:
            self._rendezvous.close_job(closed)
        return until

    def _arm(self, situation: Situation, *look_again: float | None) -> None:
        """Come back when time alone changes the situation; give up when too few nodes come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock.monotonic()
        until = min((at for at in (situation.until, *look_again) if at is not None), default=None)
        patience = self._waiting.patience(situation, self._rendezvous.outage, self._told.last_commit, now)
        if patience is not None and self._leaving is None:  # to leave has a limit of its own
            end, outcome = patience
            if now >= end:
                self._end(outcome)
                return
            until = end if until is None else min(until, end)
        if until is not None:
            self._timer = self._loop.call_later(max(0.0, until - now) + 1e-3, self._step)

    # ------------------------------------------------------------------------------------- generations

    def _apply(self, view: View) -> None:
        new = view.generation
        if new is None or new.number <= self._told.applied:
            return
        self._told.generation = new
        self._again = True
        log.stamp(generation=new.number)
        mine = placing.members(new, self._config.node_id)
        self._mishaps.forget_all_but(mine)
        self._reporter.generation(new, stateful=self._told.stateful)
        if placing.starts_workers(new, self._slots, mine):
            self._told.restarted = new.number
            old = placing.outdated(new, self._slots, mine)
            self._spawn_task(self._begin(new, old)) if old else self._begin_now(new)
        else:
            placing.place(new, self._slots, mine)

    async def _begin(self, new: Generation, old: Sequence[LocalSlot]) -> None:
        """Start a generation after ending the processes in `old`; also when it has been reshaped meanwhile."""
        self._stop_workers(old, everything=True)
        await asyncio.gather(*(slot.worker.ended for slot in old if slot.worker is not None and slot.running))
        if self._told.restarted == new.number and self._told.closed is None:
            self._begin_now(new)
            current = self._rendezvous.view.generation
            if current is not None and current.kind == "inplace":
                placing.place(current, self._slots, placing.members(current, self._config.node_id))
            self._step()

    def _begin_now(self, new: Generation) -> None:
        if new.number > 1:
            self._supervisor.purge()
        for member in placing.members(new, self._config.node_id):
            slot = self._slots[member.slot]
            if slot.incarnation < member.incarnation:
                place = worlds.place(new, member)
                slot.start(member.incarnation, member.rank, new.number, self._filler.variables(place))
        self._again = True

    @property
    def _limits(self) -> Config:
        """What the job allows, with what people asked for."""
        return sizing.limits(self._config.membership, self._rendezvous.view.wanted)

    def _fill(self, view: View) -> float | None:
        if self._leaving is not None:
            return None
        started, held = self._filler.fill(view, self._limits, self._clock.monotonic())
        self._again |= started
        return held

    def _dismiss(self, view: View) -> None:
        """Let workers go that have no place now (`sizing.is_dismissed`); the node itself stays."""
        if self._leaving is not None or not sizing.is_dismissed(view, self._limits, self._config.node_id):
            return
        work = ending.dismiss(self._slots, self._config.shutdown_timeout_s)
        if work is not None:
            self._reporter.line("this node is to take no part: its workers finish their step and end")
            self._spawn_task(self._let_go(work))

    async def _let_go(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        self._filler.retire()

    # ------------------------------------------------------------------------------- what workers do

    def _on_message(self, slot: LocalSlot, message: control.Message) -> None:
        self._watchdog.heard(slot, message)
        if isinstance(message, control.Progress):
            self._reporter.progress(message.generation, message.step)
        elif isinstance(message, control.Committed):
            self._told.stateful = True
            self._told.last_commit = self._clock.monotonic()
            self._reporter.committed(message.generation, message.step)
            if message.generation == self._told.applied and self._leaving is None and self._told.closed is None:
                self._filler.keep_template(self._rendezvous.view.generation)
        elif isinstance(message, control.Hello | control.Stuck):
            self._step()
        elif isinstance(message, control.Done) and message.generation == slot.sent > slot.aborted:
            slot.state, slot.done_in = "done", message.generation
            self._step()

    def _on_end(self, slot: LocalSlot) -> None:
        if self._outcome.done():
            return
        if slot.state == "failed" and slot.failure is not None and self._leaving is None and self._told.closed is None:
            self._on_failure(slot, slot.failure)
        elif slot.state == "failed" and slot.failure is not None:
            self._mishaps.add_late(slot.failure, self._told.closed)
        elif slot.state == "left" and self._leaving is None and self._told.closed is None:
            self._reporter.left(slot.known_as[0], slot.leaves or "exited with code 0")
        self._step()

    def _on_failure(self, slot: LocalSlot, what: Failure) -> None:
        member = self._mishaps.add(slot.index, slot.incarnation, what, self._rendezvous.view.generation)
        self._filler.failed(slot, joined=member, now=self._clock.monotonic())
        if not what.follows:
            self._exclusion.failed(self._clock.monotonic())
        self._rendezvous.publish(self._record())
        view = self._rendezvous.view
        # before anything slower: blocked survivors go on as soon as they hear of it
        self._teller.deaths(view, self._told.reason)
        slot.replace = facts.may_replace(view, self._limits)
        judged = facts.judgement(view, self._limits)
        if judged.suspect == self._config.node_id:
            self._exclusion.accuse(judged.accusation)
        situation = membership.assess(view, self._limits, self._clock.monotonic())
        self._reporter.death(what, joined=member, final=situation.action == "fail")

    def _stop_workers(self, slots: Sequence[LocalSlot], everything: bool = False) -> None:
        """End the workers in `slots` for a restart."""
        for slot in slots:
            if slot.running and not slot.stopping and (everything or slot.state != "done" or slot.redoing):
                slot.stopping = True
                self._spawn_task(ending.stop(slot, self._config.shutdown_timeout_s))

    # ------------------------------------------------------------------------------------------ the end

    def _close_down(self, closed: Closed) -> None:
        if self._told.closed is None:
            self._told.closed = closed
            self._spawn_task(self._wind_up(closed))

    async def _wind_up(self, closed: Closed) -> None:
        """The job has ended: let workers finish, or stop them, and settle this node's outcome."""
        if closed.outcome == "failed":
            self._stop_workers(self._slots, everything=True)
        await ending.finish(self._slots, self._config.shutdown_timeout_s, succeeded=closed.outcome == "succeeded")
        first = self._mishaps.first(self._rendezvous.view.generation)
        self._end(ending.settled(closed, self._slots, first, self._mishaps.late))

    def ask_to_leave(self, number: int) -> None:
        """Signal `number` came: a graceful end of this node; the second one kills its workers."""
        if self._leaving is not None:
            self._reporter.always(f"{failure.signal_name(number)} again: killing the workers")
            for slot in self._slots:
                if slot.worker is not None:
                    slot.stopping = True
                    slot.worker.kill(signal.SIGKILL)
            return
        self._leaving = number
        self._reporter.always(f"{failure.signal_name(number)}: asking the workers to end")
        self._spawn_task(self._leave(number))
        self._step()

    async def _leave(self, number: int) -> None:
        """Graceful end of this node: its workers finish their step (in place) or get the same signal."""
        await ending.leave(self._slots, number, self._config.shutdown_timeout_s)
        self._end(Outcome(code=128 + number, reason=f"ended by {failure.signal_name(number)}"))

    def _spawner_lost(self) -> None:
        self._end(Outcome(code=6, reason="the spawner process was killed; its workers died with it"))

    def _end(self, outcome: Outcome) -> None:
        if (
            self._leaving is not None
            and outcome.code in (0, INTERRUPTED)
            and any(slot.state != "done" for slot in self._slots)
        ):
            name = failure.signal_name(self._leaving)
            outcome = Outcome(code=128 + self._leaving, reason=f"ended by {name}")
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _record(self) -> Node:
        current = self._rendezvous.view.generation
        return self._describing.record(current, leaving=self._leaving is not None, stall=self._watchdog.stall)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(Outcome(code=6, reason=f"internal error: {type(error).__name__}: {error}"))
