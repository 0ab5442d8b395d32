"""Whether ranks average at the same steps, in the same way: asked once in each world, before anybody waits in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.distributed.agreement import compare
from resilin.distributed.agreement.checksum import checksum
from resilin.distributed.agreement.options import parameter_names, plain_options

WHY = "ranks would average at different steps or in different ways, so all must give the same"
VALUES_WHY = (
    "the ranks would never become equal, so all must begin with the same: wrap the module in DistributedDataParallel, "
    "or broadcast rank 0's parameters, before this optimizer is made; and load the same state on all ranks, or on none"
)


class Agreement:
    """What the ranks of a group have compared of one averager or optimizer."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._generation = -1

    def reach(
        self,
        group: Any,
        facts: Callable[[], Mapping[str, Any]],
        values: Callable[[], Mapping[str, Any]] | None = None,
    ) -> bool:
        """Return when all ranks of `group` have called this; in each of its generations the first call alone asks, and
        says so.

        CollectiveMismatch on all ranks, which names the first of the `facts` that differ, or of the `values` with which
        they begin, and both sides.
        """
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return False  # nothing is averaged here
        if self._generation == group.generation:
            return False
        self.ask(group, facts)
        if values is not None:
            self._agree(group, values, VALUES_WHY)
        self._generation = group.generation
        return True

    def ask(self, group: Any, facts: Callable[[], Mapping[str, Any]], why: str = WHY) -> None:
        """As `reach`, in every call."""
        self._agree(group, facts, why)

    def _agree(self, group: Any, facts: Callable[[], Mapping[str, Any]], why: str) -> None:
        if group is not dist.GroupMember.NON_GROUP_MEMBER and group.size() > 1:
            compare.agree(compare.Facts(self._about, [("", facts())], why), group)


def named_options(groups: Sequence[Mapping[str, Any]], of: str) -> dict[str, Any]:
    """The options of an optimizer's groups that are plain values, or tensors of these, by name and group."""
    return {
        f"{name} of group {number}{of}": value
        for number, group in enumerate(groups)
        for name, value in plain_options(group).items()
    }


def checksums_of(groups: Sequence[Mapping[str, Any]], tensors: Iterable[Tensor]) -> dict[str, int]:
    """A checksum of each of `tensors`, of which there is one for each parameter of `groups`, by the parameter."""
    return {
        f"the checksum of {name} of shape {list(tensor.shape)}": checksum(tensor)
        for name, tensor in zip(parameter_names(groups), tensors, strict=True)
    }


def phase(step: int, warmup_steps: int, period: int) -> int:
    """Where in its periods a count of steps is; below 0 in the steps before them."""
    since = step - warmup_steps
    return since if since < 0 else since % period
