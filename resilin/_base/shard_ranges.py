"""Which shards a rank owns: who computes a shard (data) is who puts it into the canonical sum (dist)."""

from __future__ import annotations


def run_of(rank: int, world_size: int, shards: int) -> range:
    """The contiguous run of `rank`: `range(rank*V//W, (rank+1)*V//W)` for V shards and W ranks.

    Runs are in the order of the ranks, cover every shard once, and differ in length by at most one (0 when W > V).
    """
    return range(rank * shards // world_size, (rank + 1) * shards // world_size)


def turns_of(rank: int, world_size: int, shards: int) -> range:
    """The numbers dealt to `rank` in rounds: `rank`, `rank + W`, ..., as many on every rank.

    Round r deals r*W .. r*W + W-1, ascending by rank. Where W does not divide V, numbers of the last round reach beyond
    V - 1: these are no shards.
    """
    return range(rank, -(-shards // world_size) * world_size, world_size)
