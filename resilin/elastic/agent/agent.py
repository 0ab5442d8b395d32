"""Run the agent of one node: own its workers, take part in the rendezvous, and carry out what membership decides.

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
from resilin.elastic.agent import assignment, shutdown
from resilin.elastic.agent.config import AgentConfig, Outcome
from resilin.elastic.agent.departures import Departures
from resilin.elastic.agent.live_status import LiveStatus
from resilin.elastic.agent.master_port import MasterPort
from resilin.elastic.agent.node_record import NodeRecord
from resilin.elastic.agent.process_supervisor import Supervise
from resilin.elastic.agent.reachability_probe import ReachabilityProbe
from resilin.elastic.agent.recordings import Recordings
from resilin.elastic.agent.replacement import Replacement
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.slots import LocalSlot, Owner
from resilin.elastic.agent.wait_limits import WaitLimits
from resilin.elastic.agent.watchdog import Watchdog
from resilin.elastic.agent.worker_notifier import WorkerNotifier
from resilin.elastic.failure import Failure
from resilin.elastic.membership import decision, queries, scaling, succession, world_spec
from resilin.elastic.membership.backoff import Restarts
from resilin.elastic.membership.config_consistency import SharedConfig
from resilin.elastic.membership.failure_log import FailureLog
from resilin.elastic.membership.node_quarantine import NodeQuarantine
from resilin.elastic.membership.view import Config, Situation, View
from resilin.elastic.records import INTERRUPTED, Closed, Generation, Node
from resilin.elastic.rendezvous.options import RendezvousOptions
from resilin.elastic.rendezvous.rendezvous import Rendezvous
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
        options = RendezvousOptions(
            job=config.job.name,
            node_id=config.node_id,
            lease_ttl_s=config.lease_ttl_s,
            direct=config.store_in_process,
            caller=config.caller,
        )
        self._rendezvous = Rendezvous(store, options, self._step, clock)
        self._rendezvous.holds_state = lambda: any(slot.has_committed for slot in self._slots)
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
        self._notifier = WorkerNotifier(config.node_id, self._slots, reporter)
        self._departures = Departures(self._slots, reporter.line)
        self._recordings = Recordings(self._slots, clock)
        self._live_status = LiveStatus(self._rendezvous, self._slots, self._recordings, clock)
        self._restarts = Restarts()
        self._replacement = Replacement(config, self._slots, self._supervisor)
        self._told = _Told()
        self._waiting = WaitLimits(
            reporter.line,
            join_timeout_s=config.join_timeout_s,
            outage_timeout_s=config.outage_timeout_s,
            min_nodes=config.membership.min_nodes,
            meeting=config.meeting,
            hosted=config.hosted,
        )
        self._failure_log = FailureLog(config.node_id)
        self._quarantine = NodeQuarantine(config.node_id, config.exclusion, reporter.line)
        self._shared_config = SharedConfig(config.node_id, reporter.line)
        self._reachability = ReachabilityProbe(
            config.node_id, self._slots, config.connect, self._spawn_task, self._step, reporter.line, clock
        )
        self._node_record = NodeRecord(config, self._slots, self._failure_log, self._quarantine, self._reachability)
        self._watchdog = Watchdog(
            config,
            self._slots,
            self._rendezvous,
            reporter,
            self._reachability.settled,
            self._step,
            self._spawn_task,
            clock,
        )
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

    @property
    def takes_part(self) -> bool:
        """Whether this node is in the world of the present generation, and was not asked to go."""
        generation = self._rendezvous.view.generation
        joined = self._joined and self._leaving is None and not self._outcome.done()
        return joined and generation is not None and self._config.node_id in generation.nodes

    @property
    def world(self) -> dict[str, Any]:
        """What this agent knows of the world, as plain values: its generation, restarts, and faults of this node."""
        generation = self._rendezvous.view.generation
        number = generation.number if generation is not None else 0
        return {
            "generation": number,
            "restarts": generation.restarts_used if generation is not None else 0,
            "recovering": self._reporter.history.recovering,
            "faults": self._reporter.history.answered(number, self._clock.wall()),
        }

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
            self._end(shutdown.came_late(self._config.job.name, closed))

    async def _shutdown(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._live_status.close()
        for task in self._tasks:
            task.cancel()
        await self._supervisor.close()
        for slot in self._slots:
            slot.close()
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
            log.event(_log, logging.DEBUG, "agent failed", exc_info=error)
            known = error if isinstance(error, ResilinError) else None
            self._end(Outcome(code=6, reason=f"internal error: {type(error).__name__}: {error}", error=known))
        finally:
            self._stepping = False

    def _evaluate(self) -> None:
        if self._told.alone:
            return  # the store may be back meanwhile: too late
        refusal = self._rendezvous.refusal
        if refusal is not None and self._leaving is None:
            self._end(shutdown.refused(refusal, self._failure_log.first(self._rendezvous.view.generation)))
            return
        excluded = self._quarantine.update(self._rendezvous.view, self._limits.min_nodes, self._clock.monotonic())
        untried = self._reachability.look(self._rendezvous.view, self._clock.monotonic(), self._watchdog.stalled_at)
        self._rendezvous.publish(self._record())
        view = self._rendezvous.view
        forgotten = shutdown.forgotten(self._config.job.name, self._told.generation, view.generation)
        if forgotten is not None and not self._yield_to(view):
            self._end(forgotten)
            return
        self._apply(view)
        situation = decision.assess(view, self._limits, self._clock.monotonic())
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
        self._again |= self._notifier.deaths(view, self._told.reason)
        paused = self._restarts.until(view, situation, self._clock.monotonic())
        if view.leader() == self._config.node_id and cause is None and paused is None:
            self._lead(view, situation)
        self._again |= self._notifier.worlds(view, self._clock.monotonic())
        if away is None:  # else it is old what the view says of others
            self._notifier.standbys(view)
        self._shared_config.look(view)
        self._dismiss(view)
        going = self._departures.look(view, self._limits, self._clock.monotonic())
        held = self._fill(view)
        self._recordings.look(self._rendezvous.recording)
        self._live_status.update()
        unanswered = self._notifier.unresponsive(view, self._clock.monotonic())
        silent = self._watchdog.look(view, self._clock.monotonic())
        absent = self._look_for_absent(view, situation)
        self._arm(situation, cause, paused, held, unanswered, silent, absent, excluded, untold, untried, going)

    def _yield_to(self, view: View) -> bool:
        """Begin anew as a node of a job that others, who had been in it before, have put back; whether it is so.

        The workers here are killed: none may commit a step of a line that has no part in the job any more.
        """
        new, last = view.generation, self._told.generation
        if new is None or last is None or self._rendezvous.refused or not succession.outranks(new, last):
            return False
        self._reporter.line(
            f"nodes that were in job {self._config.job.name!r} before have put it back (generation {new.number}): this "
            "one takes part in what they go on with, and its workers start again"
        )
        for slot in self._slots:
            if slot.running and slot.worker is not None:
                slot.stopping = True
                slot.worker.kill(signal.SIGKILL)
        self._told = _Told(closed=self._told.closed)
        return True

    def _lead(self, view: View, situation: Situation) -> None:
        if situation.action in ("form", "reshape"):
            new, _ = decision.decide(view, self._limits, self._clock.monotonic())
            if new is not None:
                self._rendezvous.propose(new)
        elif situation.action == "fail":
            first = world_spec.first_failure(view)
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
        outage, broken = self._rendezvous.outage, self._broken()
        patience = self._waiting.patience(situation, outage, self._told.last_commit, now, broken)
        if patience is not None and self._leaving is None:  # to leave has a limit of its own
            end, outcome = patience
            if now >= end:
                self._end(outcome)
                return
            until = end if until is None else min(until, end)
        if until is not None:
            self._timer = self._loop.call_later(max(0.0, until - now) + 1e-3, self._step)

    def _broken(self) -> str:
        """Why workers here cannot go on in the present world, though the store has not said so."""
        number = self._told.applied
        for slot in self._slots:
            if slot.running and number and number in (slot.interrupted, slot.missed_in):
                return f"rank {slot.rank} lost its world ({slot.interrupted_by or slot.missed_at})"
        return self._watchdog.cut_off

    # ------------------------------------------------------------------------------------- generations

    def _apply(self, view: View) -> None:
        new = view.generation
        if new is None or new.number <= self._told.applied:
            return
        before, self._told.generation = self._told.generation, new
        self._again = True
        if before is not None and len(new.refills) > len(before.refills):
            place = f" at {self._config.meeting}" if self._config.meeting else ""
            self._reporter.line(f"the store{place} had lost the records of this job: they are put back, and it goes on")
        log.stamp(generation=new.number)
        mine = assignment.members(new, self._config.node_id)
        self._failure_log.forget_all_but(mine)
        lost = self._told.stateful and not queries.has_state(view, new.members)
        self._reporter.generation(new, stateful=lost)
        if assignment.starts_workers(new, self._slots, mine):
            self._told.restarted = new.number
            old = assignment.outdated(new, self._slots, mine)
            self._spawn_task(self._begin(new, old)) if old else self._begin_now(new)
        else:
            assignment.place(new, self._slots, mine)

    async def _begin(self, new: Generation, old: Sequence[LocalSlot]) -> None:
        """Start a generation after ending the processes in `old`; also when it has been reshaped meanwhile."""
        self._stop_workers(old, everything=True)
        await asyncio.gather(*(slot.worker.ended for slot in old if slot.worker is not None and slot.running))
        if self._told.restarted == new.number and self._told.closed is None:
            self._begin_now(new)
            current = self._rendezvous.view.generation
            if current is not None and current.kind == "inplace":
                assignment.place(current, self._slots, assignment.members(current, self._config.node_id))
            self._step()

    def _begin_now(self, new: Generation) -> None:
        if new.number > 1:
            self._supervisor.purge()
        for member in assignment.members(new, self._config.node_id):
            slot = self._slots[member.slot]
            if slot.incarnation < member.incarnation:
                place = world_spec.place(new, member)
                slot.start(member.incarnation, member.rank, new.number, self._replacement.variables(place))
        self._again = True

    @property
    def _limits(self) -> Config:
        """What the job allows, with what people asked for."""
        return scaling.limits(self._config.membership, self._rendezvous.view.wanted)

    def _fill(self, view: View) -> float | None:
        if self._leaving is not None:
            return None
        started, held = self._replacement.fill(view, self._limits, self._clock.monotonic())
        self._again |= started
        return held

    def _dismiss(self, view: View) -> None:
        """Let workers go that have no place now (`sizing.is_dismissed`); the node itself stays."""
        if self._leaving is not None or not scaling.is_dismissed(view, self._limits, self._config.node_id):
            return
        work = shutdown.dismiss(self._slots, self._config.shutdown_timeout_s)
        if work is not None:
            self._reporter.line("this node is to take no part: its workers finish their step and end")
            self._spawn_task(self._let_go(work))

    async def _let_go(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        self._replacement.retire()

    # ------------------------------------------------------------------------------- what workers do

    def _on_message(self, slot: LocalSlot, message: control.Message) -> None:
        self._watchdog.heard(slot, message)
        if isinstance(message, control.Progress):
            self._reporter.progress(message.generation, message.step)
            told, now = self._rendezvous.own().slots[slot.index], slot.record
            if (told.has_state, told.parts_in, told.left_out_after) != (True, now.parts_in, now.left_out_after):
                self._step()  # others are to know that it has the job's state, and which parts of it
        elif isinstance(message, control.Committed):
            self._told.stateful = True
            self._told.last_commit = self._clock.monotonic()
            if slot.rank == 0 and slot.has_begun and not self._rendezvous.own().stateful:
                self._step()  # whoever finds this job where another store was lost sees that it has state
            self._reporter.committed(message.generation, message.step)
            if message.generation == self._told.applied and self._leaving is None and self._told.closed is None:
                self._replacement.keep_template(self._rendezvous.view.generation)
        elif isinstance(message, control.Hello | control.Stuck):
            if isinstance(message, control.Hello):
                self._failure_log.passed(slot.index)
            self._step()
        elif isinstance(message, control.Leaving):
            if self._told.closed is not None or slot.stopping:
                slot.send(control.Leave(reason=message.reason))
            else:
                slot.ask_to_leave(message.reason, self._config.shutdown_timeout_s)
                self._step()
        elif isinstance(message, control.Interrupted) and slot.aborted < message.generation:
            self._rendezvous.probe()  # nobody has said so yet: whoever it has lost may have served the store
            self._step()
        elif isinstance(message, control.Recorded):
            self._recordings.heard(slot, message)
        elif isinstance(message, control.Done) and message.generation == slot.sent > slot.aborted:
            slot.state, slot.done_in = "done", message.generation
            self._step()

    def _on_end(self, slot: LocalSlot) -> None:
        if self._outcome.done():
            return
        if slot.state == "failed" and slot.failure is not None and self._leaving is None and self._told.closed is None:
            self._on_failure(slot, slot.failure)
        elif slot.state == "failed" and slot.failure is not None:
            self._failure_log.add_late(slot.failure, self._told.closed)
        elif slot.state == "left" and self._leaving is None and self._told.closed is None:
            self._reporter.left(slot.known_as[0], slot.leaves or "exited with code 0")
        self._step()

    def _on_failure(self, slot: LocalSlot, what: Failure) -> None:
        member = self._failure_log.add(slot.index, slot.incarnation, what, self._rendezvous.view.generation)
        self._replacement.failed(slot, joined=member, now=self._clock.monotonic())
        if not what.follows:
            self._quarantine.failed(self._clock.monotonic())
        port = self._config.master_port
        if slot.rank == 0 and isinstance(port, MasterPort) and (told := port.renew()):
            self._reporter.line(told)
        self._rendezvous.publish(self._record())
        view = self._rendezvous.view
        # before anything slower: blocked survivors go on as soon as they hear of it
        self._notifier.deaths(view, self._told.reason)
        slot.replace = queries.may_replace(view, self._limits)
        for judged in (queries.judgement(view, self._limits), queries.early_judgement(view, self._limits)):
            if judged.suspect == self._config.node_id:
                self._quarantine.accuse(judged.accusation)
        situation = decision.assess(view, self._limits, self._clock.monotonic())
        self._reporter.death(what, joined=member, final=situation.action == "fail")

    def _stop_workers(self, slots: Sequence[LocalSlot], everything: bool = False) -> None:
        """End the workers in `slots` for a restart."""
        for slot in slots:
            if slot.running and not slot.stopping and (everything or slot.state != "done" or slot.redoing):
                slot.stopping = True
                self._spawn_task(shutdown.stop(slot, self._config.shutdown_timeout_s))

    # ------------------------------------------------------------------------------------------ the end

    def _close_down(self, closed: Closed) -> None:
        if self._told.closed is None:
            self._told.closed = closed
            self._spawn_task(self._wind_up(closed))

    async def _wind_up(self, closed: Closed) -> None:
        """The job has ended: let workers finish, or stop them, and settle this node's outcome."""
        if closed.outcome == "failed":
            self._stop_workers(self._slots, everything=True)
        await shutdown.finish(self._slots, self._config.shutdown_timeout_s, succeeded=closed.outcome == "succeeded")
        first = self._failure_log.first(self._rendezvous.view.generation)
        self._end(shutdown.settled(closed, self._slots, first, self._failure_log.late))

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
        self._spawn_task(self._leave(number, shutdown.leave(self._slots, number, self._config.shutdown_timeout_s)))
        self._step()

    async def _leave(self, number: int, ending: Coroutine[Any, Any, None]) -> None:
        """Graceful end of this node: its workers finish their step (in place) or get the same signal."""
        await ending
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
        leaving = self._leaving is not None and not self._departures.settling(self._clock.monotonic())
        return self._node_record.record(current, leaving=leaving, stall=self._watchdog.stall)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(Outcome(code=6, reason=f"internal error: {type(error).__name__}: {error}"))
