"""Keep one place for a worker on this node: which process is in it, what that process last said, and how it ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilin._base import descriptors, log
from resilin._base.clock import SYSTEM, Clock
from resilin.elastic import control, failure
from resilin.elastic.agent.process_supervisor import Starting, Worker
from resilin.elastic.agent.streams import Plan, WorkerStreams
from resilin.elastic.failure import (
    LINE_CHARS,
    MESSAGE_CHARS,
    OTHERS_LINES,
    TAIL_LINES,
    TRACEBACK_CHARS,
    Failure,
    shorten,
)
from resilin.elastic.hangs import process_probe
from resilin.elastic.membership import early_failures
from resilin.elastic.records import Slot, SlotState
from resilin.elastic.spawn.program import Program
from resilin.elastic.spawn.spawner_client import Command

_log = log.logger("elastic.slots")
BEGUN_S = 10.0  # who lost the store it knew tries each second to reach the one in its place
_RETRY_S = 0.5  # of a start for which there was no descriptor


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Why a worker is ended that holds the others up."""

    complaint: str
    stack: str
    """Of all its threads; empty when it could not tell."""
    others: tuple[str, ...]
    """Where the other ranks are, line by line."""
    report: str
    """The file with all of it; empty: none is kept."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Record what a slot needs of its agent."""

    node_id: str
    host: str
    role: str
    program: Program
    plan: Plan
    supervisor: Starting
    inherited: Mapping[str, str]
    on_message: Callable[[LocalSlot, control.Message], None]
    on_end: Callable[[LocalSlot], None]
    clock: Clock = SYSTEM


