"""Name a value to its owner alone, without a fork: for calls to the owner by one who holds a reference meanwhile.

A fork costs both ends two more messages. A place is plain bytes, so that small calls stay small.
"""

from __future__ import annotations

import struct
from typing import Any

from resilin.errors import OwnerLost
from resilin.rpc import current
from resilin.rpc.references.rref import RRef, owned
from resilin.rpc.references.states import GloballyUniqueId, UserReference

_PLACE = struct.Struct("<HQHQI")
"""The ids of a value and of the fork that its holder has, and the turn of its owner."""


def place_of(rref: RRef[Any]) -> bytes | None:
    """Return by what the owner finds the value while `rref` is held; None where a call must take the RRef itself.

    It must where this worker is the owner, and until the owner is known to have the value.
    """
    state = rref._state
    if not isinstance(state, UserReference) or not state.confirmed or state.error is not None or state.deleted:
        return None
    return _PLACE.pack(*state.id, *state.fork, state.turn)


def value_at(place: bytes) -> Any:
    """Return the value itself, at its owner. OwnerLost where another process was the owner."""
    maker, number, holder, fork, turn = _PLACE.unpack(place)
    rrefs = current.require().rrefs
    id = GloballyUniqueId(maker, number)
    if turn != rrefs.own_turn:
        raise OwnerLost(
            f"the value of {id} is lost with its owner: another process was worker {rrefs.me.name!r}", [rrefs.me.id]
        )
    return owned(rrefs.asked(id, GloballyUniqueId(holder, fork)))
