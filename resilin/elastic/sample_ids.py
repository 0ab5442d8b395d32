"""Name the samples at positions that a ledger names: the only part of reading a ledger that needs numpy."""

from __future__ import annotations

from resilin.data.shuffle import permutation
from resilin.elastic.ledger import Problem


def of(problem: Problem) -> list[int]:
    """The samples at the positions of `problem`, in that order; empty when the ledger does not say how they follow."""
    if problem.epoch is None or not problem.length:
        return []
    stop = min(problem.stop, problem.length)
    if problem.seed is None:
        return list(range(problem.start, stop))
    order: list[int] = permutation(problem.length, problem.seed, problem.epoch)[problem.start : stop].tolist()
    return order