class LocalSlot:
    """A slot and the process in it. `state` and its neighbours are what the node record shows."""

    def __init__(self, index: int, owner: Owner) -> None:
        self.index = index
        self._owner = owner
        self.state: SlotState = "idle"
        self.incarnation = 0
        self.started_at = 0.0  # monotonic
        self.stopped = 0  # the last incarnation that was ended on purpose
        self.endpoint = ""
        self.fault: str = ""
        self.worker: Worker | None = None
        self.streams: WorkerStreams | None = None
        self._former: list[WorkerStreams] = []  # of earlier processes, which have left some behind that may still write
        self.failure: Failure | None = None
        self.stopping = False  # asked to end for a restart: its end is no failure
        self.replace = False  # its last process failed and may be replaced
        self._variables: Callable[[str], dict[str, str]] = lambda error_file: {}
        self._told_of_lack = False  # of descriptors, for the present incarnation
        self.dismissed = False  # asked to end because the node is to take no part: the slot can be used again
        self._reset(rank=0, generation=0)

    def _reset(self, rank: int, generation: int) -> None:
        self.rank = rank
        self.generation = generation  # of the last world it was given, or was started for
        self.sent = 0  # number of the last world sent
        self.sent_at = 0.0  # when, monotonic
        self.entered = 0  # number of the last generation it has begun to form
        self.interrupted = 0  # number of the last generation in which it has lost others
        self.interrupted_by = ""  # what its error said
        self.taken_up = 0  # number of the last generation it said it works in
        self._ranks = {generation: rank}  # its rank in that one, and in those it was given since
        self.timeout_s = 0.0  # how long its program waits for a rank that does not answer; 0: for ever
        self.aborted = 0  # number of the last generation aborted
        self.pending = 0  # number of a later generation without it that waits for its commit, as it was told
        self.done_in = 0  # number of the generation it said it is done in
        self.limit = 0  # the size of the largest world its program has work for; 0: any
        self.standing_by = False  # it was told that there is no place for it now
        self.committed = 0  # the last step it committed; 0: none
        self.first_commit_at = 0.0  # monotonic; 0: it has committed none
        self.asked = ""  # why it is to end before the others; empty: it is not
        self.asked_at = self.leave_by = 0.0  # since when that is, and when it ends at the latest; monotonic
        self.may_leave = self.stays = False  # it was told so, in the world it works in
        self.leaves = ""  # why it ends before the others, as it said
        self.missed: tuple[int, ...] = ()  # ranks it waited for in vain
        self.missed_in = 0  # number of the generation these are of
        self.missed_at = ""  # what its error said
        self.waits_after = 0  # number of the last generation that has ended for it: it waits for the next one
        self.has_state = False  # it has worked on a step: what it has is the job's state
        self.left_out_of = 0  # number of the last generation in which it has no place
        self.parts: tuple[int, ...] = ()  # of divided state: the ranks whose parts it has
        self.parts_in = self.parts_of = 0  # the generation these are of, and how many ranks it had
        self.unanswered = ""  # it is being killed because others waited for it in vain: what their error said
        self.hang: Hang | None = None  # it is being killed because nobody went on, and that was its doing
        self.step: int | None = None
        self.at = ""
        self.report: Mapping[str, Any] = {}
        self.stopping = self.replace = self.dismissed = False
        self.endpoint = ""
        self.failure = None

    @property
    def running(self) -> bool:
        """Return whether a process is in it, whatever its state."""
        return self.worker is not None and self.worker.alive

    @property
    def has_committed(self) -> bool:
        """Return whether its process lives and has committed a step."""
        return self.running and self.first_commit_at > 0.0

    @property
    def has_begun(self) -> bool:
        """Return whether what its process has trained is worth more than to begin anew with others' state."""
        return self.has_committed and self._owner.clock.monotonic() >= self.first_commit_at + BEGUN_S

    @property
    def flights(self) -> Path:
        """Return where the flight recorders of its processes are; see `environment.variables`."""
        assert self.streams is not None
        return Path(self._owner.inherited.get("RESILIN_TRACE_DIR") or self.streams.error_file.parent)

    @property
    def known_as(self) -> tuple[int, int]:
        """Its rank as people know it, and the generation of that: the last one it has worked in, if it has in any."""
        return self._ranks.get(self.taken_up, self.rank), self.taken_up or self.generation

    @property
    def redoing(self) -> bool:
        """See `records.Slot.redoing`."""
        return self.record.redoing

    @property
    def record(self) -> Slot:
        """The slot as the store shows it."""
        return Slot(
            index=self.index,
            incarnation=self.incarnation,
            state=self.state,
            endpoint=self.endpoint,
            pid=self.worker.pid if self.worker is not None and self.worker.alive else 0,
            ended=self.worker.pid if self.worker is not None and self.state == "done" and not self.endpoint else 0,
            fault="" if self.state != "failed" else "own" if self.fault == "own" else "external",
            limit=self.limit,
            done_in=self.done_in,
            over=self.aborted if self.aborted >= self.generation or self.done_in else 0,
            stopped=self.stopped,
            asked=self.leaves if self.state == "left" else "",
            committed=self.committed if self.state == "left" else 0,
            missed=self.missed,
            missed_in=self.missed_in,
            missed_worked=0 < self.missed_in == self.taken_up,
            missed_at=self.missed_at,
            has_state=self.has_state,
            left_out_after=self.taken_up if self.has_state and self.taken_up < self.left_out_of else 0,
            parts=self.parts,
            parts_in=self.parts_in,
            parts_of=self.parts_of,
            leaving=bool(self.asked) and self.state in ("running", "ready"),
        )

    # --------------------------------------------------------------------------------------- starting

    def start(self, incarnation: int, rank: int, generation: int, variables: Callable[[str], dict[str, str]]) -> None:
        """Start a fresh process. `variables` makes its environment from the path of its error file.

        Where no descriptor is left for it, that is said, and tried again until there is one.
        """
        self._prepare(incarnation, rank, generation)
        self._variables, self._told_of_lack = variables, False
        self._try(incarnation)

    def _try(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.running:
            return  # another one has been wanted meanwhile
        try:
            self._launch(self._variables)
        except OSError as error:
            if not descriptors.are_gone(error):
                raise
            self._try_later(error)

    def _try_later(self, error: OSError) -> None:
        if self.streams is not None:
            self.streams.close()
        if not self._told_of_lack:
            self._told_of_lack = True
            what = "no file descriptor is left to start a worker: tried until there is"
            log.event(_log, 40, what, slot=self.index, error=error.strerror, advice=descriptors.ADVICE)
        self.state = "running"  # as good as: others wait for it as for one that has been started
        asyncio.get_running_loop().call_later(_RETRY_S, self._try, self.incarnation)

    def _launch(self, variables: Callable[[str], dict[str, str]]) -> None:
        owner = self._owner
        self.streams = None
        self.streams = owner.plan.open(
            self.incarnation - 1, self.index, owner.role, owner.host, lambda: (self.index, self.known_as[0])
        )
        program = owner.program
        command = Command(
            argv=program.command,
            program=program.argv if program.warm else (),
            module=program.module,
            env={**owner.inherited, **variables(str(self.streams.error_file))},
            stdout=self.streams.fd("stdout"),
            stderr=self.streams.fd("stderr"),
        )
        worker = owner.supervisor.start(command, lambda message: self._said(worker, message))
        self.streams.started()
        self._adopt(worker)

    def _prepare(self, incarnation: int, rank: int, generation: int) -> None:
        former = (*self._former, *([self.streams] if self.streams is not None else ()))
        self._former = [each for each in former if each.open]
        self._reset(rank, generation)
        self.incarnation, self.started_at = incarnation, self._owner.clock.monotonic()

    def _adopt(self, worker: Worker) -> None:
        self.state = "running"
        self.worker = worker
        worker.ended.add_done_callback(lambda _: self._ended(worker))

    # ---------------------------------------------------------------------------------------- running

    def place(self, rank: int, generation: int) -> None:
        """The process is `rank` in a new generation."""
        self.rank, self.generation = rank, generation
        self._ranks[generation] = rank

    def _said(self, worker: Worker, message: control.Message) -> None:
        if worker is not self.worker:
            return
        if isinstance(message, control.Progress):
            self.step, self.at = message.step, message.at
            self.taken_up = self.entered = message.generation
            self.has_state = True
            if message.parts_of:
                self.parts, self.parts_in, self.parts_of = message.parts, message.generation, message.parts_of
            self._ranks = {number: rank for number, rank in self._ranks.items() if number >= self.taken_up}
        elif isinstance(message, control.Entering):
            self.entered = message.generation
        elif isinstance(message, control.Interrupted):
            self.interrupted = message.generation
            self.interrupted_by = shorten(message.reason.partition(". ")[0], LINE_CHARS)  # without the advice
        elif isinstance(message, control.Committed):
            self.step, self.at = message.step + 1, ""
            self.first_commit_at = self.first_commit_at or self._owner.clock.monotonic()
            self.committed = message.step
        elif isinstance(message, control.Waiting):
            self.waits_after, self.may_leave, self.stays = message.generation, False, False
        elif isinstance(message, control.Leaving):
            self.stays = False  # asked again, it waits for an answer again
        elif isinstance(message, control.Left):
            self.leaves = message.reason
        elif isinstance(message, control.Failed):
            self.report = message.report
        elif isinstance(message, control.Stuck) and not self.unanswered:
            self.missed, self.missed_in = message.ranks, message.generation
            self.missed_at = shorten(message.reason.partition(". ")[0], LINE_CHARS)  # without the advice
        elif isinstance(message, control.Hello):
            self.endpoint, self.limit, self.timeout_s = message.endpoint, message.limit, message.timeout_s
            self.state = "ready"
            if self.streams is not None:
                self.streams.started()
        self._owner.on_message(self, message)

    def send(self, message: control.Message) -> None:
        """Send to the process, if there is one."""
        if self.worker is not None and self.worker.alive:
            self.worker.send(message)

    def ask_to_leave(self, reason: str, grace_s: float) -> None:
        """The process is to end before the others, within `grace_s`: `Departures` tells it when it may."""
        if not self.asked:
            self.asked, self.asked_at = reason, self._owner.clock.monotonic()
            self.leave_by = self.asked_at + grace_s

    def kill_unresponsive(self, complaint: str) -> None:
        """Kill the process: others waited for it in vain, and `complaint` is what the error of one of them said."""
        if self.worker is not None and self.worker.alive and not self.unanswered:
            self.unanswered = complaint or "others waited for it in vain"
            self.worker.kill(signal.SIGKILL)

    def end_hung(self, hang: Hang) -> None:
        """Kill the process: nobody goes on, and that is its doing."""
        if self.worker is not None and self.worker.alive and not self.unanswered:
            self.hang = hang
            self.kill_unresponsive(shorten(hang.complaint, LINE_CHARS))

    # ----------------------------------------------------------------------------------------- ending

    def close(self) -> None:
        """No process of this slot is left, nor any that one has started: show and store what they wrote last."""
        for streams in (*self._former, *([self.streams] if self.streams is not None else ())):
            streams.close()

    def _ended(self, worker: Worker) -> None:
        if worker is not self.worker or worker.code is None:
            return
        if worker.refused is not None and descriptors.are_gone(worker.refused) and not self.stopping:
            self._try_later(worker.refused)
            return
        if self.streams is not None:
            self.streams.ended()
        if self.stopping:
            self.stopped = self.incarnation
        if self.stopping or (self.dismissed and worker.code == 0):
            self.state = "idle"
        elif worker.code == 0:
            self.state = "left" if self.state == "ready" or self.leaves else "done"
        else:
            self.state = "failed"
            self.failure = self._describe(worker)
            # a worker that raised may still be killed on its way out: its own words count
            self.fault = "own" if self.report else failure.fault_of(worker.code)
        self._owner.on_end(self)

    def _describe(self, worker: Worker) -> Failure:
        streams, owner = self.streams, self._owner
        assert streams is not None
        assert worker.code is not None
        tail, hang = streams.tail(), self.hang
        hang_stack = hang.stack if hang is not None else ""
        told: Mapping[str, Any] = self.report or failure.read_error_file(streams.error_file)
        if not told and worker.code == 1:  # as Python ends when nothing catches an exception
            told = failure.guess_exception(tail)
        if worker.refused is not None:
            told = {"type": "OSError", "message": f"cannot run {owner.program.command[0]}: {worker.refused.strerror}"}
        untold = not streams.stderr_shown or (worker.code > 0 and not told)
        step = told.get("step", self.step)
        at = told.get("at", self.at)
        if not at and worker.code < 0 and not self.unanswered:  # it could not say itself where it was
            at = process_probe.inside(self.flights, worker.pid)
        lived_s = owner.clock.monotonic() - self.started_at
        early = not self.endpoint and worker.code > 0 and not self.unanswered and lived_s < early_failures.SOON_S
        rank, generation = (
            _number(told.get(name), known) for name, known in zip(("rank", "generation"), self.known_as, strict=True)
        )
        return Failure(
            rank=rank,
            became=self.rank if self.rank != rank else None,
            local_rank=self.index,
            node=owner.node_id,
            host=owner.host,
            pid=worker.pid,
            generation=generation,
            code=worker.code,
            step=step if isinstance(step, int) else None,
            at=shorten(str(at), LINE_CHARS),
            type=shorten(str(told.get("type", "")), LINE_CHARS),
            message=shorten(str(told.get("message", "")), MESSAGE_CHARS),
            traceback=shorten(str(told.get("traceback", "")) or hang_stack, TRACEBACK_CHARS),
            others=hang.others[:OTHERS_LINES] if hang is not None else (),
            hang_report=hang.report if hang is not None else "",
            log_tail=tuple(shorten(line, LINE_CHARS) for line in tail[-TAIL_LINES:]) if untold else (),
            shown=streams.stderr_shown,
            kept=streams.stderr_kept,
            unanswered=self.unanswered,
            overdue=bool(self.unanswered) and hang is None,
            entering=bool(told.get("entering")),
            early=failure.place_of(str(told.get("type", "")), str(told.get("traceback", ""))) if early else "",
            worked_in=self.taken_up,
            log_dir=str(streams.folder) if owner.plan.keep else "",
            wall=owner.clock.wall(),
        )


def _number(told: object, otherwise: int) -> int:
    return told if isinstance(told, int) else otherwise
