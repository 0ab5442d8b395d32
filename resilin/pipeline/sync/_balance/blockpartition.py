"""Cut a sequence of costs into blocks of neighbours. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from resilin.errors import UsageError


def solve(sequence: Sequence[float], partitions: int = 1) -> list[list[float]]:
    """Return `sequence` in `partitions` blocks, none of them empty, of which the costliest costs least.

    Of several such cuts it is the one whose blocks are closest to one another (least sum of squares), then the first.
    UsageError for fewer than one block, and for more blocks than there are costs. Time: n**2 * partitions.
    """
    if partitions < 1:
        raise UsageError(f"partitions must be a positive integer ({partitions})")
    n = len(sequence)
    if n < partitions:
        raise UsageError(f"sequence is shorter than intended partitions ({n} < {partitions})")
    before = [0, *accumulate(sequence)]
    # best[e]: (worst block, sum of squares, cuts) of the first e costs in as many blocks as were counted so far
    best: list[tuple[float, float, tuple[int, ...]] | None] = [(0, 0, (0,)), *[None] * n]
    for _ in range(partitions):
        best = [_best_end(best, before, end) for end in range(n + 1)]
    found = best[n]
    assert found is not None, (sequence, partitions)
    return [list(sequence[start:end]) for start, end in pairwise(found[2])]


def _best_end(
    best: Sequence[tuple[float, float, tuple[int, ...]] | None], before: Sequence[float], end: int
) -> tuple[float, float, tuple[int, ...]] | None:
    """Return the best blocks of the first `end` costs, of which the last begins anywhere."""
    found = []
    for start, so_far in enumerate(best[:end]):
        if so_far is not None:
            cost = before[end] - before[start]
            found.append((max(so_far[0], cost), so_far[1] + cost * cost, (*so_far[2], end)))
    return min(found, default=None)
