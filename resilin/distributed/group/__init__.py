"""Make process groups: how one comes about, what it knows, and the order of its calls.

`group.WORLD` is the default group of now, as in torch.distributed; None when there is none.
"""

from __future__ import annotations

from resilin.distributed.group.default_group import GroupMember
from resilin.distributed.group.process_group import ProcessGroup, connect

NON_GROUP_MEMBER = GroupMember.NON_GROUP_MEMBER
"""What `new_group` returns in a process outside the new group."""


def __getattr__(name: str) -> ProcessGroup | None:
    if name == "WORLD":
        return GroupMember.WORLD
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["NON_GROUP_MEMBER", "GroupMember", "ProcessGroup", "connect"]
