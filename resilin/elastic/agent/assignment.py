"""Assign a node's slots to places in a new generation, and find the processes without one. Pure but for the slots."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.records import Generation, GenerationMember


def members(new: Generation, node_id: str) -> list[GenerationMember]:
    """Those of `new` that are on this node."""
    return [member for member in new.members if member.node == node_id]


def starts_workers(new: Generation, slots: Sequence[LocalSlot], mine: Sequence[GenerationMember]) -> bool:
    """Say whether processes of this node must be started before `new` can be.

    Also where a restart came and was reshaped while this node did not hear of it: that leaves members nobody started.
    """
    return new.kind == "restart" or any(slots[m.slot].incarnation < m.incarnation for m in mine)


def place(new: Generation, slots: Sequence[LocalSlot], mine: Sequence[GenerationMember]) -> None:
    """Give the running members of this node their ranks in `new`. The others may fall behind: that is noted."""
    named = {member.slot: member for member in mine}
    for slot in slots:
        member = named.get(slot.index)
        if member is not None and slot.incarnation == member.incarnation:
            slot.place(member.rank, new.number)
        elif slot.running:
            slot.left_out_of = new.number


def outdated(new: Generation, slots: Sequence[LocalSlot], mine: Sequence[GenerationMember]) -> list[LocalSlot]:
    """Slots with a process that `new` has no place for.

    One that has started here while the leader did not know of it may have the name of a member: then it is that.
    """
    named = {m.slot: m.incarnation for m in mine}
    other = sys.maxsize if new.kind == "restart" else 0
    return [slot for slot in slots if slot.running and slot.incarnation < named.get(slot.index, other)]
