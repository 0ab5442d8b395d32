"""Whether ranks average at the same steps, in the same way: asked once in each world, before anybody waits in vain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import resilin.dist as dist
from resilin.dist import compared

WHY = "ranks would average at different steps or in different ways, so all must give the same"
_PLAIN = (bool, int, float, str, type(None))


class Agreement:
    """What the ranks of a group have compared of one averager or optimizer."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._generation = -1

    def reach(self, group: Any, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Return when all ranks of `group` have called this; in each of its generations the first call alone asks.

        CollectiveMismatch on all ranks, which names the first of the `facts` that differ, and both values.
        """
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return  # nothing is averaged here
        if group.size() > 1 and self._generation != group.generation:
            compared.agree(compared.Facts(self._about, [("", facts())], WHY), group)
            self._generation = group.generation


def options_of(groups: list[dict[str, Any]], of: str) -> dict[str, Any]:
    """The options of an optimizer's groups that are plain values."""
    return {
        f"{name} of group {number}{of}": list(value) if isinstance(value, tuple) else value
        for number, group in enumerate(groups)
        for name, value in group.items()
        if isinstance(value, _PLAIN)
        or (name != "params" and isinstance(value, list | tuple) and all(isinstance(one, _PLAIN) for one in value))
    }


def phase(step: int, warmup_steps: int, period: int) -> int:
    """Where in its periods a count of steps is; below 0 in the steps before them."""
    since = step - warmup_steps
    return since if since < 0 else since % period
