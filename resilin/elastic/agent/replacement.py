"""Keep the slots of one node filled in a program that recovers in place: replacements, what they are forked from, an
invited node's first workers. Used in the agent's loop only; starts processes, decides nothing about the world."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilin._base import descriptors, log
from resilin.elastic.agent.config import AgentConfig
from resilin.elastic.agent.process_supervisor import Starting
from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.membership import queries, scaling, world_spec
from resilin.elastic.membership.backoff import Backoff
from resilin.elastic.membership.view import Config, View
from resilin.elastic.records import Generation
from resilin.elastic.spawn import environment

_log = log.logger("elastic.filling")


class Replacement:
    """Fills `slots`, those of the node of `config`."""

    def __init__(self, config: AgentConfig, slots: Sequence[LocalSlot], supervisor: Starting) -> None:
        self._config = config
        self._slots = slots
        self._supervisor = supervisor
        self._prepared = config.program.early  # the launcher asked for it
        self._rows = [Backoff() for _ in slots]  # of workers that fail soon after their start
        self._not_before = [0.0] * len(slots)  # monotonic

    def variables(self, place: environment.WorkerPlace) -> Callable[[str], dict[str, str]]:
        """Return what makes a worker's variables from the path of its error file."""
        return lambda error_file: environment.variables(place, self._config.job, self._config.inherited, error_file)

    def fill(self, view: View, limits: Config, now: float) -> tuple[bool, float | None]:
        """Start what is missing, and say whether something was.

        Also when to come back for a replacement that has to wait, because those before it failed soon.
        """
        current, node_id = view.generation, self._config.node_id
        if current is None or not queries.recovers_in_place(view) or scaling.is_dismissed(view, limits, node_id):
            return False, None
        is_invited = node_id in queries.invited(view, limits)
        stopped = {  # for a restart that was due until another one said hello
            m.slot for m in current.members if m.node == node_id and queries.fate(view, m) == "stopped"
        }
        started, held = False, []
        for slot in self._slots:
            wanted = slot.replace or (slot.state == "idle" and (is_invited or slot.index in stopped))
            if not wanted or slot.running:
                continue
            if now < self._not_before[slot.index]:
                held.append(self._not_before[slot.index])
                continue
            self._start(slot, current)
            started = True
        return started, min(held, default=None)

    def _start(self, slot: LocalSlot, current: Generation) -> None:
        slot.replace = False
        place = world_spec.provisional_place(current, self._config.node_id, slot.index, self._config.workers)
        rank = slot.rank if slot.incarnation else place.rank  # likely the place of the one before
        slot.start(slot.incarnation + 1, rank, current.number, self.variables(place))

    def keep_template(self, current: Generation | None) -> None:
        """Have what replacements are forked from while restarts are left. Only once: one that fails would again."""
        if self._prepared or current is None or not self._config.program.warm:
            return
        if current.restarts_used < self._config.membership.max_restarts:
            self._prepared = True
            try:
                self._supervisor.prepare(self._config.program.template(self._config.inherited))
            except OSError as error:  # without it they are executed, which takes longer
                if not descriptors.are_gone(error):
                    raise
                what = "no file descriptor is left to prepare the start of replacements"
                log.event(_log, 30, what, error=error.strerror, advice=descriptors.ADVICE)

    def retire(self) -> None:
        """Nothing is started here for now: keep no process for it."""
        if self._prepared:
            self._prepared = False
            self._supervisor.retire()

    def failed(self, slot: LocalSlot, *, joined: bool, now: float) -> None:
        """The process in `slot` failed; `joined`: as a member of a generation. One that never was had no life."""
        if slot.fault == "own":
            lived_s = now - slot.started_at if joined else 0.0
            self._not_before[slot.index] = now + self._rows[slot.index].failed(lived_s)
