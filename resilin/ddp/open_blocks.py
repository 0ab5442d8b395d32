"""Which blocks of wrapped modules are open at once: ranks must complete their sums in one order.

    with a.shard(shard), b.shard(shard):     with samples    backward: b's buckets, then a's, or between them
                                             without any     end of b's block: b's; end of a's: a's

Collectives are matched by their order, and only ranks whose last shard has samples run a backward there. So the order
is that in which the blocks end: a module sums while backward runs if its block is the innermost, else at its end.
"""

from __future__ import annotations

import weakref
from typing import Protocol

import resilin.distributed as dist


class Block(Protocol):
    """A module whose block is open."""

    @property
    def past_backward(self) -> bool:
        """Whether the backward of the open shard has run."""


_open: weakref.WeakKeyDictionary[dist.ProcessGroup, list[Block]] = weakref.WeakKeyDictionary()


def blocks(group: dist.ProcessGroup) -> list[Block]:
    """Those that are open of modules in `group`, the innermost last: whoever opens and closes one changes the list."""
    return _open.setdefault(group, [])
