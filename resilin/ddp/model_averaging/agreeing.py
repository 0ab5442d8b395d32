"""Whether ranks average at the same steps, in the same way: asked once in each world, before anybody waits in vain."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

import resilin.dist as dist
from resilin.core.tensor import Tensor
from resilin.dist import compared

WHY = "ranks would average at different steps or in different ways, so all must give the same"
_PLAIN = (bool, int, float, str, type(None))


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
            compared.agree(compared.Facts(self._about, [("", facts())], why), group)


def options_of(groups: list[dict[str, Any]], of: str) -> dict[str, Any]:
    """The options of an optimizer's groups that are plain values, or tensors of these."""
    plain = {
        f"{name} of group {number}{of}": value.tolist() if isinstance(value, Tensor | np.generic) else value
        for number, group in enumerate(groups)
        for name, value in group.items()
        if name not in ("params", "param_names")
    }
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in plain.items()
        if isinstance(value, _PLAIN)
        or (isinstance(value, list | tuple) and all(isinstance(one, _PLAIN) for one in value))
    }


def checksums_of(groups: list[dict[str, Any]], tensors: Iterable[Tensor]) -> dict[str, str]:
    """A checksum of each of `tensors`, of which there is one for each parameter of `groups`, by the parameter."""
    places = [
        (number, name)
        for number, group in enumerate(groups)
        for name, _ in zip_longest(group.get("param_names", ()), group["params"])
    ]
    found = {}
    for index, ((number, name), tensor) in enumerate(zip(places, tensors, strict=True)):
        where = f"parameter {index} (group {number}{'' if name is None else f', {name}'})"
        found[f"the checksum of {where} of shape {list(tensor.shape)}"] = checksum(tensor)
    return found


def checksum(tensor: Tensor) -> str:
    """Eight digits that differ where the numbers do."""
    data = np.ascontiguousarray(tensor.detach().cpu()._array).reshape(-1).view(np.uint8)
    return f"{zlib.crc32(data.data):08x}"


def phase(step: int, warmup_steps: int, period: int) -> int:
    """Where in its periods a count of steps is; below 0 in the steps before them."""
    since = step - warmup_steps
    return since if since < 0 else since % period
