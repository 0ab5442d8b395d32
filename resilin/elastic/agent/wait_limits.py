"""Say once after a while whom and what an agent waits for, and decide when it gives up. No clock, no I/O.

only failures that follow from another    ──CAUSE_SETTLE_S──> that one has not ended by itself: go on without it
too few nodes         ──some seconds──> "waiting for 1 more node at HOST:PORT"    ──join_timeout──> this node gives up
the store is away     ──at once──> "the store does not answer"                    ──outage_timeout──> this node gives up
the store is away, and all are done here  ──TELL_S──> the job ends without it, if nobody else has a part in it
a rank without hello  ──some seconds──> "waiting for rank 1 (host, pid)"  ──join_timeout──> the job is closed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilin.elastic.agent.config import Outcome
from resilin.elastic.membership import queries, world_spec
from resilin.elastic.membership.view import Situation, View
from resilin.elastic.records import Closed, GenerationMember
from resilin.elastic.rendezvous.retry_queue import Outage
from resilin.errors import RendezvousTimeout, StoreTimeout

NOTICE_S = 5.0  # shorter waits are normal: programs import and load for as long
CAUSE_SETTLE_S = 1.0  # a rank that raised may take longer to end than its peers to hear that it left them
TELL_S = 5.0  # for so long a store that went away may be back to be told that the job has succeeded
QUIET_FACTOR = 5  # a step may be long: silence alone, without a store, is borne longer than a known need for a change
_NAMES_SHOWN = 4
_ADVICE = (
    "; the store at {place} is in the memory of the node that serves it: if that was lost, so are the job's records, "
    "and the others cannot tell whether it goes on beyond a cut. Start the job again, from its checkpoint; to survive "
    "the loss of any node let them meet in an etcd (--rdzv-backend etcd --rdzv-endpoint HOST:PORT,...), or in "
    "`resilin store serve` on a machine that does not train"
)


@dataclass
class _Wait:
    """One reason to wait. `key` tells it from the one before."""

    key: int = 0  # 0: none
    since: float = 0.0
    told: bool = False

    def at(self, key: int, now: float) -> None:
        if key != self.key:
            self.key, self.since, self.told = key, now, False


class WaitLimits:
    """Remembers since when what is waited for, and what was said of it.

    say:              takes a line for people
    join_timeout_s:   how long a worker may be on its way to its first world while others are there
    outage_timeout_s: how long a needed change of the world may wait for a store that is away
    meeting:          where nodes meet, for people; may be empty
    hosted:           the store is one process's memory, see `AgentConfig`
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        join_timeout_s: float,
        outage_timeout_s: float,
        min_nodes: int,
        meeting: str,
        hosted: bool = False,
    ) -> None:
        self._say = say
        self._join_timeout_s = join_timeout_s
        self._outage_timeout_s = outage_timeout_s
        self._min_nodes = min_nodes
        self._waiting_since: float | None = None  # for nodes
        self._away_since: float | None = None  # the store, as far as people were told
        self._meeting = meeting
        self._advice = _ADVICE.format(place=meeting) if hosted else ""
        self._nodes, self._ranks, self._cause, self._change = _Wait(), _Wait(), _Wait(), _Wait()

    def join_outage(self, error: str) -> None:
        """The store went away while this node joined the job."""
        place = f" at {self._meeting}" if self._meeting else ""
        self._say(
            f"the store{place} does not answer: this node joins when it does, and gives up after "
            f"{self._outage_timeout_s:g} s ({error})"
        )

    def look(self, view: View, situation: Situation, now: float) -> tuple[float | None, Closed | None]:
        """Return when to look again, and the job's end, if it is time for it. `now`: monotonic, in seconds."""
        members = queries.awaited(view) if situation.action == "steady" else ()
        number = view.generation.number if view.generation is not None else 0
        self._ranks.at(number if members else 0, now)
        self._nodes.at(1 if situation.action == "wait" and situation.until is None else 0, now)
        until = [self._notice(self._nodes, now, lambda: self._nodes_wanted(view, situation))]
        if not members:
            return until[0], None
        who = _names(view, members)
        until.append(self._notice(self._ranks, now, lambda: f"waiting for {who} to enter @elastic.run"))
        end = self._ranks.since + self._join_timeout_s
        if now < end:
            return min(at for at in (*until, end) if at is not None), None
        reason = (
            f"gave up after {self._join_timeout_s:g} s: {who} did not enter @elastic.run, where the others wait; "
            "find out what the program does before it there, or allow more time with --rdzv-conf join_timeout=SECONDS"
        )
        return None, Closed(outcome="failed", reason=reason, code=4)

    def cause(self, view: View, situation: Situation, now: float) -> float | None:
        """Until when workers are left alone, so that the one whose end was the cause of others' can say what it was."""
        due = situation.action in ("stop", "fail") and world_spec.unexplained(view)
        self._cause.at(view.generation.number if due and view.generation is not None else 0, now)
        until = self._cause.since + CAUSE_SETTLE_S
        return until if self._cause.key and now < until else None

    def alone(
        self, view: View, situation: Situation, away: Outage | None, node_id: str, now: float
    ) -> tuple[float | None, Closed | None]:
        """Return when to look again, and the end of a job that has succeeded here, needs nobody else, and cannot say
        so."""
        if away is None or situation.action != "succeed" or not queries.ends_alone(view, node_id):
            return None, None
        if now < away.since + TELL_S:
            return away.since + TELL_S, None
        self._say(
            "all workers are done, and nobody else has a part in the job: it ends here, "
            f"though the store could not be told ({away.error})"
        )
        return None, Closed(outcome="succeeded", reason=situation.reason)

    def patience(
        self, situation: Situation, away: Outage | None, last_commit: float, now: float, broken: str = ""
    ) -> tuple[float, Outcome] | None:
        """Until when this situation is borne, and how the job ends here then; None: for ever.

        away: the store's silence. last_commit: of a worker here, 0: none was. broken: why the workers here cannot go on
        in their world, though nobody has heard of a loss. All times monotonic, in seconds.
        """
        if situation.action != "wait":
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        self._tell_outage(away, last_commit, now)
        needed = broken if situation.action == "steady" else situation.reason
        self._change.at(int(bool(needed)), now)
        if away is not None:
            steady = not needed
            if steady and not last_commit:
                return None  # a plain program: as long as its workers live, it may well be training
            limit_s = self._outage_timeout_s * (QUIET_FACTOR if steady else 1)
            begin = max(away.since, last_commit if steady else self._change.since)
            what = "no step was committed" if steady else needed
            text = f"gave up after {limit_s:g} s: the store does not answer, and {what} ({away.error}){self._advice}"
            return begin + limit_s, Outcome(code=3, reason=text, error=StoreTimeout(text))
        if self._waiting_since is not None:
            text = f"gave up after {self._join_timeout_s:g} s: {situation.reason}"
            outcome = Outcome(code=4, reason=text, error=RendezvousTimeout(text))
            return self._waiting_since + self._join_timeout_s, outcome
        return None

    def _tell_outage(self, away: Outage | None, last_commit: float, now: float) -> None:
        """Say once that the store went away, and for how long the job bears that; and once that it is back."""
        if away is not None and self._away_since is None:
            place = f" at {self._meeting}" if self._meeting else ""
            limit_s = self._outage_timeout_s
            commits = f", or after {QUIET_FACTOR * limit_s:g} s without a commit" if last_commit else ""
            self._say(
                f"the store{place} does not answer: training goes on without it; this node gives up "
                f"after {limit_s:g} s in which the world has to change{commits}"
            )
            self._away_since = away.since
        elif away is None and self._away_since is not None:
            self._say(f"the store answers again, after {now - self._away_since:.0f} s")
            self._away_since = None

    def _notice(self, wait: _Wait, now: float, text: Callable[[], str]) -> float | None:
        """Say `text` once it is time; until then, when that is."""
        if not wait.key or wait.told:
            return None
        at = wait.since + min(NOTICE_S, self._join_timeout_s / 2)
        if now < at:
            return at
        wait.told = True
        self._say(text())
        return None

    def _nodes_wanted(self, view: View, situation: Situation) -> str:
        missing = max(1, self._min_nodes - sum(not seen.node.leaving for seen in view.nodes))
        place = f" at {self._meeting}" if self._meeting else ""
        return f"waiting for {missing} more node{'s' if missing != 1 else ''}{place} ({situation.reason})"


def _names(view: View, members: Sequence[GenerationMember]) -> str:
    """ "rank 1 (host a, pid 17), rank 2 (host b, pid 4)": the first few, and how many more."""
    found = []
    for member in members[:_NAMES_SHOWN]:
        node = view.node(member.node)
        pid = node.slots[member.slot].pid if node is not None else 0
        where = f"host {node.host}" if node is not None else f"node {member.node}"
        found.append(f"rank {member.rank} ({where}, {f'pid {pid}' if pid else 'not started yet'})")
    more = len(members) - len(found)
    return ", ".join(found) + (f" and {more} more" if more else "")
