"""Collectives of Python objects, pickled: peers have proved the job's secret before a byte is read.

With `weights_only` what arrives may hold only plain values, containers, numpy arrays and tensors (`object_codec`): the
rank that receives something else raises DistError.

How they travel, and what others hear of a rank whose object cannot be pickled or whose list is too short, is in
`agreement.exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.distributed.agreement.exchange import (
    dump,
    gather_bytes,
    gather_sizes,
    load,
    load_all,
    on_its_way,
    pad,
    pad_for,
    room_for,
)
from resilin.distributed.agreement.guard import abort_group_on_error
from resilin.distributed.agreement.refuse import ARGUMENTS, propagate_errors
from resilin.distributed.api import collectives
from resilin.distributed.api.p2p import peer_of, source_of
from resilin.distributed.backends.base import Call
from resilin.distributed.group.arguments import root_of
from resilin.distributed.group.coalescing_buffer import at_once
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.error_codec import mark_shared
from resilin.distributed.wire.frames import Kind
from resilin.distributed.wire.reduce_op import Array
from resilin.distributed.wire.tags import OBJECTS
from resilin.errors import CollectiveMismatch, DistError, UsageError, UsageTypeError

_MOST_REFUSALS = 1 << 32
_EMPTY: Array = np.empty(0, np.uint8)
_UNHEARD = -2  # for a size: none has come
_REFUSED = -(1 << 62)  # and below: the sender has none to send; this less the number of its refusal


def _no_list(things: Any) -> str:
    return f"expected a list, got {type(things).__name__}"


def _check_places(what: str, things: Any, needed: int) -> None:
    if not isinstance(things, list):
        raise UsageTypeError(f"{what}: {_no_list(things)}")
    if len(things) < needed:
        raise UsageError(f"{what}: expected {needed} places at least, got {len(things)}")


def _tell_sizes(what: str, sizes: Array, root: int, pg: ProcessGroup) -> None:
    """Those of rank `root`, into `sizes` of the others."""
    backend = pg.backend

    def task(call: Call) -> None:
        call.begins(what)
        backend.broadcast(call, sizes, root)

    pg.run(Kind.BROADCAST, task)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None, *, weights_only: bool = False) -> None:
    """`object_list[r] = obj of rank r` on every rank. Places beyond the number of ranks stay as they are."""
    pg = at_once(group, "all_gather_object")
    if pg is None:
        return
    what = "all_gather_object"
    with propagate_errors(pg, Kind.ALL_GATHER, function=what):
        _check_places(f"{what}: object_list", object_list, pg.size())
        data = dump(what, pg, obj)
    object_list[: pg.size()] = load_all(what, pg, *gather_bytes(what, data, pg), weights_only)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
    *,
    weights_only: bool = False,
) -> None:
    """`object_gather_list[r] = obj of rank r` on rank `dst` (default 0); elsewhere it must be None or empty.

    Places beyond the number of ranks stay as they are. UsageError where there are too few, DistError on the others.
    """
    pg = at_once(group, "gather_object")
    if pg is None:
        return
    what = "gather_object"
    with propagate_errors(pg, Kind.ALL_GATHER, function=what):
        root = 0 if dst is None and group_dst is None else root_of(pg, dst, group_dst, "gather_object: dst")
        needed = pg.size() if root == pg.rank() else 0
        if not isinstance(object_gather_list, list | None):
            raise UsageTypeError(f"gather_object: object_gather_list: {_no_list(object_gather_list)}")
        if bool(object_gather_list) != bool(needed) or len(object_gather_list or ()) < needed:
            found = f"{len(object_gather_list)} places" if object_gather_list else "none"
            raise UsageError(
                f"gather_object, {pg.title()}: object_gather_list: expected {pg.size()} places on the destination, "
                f"rank {root}, and none elsewhere, got {found}; no object was sent, and the group stays usable"
            )
        data = dump(what, pg, obj)
    with on_its_way(what, pg):
        sizes = gather_sizes(what, data.size, pg)
        rows = room_for(needed, enumerate(sizes))
        collectives.gather(pad_for(data, sizes), list(rows) if needed else None, group=pg, group_dst=root)
    if needed and object_gather_list is not None:
        object_gather_list[: pg.size()] = load_all(what, pg, rows, sizes, weights_only)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    *,
    weights_only: bool = False,
) -> None:
    """Replace the objects in `object_list` by those of rank `src` (default 0).

    CollectiveMismatch on all ranks, and no object is sent, unless the lists are equally long.
    """
    pg = at_once(group, "broadcast_object_list")
    if pg is None:
        return
    what = "broadcast_object_list"
    with propagate_errors(pg, Kind.BROADCAST, function=what):
        root = 0 if src is None and group_src is None else root_of(pg, src, group_src, "broadcast_object_list: src")
        if pg.rank() != root or not isinstance(object_list, tuple):
            _check_places(f"{what}: object_list", object_list, 0)
        data = dump(what, pg, object_list) if pg.rank() == root else _EMPTY
    data = broadcast_bytes(data, len(object_list), root, pg)
    if pg.rank() != root and object_list:
        object_list[:] = load(what, pg, root, data, weights_only)


def broadcast_bytes(data: Array, places: int, root: int, pg: ProcessGroup) -> Array:
    """Those of a list of so many `places` that rank `root` of the group has, on all ranks; nothing for no places."""
    what = "broadcast_object_list"
    size = np.full(places, data.size, np.int64)  # so long that ranks compare the lists' lengths
    with on_its_way(what, pg):
        try:
            _tell_sizes(what, size, root, pg)
        except CollectiveMismatch as error:
            raise CollectiveMismatch(
                f"{what}: expected one source and lists of one length on every rank, here {places}: {error}"
            ) from None
        if places:
            data = data.copy() if pg.rank() == root else room_for(1, [(root, int(size[0]))])[0]
            collectives.broadcast(data, group=pg, group_src=root)
    return data


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
    *,
    weights_only: bool = False,
) -> None:
    """`scatter_object_output_list[0] = scatter_object_input_list[this rank]` of rank `src` (default 0)."""
    pg = at_once(group, "scatter_object_list")
    if pg is None:
        return
    what, given = "scatter_object_list", scatter_object_input_list
    blobs: list[Array] = []
    with propagate_errors(pg, Kind.BROADCAST, function=what):
        root = 0 if src is None and group_src is None else root_of(pg, src, group_src, "scatter_object_list: src")
        _check_places(f"{what}: scatter_object_output_list", scatter_object_output_list, 1)
        if not isinstance(given, list | tuple | None):
            raise UsageTypeError(f"{what}: scatter_object_input_list: {_no_list(given)}")
        if pg.rank() == root:
            if len(given or ()) != pg.size():
                found = "None" if given is None else f"{len(given)} objects"
                raise UsageError(
                    f"{what}, {pg.title()}: the source's input list needs {pg.size()} objects, got {found}"
                )
            blobs = [dump(what, pg, thing) for thing in given or ()]
    sizes = np.zeros(pg.size(), np.int64)
    sizes[: len(blobs)] = [blob.size for blob in blobs]
    with on_its_way(what, pg):
        _tell_sizes(what, sizes, root, pg)
        mine = room_for(1, [(root, int(size)) for size in sizes])[0]
        collectives.scatter(mine, [pad(blob, mine.size) for blob in blobs] or None, group=pg, group_src=root)
    scatter_object_output_list[0] = load(what, pg, root, mine[: int(sizes[pg.rank()])], weights_only)


def send_object_list(
    object_list: Sequence[Any],
    dst: int | None = None,
    group: Any = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    *,
    weights_only: bool = False,
) -> None:
    """Send the objects to rank `dst`, which calls `recv_object_list` with a list of the same length.

    `device` and `use_batch` change nothing.
    """
    pg = at_once(group, "send_object_list")
    if pg is None:
        return
    what = "send_object_list"
    to = peer_of(pg, dst, group_dst, "send_object_list: dst")
    with abort_group_on_error(pg, f"left {what} half-way"):
        try:
            if not isinstance(object_list, list | tuple):
                raise UsageTypeError(f"send_object_list: object_list: {_no_list(object_list)}")
            data = dump(what, pg, list(object_list))
        except (UsageError, MemoryError) as error:
            number = pg.refusals.number()
            pg.refusals.tell(f"{what} {number}", error, ARGUMENTS)
            pg.send(np.array([_REFUSED - number], np.int64), to, OBJECTS)
            mark_shared(error, pg.key)  # who receives has it
            raise
        pg.send(np.array([data.size], np.int64), to, OBJECTS)
        pg.send(data, to, OBJECTS)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
    *,
    weights_only: bool = False,
) -> int:
    """Receive what `send_object_list` sent, from rank `src` or whoever sends first. Returns the sender's rank.

    UsageError for a list of another length, which stays as it is; the message is gone, and the group stays usable.
    """
    pg = at_once(group, "recv_object_list")
    if pg is None:
        return -1
    _check_places("recv_object_list: object_list", object_list, 0)
    source = source_of(pg, src, group_src, "recv_object_list")
    size = np.full(1, _UNHEARD, np.int64)
    with on_its_way("recv_object_list", pg, begun=lambda: bool(size[0] != _UNHEARD)):
        sender = pg.recv(size, source, OBJECTS)
        if _REFUSED - _MOST_REFUSALS < size[0] <= _REFUSED:
            raise _refused_by(pg, sender, _REFUSED - int(size[0]))
        data = room_for(1, [(sender, int(size[0]))])[0]
        pg.recv(data, sender, OBJECTS)
    objects = load("recv_object_list", pg, sender, data, weights_only)
    if len(objects) != len(object_list):
        raise UsageError(
            f"recv_object_list: rank {pg.ranks[sender]} sent {len(objects)} objects, this list has {len(object_list)}"
        )
    object_list[:] = objects
    return pg.ranks[sender]


def _refused_by(pg: ProcessGroup, sender: int, number: int) -> Exception:
    """What to raise for objects that `sender` could not send."""
    error = pg.peer_error(sender, f"send_object_list {number}", "recv_object_list")
    return error or DistError(
        f"recv_object_list, {pg.title()}: rank {sender} could not send any object (its own error says why); no object "
        "was sent, and the group stays usable"
    )
