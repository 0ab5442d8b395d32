"""Judge a job that was disturbed: recovered, the same bits, a whole ledger, and was the right one blamed?

Attribution looks at what people see: the lines that `elastic-run` prints. A fault of a worker is attributed when the
first line about a death after it, on that worker's node, names its rank and process, and its cause; and when nobody
who was not hit is ever reported dead. Of a hang the cause is named by the watchdog alone: what the timeout of a group
has ended was not noticed. Where a link was cut, that a worker did not answer is no such report. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from resilin.elastic.chaos.records import Fired, Result
from resilin.elastic.chaos.schedule import KINDS, TIMED_OUT, Fault, Schedule
from resilin.elastic.ledger import LedgerVerdict

_DEATH = re.compile(
    r"elastic-run: (?:worker died|job failed|interrupted): rank (\d+) \((?:host [^,]+, )?pid (\d+)\) (.*)"
    r"|elastic-run: a replacement \(pid (\d+)\) (.*)"
)
_LEFT = re.compile(r"elastic-run: rank (\d+) (left \(.*\))")


@dataclass(frozen=True, kw_only=True)
class Blame:
    """A line about a worker's end."""

    line: str
    rank: int | None
    """None: of a replacement that had none yet."""
    pid: int | None
    """None: of one that left as it was asked to."""
    how: str


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Record what was said of one fault."""

    fired: Fired
    fault: Fault
    rank_named: bool
    cause_named: bool
    line: str = ""
    """Where it was looked for; empty: there is no such line."""
    timed_out: bool = False
    """A hang that only the timeout of its group has ended: it was not named, whatever the line says."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A disturbed job that has ended."""

    schedule: Schedule
    codes: tuple[int | None, ...]
    """Exit code of each node's last `elastic-run`; None: it had to be ended."""
    said: tuple[str, ...]
    """What each node's `elastic-run` printed."""
    agents: tuple[tuple[int, ...], ...]
    """The processes of each node's agents, oldest first."""
    fired: tuple[Fired, ...]
    results: tuple[Result, ...]
    counted: LedgerVerdict | None
    """What the ledger says; None: there is none."""
    seconds: float
    unreadable: tuple[str, ...] = ()
    """Lines of the ledger that are no entries, such as what a full disk took of one; the others were judged."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Hold what is to be said of a run."""

    run: Run
    recovered: bool
    """Whether training was brought to its end."""
    same: bool | None
    """Whether all workers ended with the expected fingerprint; None: they have none to compare."""
    counted: bool | None
    """Whether every sample counted once; None: there is no ledger."""
    attributions: tuple[Attribution, ...]
    """Of the faults that are failures of workers (or of agents whose end others see)."""

    @property
    def ok(self) -> bool:
        """Return whether nothing is wrong with the training itself."""
        return self.recovered and self.same is not False and self.counted is not False

    @property
    def disturbed(self) -> bool:
        """Return whether a fault came about, if there was to be any: otherwise the run has shown nothing."""
        return bool(self.run.fired) or not self.run.schedule.faults

    @property
    def attributed(self) -> bool:
        """Return whether every failure was put down to the right one, for the right cause."""
        return all(one.rank_named and one.cause_named for one in self.attributions)


def judge(run: Run, expected: str | None) -> Judgement:
    """`expected`: the fingerprint of the undisturbed run; None: any, as long as all workers agree."""
    ended = [result.fingerprint for result in run.results]
    recovered = any(code == 0 for code in run.codes) and None not in run.codes
    return Judgement(
        run=run,
        recovered=recovered,
        same=(set(ended) == {expected or ended[0]}) if ended else None,
        counted=run.counted.ok if run.counted is not None else None,
        attributions=tuple(attribute(run)),
    )


def attribute(run: Run) -> list[Attribution]:
    """Find what the reports say of each fault that has happened to a worker or an agent."""
    hit = {one.pid for one in run.fired if run.schedule.faults[one.fault].to == "worker"}
    lines = [[line for line in blames(text) if not _follows_from_outage(line, hit, run)] for text in run.said]
    innocent = [blame.line for node in lines for blame in node if blame.pid is not None and blame.pid not in hit]
    found = []
    taken: list[set[int]] = [set() for _ in lines]  # per node: lines that are another fault's
    for one in run.fired:
        fault = run.schedule.faults[one.fault]
        if fault.to == "worker":
            found.append(_of_worker(one, fault, lines[one.node], hit, taken[one.node], innocent))
        elif (
            fault.to in ("agent", "host") and fault.do == "kill" and len(run.said) > 1
        ):  # else nobody is left to say it
            found.append(_of_agent(one, fault, run))
    return found


