"""Count errors that the program raises at one and the same line before `@elastic.run` begins, or without it. Pure.

Such an error says nothing of a step (`repeated_failures`), nor of state: the next process would read the same line.
Each node counts those of its own workers, start by start, and tells in its record; those of all nodes are put together
here. A slot whose process gets past that line begins anew, and so does one that fails at another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from resilin.elastic.membership.repeated_failures import Judgement
from resilin.elastic.membership.view import Config
from resilin.elastic.records import EarlyFailures, Node

SOON_S = 600.0  # who lived for longer has trained, without `@elastic.run`: its line is no matter of the start
_STARTS = 16  # so many are remembered: more than anybody allows


def counted(known: EarlyFailures | None, place: str, slot: int, generation: int) -> EarlyFailures:
    """`known`, and that a process of `slot`, started in `generation`, has raised an error at `place`.

    Processes that were started together count once; a slot that fails again has been started again.
    """
    if known is None or known.place != place:
        return EarlyFailures(place=place, starts=((generation, 1),), slots=(slot,), latest=(slot,))
    (last, times), slots = known.starts[-1], tuple(sorted({*known.slots, slot}))
    if generation == last and slot not in known.latest:
        return EarlyFailures(place=place, starts=known.starts, slots=slots, latest=(*known.latest, slot))
    again = (*known.starts[:-1], (last, times + 1)) if generation == last else (*known.starts, (generation, 1))
    return EarlyFailures(place=place, starts=again[-_STARTS:], slots=slots, latest=(slot,))


def passed(known: EarlyFailures | None, slot: int) -> EarlyFailures | None:
    """`known`, and that a process of `slot` has come to `@elastic.run`."""
    return None if known is not None and slot in known.slots else known


def judge(nodes: Iterable[Node], config: Config) -> Judgement:
    """Judge what the early failures of all nodes come to. Those of nodes that are to go count for nothing."""
    here = [node for node in nodes if not node.leaving]
    where: dict[str, dict[str, dict[int, int]]] = defaultdict(dict)  # place -> node -> generation -> starts
    for node in here:
        if node.early is not None and not node.excluded:
            where[node.early.place][node.id] = dict(node.early.starts)
    for place, by_node in sorted(where.items()):
        numbers = {number for starts in by_node.values() for number in starts}
        times = sum(max(starts.get(number, 0) for starts in by_node.values()) for number in numbers)
        if not 0 < config.max_step_failures <= times:
            continue
        told = f"{place} has ended workers {times} times in a row, before they came to @elastic.run"
        if len(by_node) == 1 and len(here) - 1 >= max(1, config.min_nodes):
            return Judgement(suspect=next(iter(by_node)), accusation=f"{told}, each time on this node")
        return Judgement(
            verdict=f"{told}: the fault is of the program or of what it finds there, and restarts would only meet it "
            "again (--max-step-failures allows more)"
        )
    return Judgement()
