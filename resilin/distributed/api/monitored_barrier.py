"""Wait for all ranks, and name who is missing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np

from resilin._base.clock import Deadline, spell
from resilin.distributed.agreement.guard import abort_group_on_error
from resilin.distributed.agreement.refuse import ARGUMENTS
from resilin.distributed.group.coalescing_buffer import at_once
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.error_codec import mark_shared
from resilin.distributed.wire.reduce_op import Array
from resilin.distributed.wire.tags import BARRIER
from resilin.distributed.wire.timeouts import seconds
from resilin.errors import CollectiveMismatch, CollectiveTimeout, PeerLost, UsageError

_FINE = -1  # what a rank says, to whom nothing is wrong; else the rank that refuses its arguments, and which refusal
_LOOK_S = 1e-3  # at the others, when the time is over: 0 would be the group's timeout
_VERDICT_S = 1.0  # what ranks other than 0 wait longer than it, so that they hear whom it misses


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """A barrier in which rank 0 hears from every rank by itself: its error names the missing ranks.

    With `wait_all_ranks` all of them, else the first in rank order. The group is aborted on a miss: the others hear
    from rank 0 who it is, or name rank 0 a second after `timeout`. A rank that refuses its own `timeout` (UsageError)
    comes all the same, with the group's; the others then have a UsageError that names it and its reason. Made of
    messages: another collective that a rank calls instead is not compared with it but waited for in vain.
    """
    pg = at_once(group, "monitored_barrier")
    if pg is None:
        return
    limit, mine, refused = pg.timeout_s, _FINE, None
    if timeout is not None:
        try:
            limit = seconds(timeout, "monitored_barrier: timeout") or 0.0
        except UsageError as error:
            number, refused = pg.refusals.number(), error
            pg.refusals.tell(f"monitored_barrier {number}", error, ARGUMENTS)
            mark_shared(error, pg.key)
            mine = number * pg.size() + pg.rank()
    word = np.array([mine], np.int64)
    with abort_group_on_error(pg, "left monitored_barrier half-way"):
        if pg.rank() == 0:
            _hear_all(pg, word, limit, wait_all_ranks)
        else:
            pg.send(word, 0, BARRIER, limit)
            pg.receive(word, 0, BARRIER).wait(limit + _VERDICT_S)
    if refused is not None:
        raise refused
    if word[0] != _FINE:
        number, rank = divmod(int(word[0]), pg.size())
        raise pg.peer_error(rank, f"monitored_barrier {number}", "monitored_barrier") or CollectiveMismatch(
            f"monitored_barrier, {pg.title()}: rank {rank} refused its arguments (its own error says why)"
        )


def _hear_all(pg: ProcessGroup, word: Array, limit: float, all_missing: bool) -> None:
    """Rank 0: hear from every rank, and tell each `word`, which is then that of the first rank that refuses."""
    deadline = Deadline(limit)
    words = {rank: np.empty(1, np.int64) for rank in range(1, pg.size())}
    works = {rank: pg.receive(said, rank, BARRIER) for rank, said in words.items()}
    missing: list[int] = []
    for rank, work in works.items():
        left = deadline.left()
        try:
            work.wait(None if left is None else max(left, _LOOK_S))
        except PeerLost as error:
            pg.abort(error)
            raise
        except CollectiveTimeout:
            missing.append(rank)
            if not all_missing:
                break
    if missing:
        names = ", ".join(f"rank {rank}" for rank in missing)
        what = f"monitored_barrier, {pg.title()}: {names} did not come within {spell(limit)}"
        miss = CollectiveTimeout(what, missing, [pg.ranks[rank] for rank in missing])
        pg.abort(miss)
        raise miss
    word[0] = next((said[0] for said in (word, *words.values()) if said[0] != _FINE), _FINE)
    for rank in works:
        pg.send(word, rank, BARRIER, limit)
