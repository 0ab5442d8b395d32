"""Count failures at one and the same step: a fault of that step, which restarts would only meet again. Pure.

So are failures on the way into a new world, at whatever step: of the state that is taken over, or of the program.

While all of them were on one node, and the others can do without it, they speak against that node
(`Judgement.suspect`): it goes first (`exclusion`), and the step is to blame when it fails on another one, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from resilin.elastic import failure
from resilin.elastic.membership.view import Config
from resilin.elastic.records import Generation

ENTERING = -2  # stands for a step: between those of two generations
_NODES = 2  # so many are remembered: what matters is whether it was more than one


class Tally(NamedTuple):
    """Failures at one step. `step`: -1 is none, or `ENTERING`."""

    step: int = -1
    times: int = 0
    """How many generations in a row ended by a failure at it."""
    nodes: tuple[str, ...] = ()
    """Where its workers failed: one node, or two of those that it were."""
    last: int = 0
    """The generation of the last one that was counted: that its worker worked in, or that it was about to enter."""


class Judgement(NamedTuple):
    """At most one of the two, while both may be empty."""

    verdict: str = ""
    """Why the job ends: the step is to blame."""
    suspect: str = ""
    """The node that is to go first: all failures were on it, and the others are enough to take over."""
    accusation: str = ""
    """Why it goes."""


def tally(current: Generation, failures: Iterable[Mapping[str, Any]]) -> Tally:
    """Count what `current` has counted, and these `failures` of it, as `Failure.to_json` tells them.

    Only a worker's own doing counts (an exception, an exit status, SIGSEGV): a kill may hit any step. What another
    failure has caused does not: it says nothing of the step, nor of the node.
    Several workers that fail in one generation count once, though `current` is the next one by then. Their nodes count
    all the same. And one that fails while others are still to join counts, though it never worked in `current`.
    Without such a failure it stays what it was: nodes may come and go between two failures of one step. But where some
    joined `current`, and nobody failed on the way, entering it has not failed in a row.
    """
    known = Tally(current.failed_step, current.failed_times, current.failed_on, current.failed_in)
    told = list(failures)
    causes = [body for body in told if not failure.follows(body)] or told
    own = [(body, step) for body in causes if (step := _step(body)) is not None and _is_own(body)]
    where: dict[int, set[str]] = {}
    last = known.last
    for body, step in own:
        number = int(body.get("generation" if step == ENTERING else "worked_in") or 0)
        if number > known.last:
            where.setdefault(step, set()).add(str(body["node"]))
            last = max(last, number)
    if known.step == ENTERING and current.fresh and ENTERING not in where:
        known = Tally(last=known.last)
    late = {str(body["node"]) for body, step in own if step == known.step}  # with those that were counted, at least
    before = known if not where or known.step in where else Tally(min(where))
    nodes = sorted({*before.nodes, *(late if before is known else ()), *where.get(before.step, ())})
    return Tally(before.step, before.times + bool(where), tuple(nodes[:_NODES]), last)


def judge(
    current: Generation, failures: Iterable[Mapping[str, Any]], staying: Collection[str], config: Config
) -> Judgement:
    """Judge what these failures of `current` come to, if its step has now failed again as often as it may.

    staying: the ids of all nodes that take part, or could, and are not about to go.
    """
    found = tally(current, failures)
    news = found.times > current.failed_times or found.step != current.failed_step
    if not news or not 0 < config.max_step_failures <= found.times:
        return Judgement()
    told, fault = f"step {found.step} has failed", "that step, its data"
    if found.step == ENTERING:
        told = "entering a new world (going back to the last commit, connecting, taking the state over) has failed"
        fault = "the state"
    told += f" {found.times} times in a row"
    others = len(set(staying) - set(found.nodes))
    if len(found.nodes) == 1 and others >= max(1, config.min_nodes):
        return Judgement(suspect=found.nodes[0], accusation=f"{told}, each time on this node")
    return Judgement(
        verdict=f"{told}: the fault is of {fault} or the program, and not of {_not_of(found, others)}, so "
        "restarts would only meet it again (--max-step-failures allows more)"
    )


def _not_of(found: Tally, others: int) -> str:
    if len(found.nodes) > 1:
        return f"a machine (it failed on {' and '.join(found.nodes)}) or a moment"
    return f"a moment (or of node {found.nodes[0]}, which the job cannot do without)" if others else "a moment"


def _step(body: Mapping[str, Any]) -> int | None:
    if body.get("entering"):
        return ENTERING
    step = body.get("step")
    return step if isinstance(step, int) else None


def _is_own(body: Mapping[str, Any]) -> bool:
    return bool(body.get("type")) or failure.fault_of(int(body.get("code", 0))) == "own"
