"""Exchange records, dataclasses of plain values, arrays and tensors: what arrives is made the kind that is expected.

Nothing of it is run, whatever a peer sends: bytes are read by the machine of `weights_only=True`, and what that makes
is checked field by field. Errors name the rank that sent something else.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from resilin.distributed.agreement import exchange
from resilin.distributed.agreement.refuse import propagate_errors
from resilin.distributed.api import objects
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire import object_codec, record_codec
from resilin.distributed.wire.frames import Kind
from resilin.distributed.wire.reduce_op import Array

T = TypeVar("T")


def gather(kind: type[T], mine: T, group: ProcessGroup) -> list[T]:
    """Every rank's record, by rank. DistError for what is no such record; else as `all_gather_object`."""
    if group.size() == 1:
        return [mine]
    return exchange.gather_records("all_gather_object", kind, mine, group)


def broadcast(
    kind: type[T],
    mine: T | None,
    root: int,
    group: ProcessGroup,
    *,
    wanted: bool = True,
    weights_only: bool = True,
    instead: str = exchange.OTHERS,
) -> T | None:
    """The record of rank `root`, which alone gives one. DistError for what is no such record.

    wanted: whether this rank needs it; None is returned where not. weights_only=False: Python's pickle reads what
    arrives, and runs what it says. instead: what to do about what is refused, for the error.
    """
    function = "broadcast_object_list"
    with propagate_errors(group, Kind.BROADCAST, function=function):
        empty: Array = np.empty(0, np.uint8)
        data = empty if mine is None else exchange.dump(function, group, record_codec.plain(kind, mine))
    data = objects.broadcast_bytes(data, 1, root, group)
    if mine is not None or not wanted:
        return mine
    return exchange.record_of(kind, exchange.load(function, group, root, data, weights_only, instead), root, group)


def dump(kind: type[T], mine: T) -> bytes:
    """The bytes of a record, for `load`."""
    return object_codec.dump(record_codec.plain(kind, mine))


def load(kind: type[T], data: Array, rank: int, group: ProcessGroup) -> T:
    """The record that rank `rank` of the group has sent by `dump`. DistError for anything else."""
    sent = exchange.load(kind.__name__, group, rank, data, True, exchange.OTHERS)
    return exchange.record_of(kind, sent, rank, group)
