"""Which elements of which parameter belong to which rank. Pure: sizes in, pieces out.

The parameters of a space (one dtype, one device), in order, form one row of elements. A rank owns a contiguous range of
it, whatever the tensors' sizes; a *piece* is what lies of one parameter in one range:

    parameters  |----- 0 -----|- 1 -|---------- 2 ----------|  padding
    ranges      |------ rank 0 ------|------ rank 1 ------|--- rank 2 ---|
    pieces       0[all], 1[:a]         1[a:], 2[:b]         2[b:]

Ranges are equally long (`share`), so that one all-gather or reduce-scatter serves them; the last may end in padding.
"""

from __future__ import annotations

from collections.abc import Sequence

from resilin.errors import UsageError
from resilin.resharding.state_slices import Piece

BLOCK = 16  # elements: a cache line of float32, so that no two ranks write into one


def share(total: int, world_size: int, block: int = BLOCK) -> int:
    """Elements of every rank's range, padding included: total / world_size, rounded up to a multiple of `block`."""
    if total < 0 or world_size < 1 or block < 1:
        raise UsageError(
            f"partition: expected total >= 0, world_size >= 1 and block >= 1, got {total}, {world_size} and {block}"
        )
    blocks = -(-total // block)
    return -(-blocks // world_size) * block


def ranges(total: int, world_size: int, block: int = BLOCK) -> tuple[range, ...]:
    """Each rank's elements of a row of `total`: contiguous, in order of ranks, disjoint, and together all of it.

    Rank r starts at r * share, where the row is that long. No range exceeds total / world_size by a block or more; the
    last ones are shorter, or empty, where the shares do not come out even.
    """
    each = share(total, world_size, block)
    return tuple(range(min(rank * each, total), min((rank + 1) * each, total)) for rank in range(world_size))


def pieces(numels: Sequence[int], within: range) -> tuple[Piece, ...]:
    """The pieces that lie in the range `within` of the row of parameters with `numels` elements, in order.

    Parameters without elements have no pieces.
    """
    found: list[Piece] = []
    at = 0
    for number, numel in enumerate(numels):
        start, stop = max(within.start - at, 0), min(within.stop - at, numel)
        if start < stop:
            found.append(Piece(number, start, stop))
        at += numel
    return tuple(found)


def by_ranges(numels: Sequence[int], world_size: int, block: int = BLOCK) -> tuple[tuple[Piece, ...], ...]:
    """Each rank's pieces: what lies in its range; rank 0 has the parameters without elements, too, so all are owned."""
    first, *others = (pieces(numels, within) for within in ranges(sum(numels), world_size, block))
    empty = (Piece(number, 0, 0) for number, numel in enumerate(numels) if not numel)
    return (tuple(sorted((*first, *empty), key=lambda piece: piece.param)), *others)


def by_tensors(numels: Sequence[int], world_size: int) -> tuple[tuple[Piece, ...], ...]:
    """Each rank's pieces when no parameter may be cut: the largest first, each to the rank that has least.

    The most loaded rank has at most total / world_size + the largest parameter. Deterministic: of equal parameters the
    first comes first, of equal ranks the lowest.
    """
    held = [0] * world_size
    found: list[list[Piece]] = [[] for _ in range(world_size)]
    for number in sorted(range(len(numels)), key=lambda number: (-numels[number], number)):
        rank = held.index(min(held))
        held[rank] += numels[number]
        found[rank].append(Piece(number, 0, numels[number]))
    return tuple(tuple(sorted(own, key=lambda piece: piece.param)) for own in found)
