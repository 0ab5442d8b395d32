"""Which parameters backwards use: ranks that leave out those that are unused (`skip_all_reduce_unused_params`) agree.

Else buckets that only some ranks leave out would be paired with others, and gradients be those of one rank alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import resilin.distributed as dist
from resilin.distributed.agreement import compare

_WHY = (
    "what is left out must be unused on all ranks: use the same parameters everywhere, or leave out "
    "skip_all_reduce_unused_params; inside join() a rank without data goes by what its own last backward used"
)


class Used:
    """The parameters that have a gradient at the end of a backward, by number."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.last: frozenset[int] | None = None  # of the last backward; None before the first one
        self._facts = self._of(())

    def _of(self, fired: Collection[int]) -> compare.Facts:
        groups = [("", {f"the gradient of {self._names[number]}": "there" for number in sorted(fired)})]
        return compare.Facts("DistributedDataParallel with skip_all_reduce_unused_params", groups, _WHY)

    def agree(self, fired: Collection[int], group: dist.ProcessGroup) -> None:
        """A backward has used `fired`. A collective: CollectiveMismatch on all ranks where one has used others."""
        now = frozenset(fired)
        if now != self.last:
            self.last, self._facts = now, self._of(now)
        if group.size() > 1:
            compare.agree(self._facts, group)