def _follows_from_outage(line: Blame, hit: Collection[int], run: Run) -> bool:
    """Whether it is about a worker that nobody hit, and was beyond a link that was cut: one of two sides has to end."""
    cuts = [run.schedule.faults[one.fault] for one in run.fired]
    reports = [KINDS[fault.do].report for fault in cuts if KINDS[fault.do].group == "outage"]
    return line.pid is not None and line.pid not in hit and any(re.search(each, line.how) for each in reports)


def blames(said: str) -> list[Blame]:
    """The lines about ends of workers, in order."""
    found = []
    for line in said.splitlines():
        if match := _DEATH.search(line):
            rank, pid, how, spare, spare_how = match.groups()
            found.append(Blame(line=line, rank=_number(rank), pid=int(pid or spare), how=how or spare_how))
        elif match := _LEFT.search(line):
            found.append(Blame(line=line, rank=int(match[1]), pid=None, how=match[2]))
    return found


def _of_worker(
    one: Fired, fault: Fault, lines: Sequence[Blame], hit: set[int], taken: set[int], innocent: Sequence[str]
) -> Attribution:
    for place, blame in enumerate(lines):
        if place in taken or (blame.pid is not None and blame.pid in hit - {one.pid}):
            continue  # another fault's
        if blame.pid is None and KINDS[fault.do].group != "leave":
            continue
        taken.add(place)
        is_it = blame.pid == one.pid if blame.pid is not None else blame.rank == one.rank
        return Attribution(
            fired=one,
            fault=fault,
            rank_named=is_it and blame.rank in (one.rank, None) and not innocent,
            cause_named=is_it and re.search(KINDS[fault.do].report, blame.how) is not None,
            line=blame.line,
            timed_out=is_it and KINDS[fault.do].group == "hang" and re.search(TIMED_OUT, blame.how) is not None,
        )
    return Attribution(fired=one, fault=fault, rank_named=False, cause_named=False, line=next(iter(innocent), ""))


def _of_agent(one: Fired, fault: Fault, run: Run) -> Attribution:
    """A lost node is named by the others, or by the one in its place: its name holds its agent's process."""
    others = "\n".join(text for node, text in enumerate(run.said) if node != fault.node or fault.to == "host")
    agents = "|".join(map(str, run.agents[fault.node]))
    lost = re.search(rf"elastic-run: node \S+-({agents})-\S+ is gone, and with it ranks? [\d, ]+", others)
    if lost is None and fault.to == "host":  # who hears of its end and of the next world at once says it in one line
        lost = re.search(r"elastic-run: generation \d+: .*\(.*ranks? [\d, ]+ lost with a node.*\)", others)
    named = lost is not None
    return Attribution(fired=one, fault=fault, rank_named=named, cause_named=named, line=lost[0] if lost else "")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


def as_json(found: Judgement) -> dict[str, Any]:
    """The judgement for programs, and for `tally`."""
    return {
        "seed": found.run.schedule.seed,
        "ok": found.ok,
        "recovered": found.recovered,
        "same": found.same,
        "counted": found.counted,
        "unreadable": found.run.unreadable,
        "attributed": found.attributed,
        "seconds": round(found.run.seconds, 3),
        "codes": found.run.codes,
        "faults": [asdict(fault) for fault in found.run.schedule.faults],
        "fired": [one.fault for one in found.run.fired],
        "attributions": [
            {
                "fault": one.fired.fault,
                "rank": one.rank_named,
                "cause": one.cause_named,
                "timed_out": one.timed_out,
                "line": one.line,
            }
            for one in found.attributions
        ],
    }


@dataclass
class Tally:
    """Counts of one kind of fault, of runs in which it came about."""

    runs: int = 0
    recovered: int = 0
    same: int = 0
    counted: int = 0
    reports: int = 0
    """Faults of this kind that somebody had to be named for."""
    rank_named: int = 0
    cause_named: int = 0
    timed_out: int = 0
    """Hangs that only the timeout of their group has ended; they are not among the named."""


def tally(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Tally]:
    """Counts by "what whom", as in "kill worker", of rows of `as_json`. A run counts once for each kind in it."""
    table: dict[str, Tally] = {}
    for row in rows:
        names = [f"{fault['do']} {fault['to']}" for fault in row["faults"]]
        for name in {names[number] for number in row["fired"]}:
            line = table.setdefault(name, Tally())
            line.runs += 1
            line.recovered += row["recovered"]
            line.same += row["same"] is True
            line.counted += row["counted"] is True
        for told in row["attributions"]:
            line = table[names[told["fault"]]]
            line.reports += 1
            line.rank_named += told["rank"]
            line.cause_named += told["cause"]
            line.timed_out += told.get("timed_out", False)
    return dict(sorted(table.items()))
