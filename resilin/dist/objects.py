"""Collectives of Python objects, pickled: peers have proved the job's secret before a byte is read.

With `weights_only` what arrives may hold only plain values, containers, numpy arrays and tensors (`dist.pickled`): the
rank that receives something else raises DistError.

Sizes travel first, in a collective that says whose it is, then the padded bytes; so errors and order are those of
tensors. A rank whose object cannot be pickled sends _NOTHING for its size, as does one whose list is too short: it
raises UsageError, the others DistError, and the group stays usable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilin.dist import api, pickled
from resilin.dist.arguments import root_of
from resilin.dist.backends.base import Call
from resilin.dist.block import at_once
from resilin.dist.group import ProcessGroup
from resilin.dist.message import Kind
from resilin.dist.p2p import peer_of, source_of
from resilin.dist.reduce_op import Array
from resilin.dist.refusal import Telling
from resilin.dist.tags import OBJECTS
from resilin.errors import CollectiveMismatch, DistError, ElasticError, UsageError, UsageTypeError

_NOTHING, _UNHEARD = -1, -2  # for a size
_MOST_BYTES = 1 << 47  # of what a process can address
_EMPTY: Array = np.empty(0, np.uint8)


_Dumped = Array | BaseException
"""The bytes of an object; or the error that this rank raises once it has told the others."""


def _dump(what: str, pg: ProcessGroup, thing: Any) -> _Dumped:
    try:
        return np.frombuffer(pickled.dump(thing), np.uint8)
    except Exception as error:  # noqa: BLE001 - whatever a __reduce__ raises: the cause of what this rank will raise
        refused = UsageError(
            f"{what}, {pg.title()}: expected an object that pickle can write, got {type(thing).__name__}: {error}; "
            "no object was sent, and the group stays usable"
        )
        refused.__cause__ = error
        return refused
    except BaseException as error:  # noqa: BLE001 - as SystemExit: the others hear of that, too
        return error


def _no_list(things: Any) -> str:
    return f"expected a list, got {type(things).__name__}"


def _check_places(what: str, things: Any, needed: int) -> None:
    if not isinstance(things, list):
        raise UsageTypeError(f"{what}: {_no_list(things)}")
    if len(things) < needed:
        raise UsageError(f"{what}: expected {needed} places at least, got {len(things)}")


def _size(data: _Dumped) -> int:
    return _NOTHING if isinstance(data, BaseException) else data.size


def _sent(what: str, pg: ProcessGroup, data: _Dumped, sizes: Mapping[int, int]) -> Array:
    """`data` of this rank, when every rank that sends has some; `sizes` by rank, as all have heard them."""
    if isinstance(data, BaseException):
        raise data
    names = ", ".join(f"rank {rank}" for rank, size in sizes.items() if size == _NOTHING)
    if names:
        raise DistError(
            f"{what}, {pg.title()}: expected an object, but {names} could not send any (its own error says why); "
            "no object was sent, and the group stays usable"
        )
    return data


@contextmanager
def _whole(what: str, pg: ProcessGroup, known: object, begun: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """`pg.whole`, and DistError for what has no room here: a rank announces its object's size, and may say anything."""
    try:
        with pg.whole(what, known, begun):
            yield
    except MemoryError as error:
        raise DistError(
            f"{what}, {pg.title()}: expected objects that there is memory for, but {error}; the group is aborted"
        ) from error


def _room(lines: int, announced: Iterable[tuple[int, int]]) -> Array:
    """Memory for so many of the largest of objects, which is touched as bytes come. announced: by which rank, and size.

    MemoryError says who announces what no memory holds.
    """
    sizes = list(announced)
    for rank, size in sizes:
        if not 0 <= size < _MOST_BYTES:
            raise MemoryError(f"rank {rank} announces an object of {size} bytes")
    rank, largest = max(sizes, key=lambda one: one[1])
    try:
        return np.empty((lines, largest), np.uint8)
    except (MemoryError, ValueError):
        raise MemoryError(f"rank {rank} announces an object of {largest} bytes, times {lines}") from None


def _load(what: str, pg: ProcessGroup, source: int, data: Array, weights_only: bool) -> Any:
    """The object of rank `source` of the group."""
    try:
        return pickled.load(data.tobytes(), weights_only)
    except (Exception, SystemExit) as error:  # whatever a class raises that is made here, or is not there
        raise DistError(
            f"{what}, {pg.title()}: the object of rank {pg.ranks[source]} cannot be loaded here: "
            f"{error if isinstance(error, DistError) else f'{type(error).__name__}: {error}'}"
        ) from error


def _load_all(what: str, pg: ProcessGroup, rows: Array, sizes: Sequence[int], weights_only: bool) -> list[Any]:
    """The objects of all ranks."""
    return [_load(what, pg, rank, rows[rank, :size], weights_only) for rank, size in enumerate(sizes)]


def _sizes(what: str, mine: int, pg: ProcessGroup) -> list[int]:
    """Of all ranks."""
    sizes, given, backend = np.empty((pg.size(), 1), np.int64), np.array([mine], np.int64), pg.backend

    def task(call: Call) -> None:
        call.begins(what)
        backend.all_gather(call, given, list(sizes))

    pg.run(Kind.ALL_GATHER, task)
    return [int(size) for size in sizes[:, 0]]


def _tell_sizes(what: str, sizes: Array, root: int, pg: ProcessGroup) -> None:
    """Those of rank `root`, into `sizes` of the others."""
    backend = pg.backend

    def task(call: Call) -> None:
        call.begins(what)
        backend.broadcast(call, sizes, root)

    pg.run(Kind.BROADCAST, task)


def _padded(data: Array, size: int) -> Array:
    out = np.zeros(size, np.uint8)
    out[: data.size] = data
    return out


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None, *, weights_only: bool = False) -> None:
    """`object_list[r] = obj of rank r` on every rank. Places beyond the number of ranks stay as they are."""
    pg = at_once(group, "all_gather_object")
    if pg is None:
        return
    what = "all_gather_object"
    try:
        _check_places(f"{what}: object_list", object_list, pg.size())
        dumped = _dump(what, pg, obj)
    except UsageError as error:
        dumped = error
    object_list[: pg.size()] = _gathered(what, dumped, pg, weights_only)


def everybodys(function: str, mine: Any, group: ProcessGroup, *, weights_only: bool = False) -> list[Any]:
    """Every rank's `mine`, by rank, in a call of `function`, one of message.FUNCTIONS.

    CollectiveMismatch, which names both, where other ranks are in another function; else as `all_gather_object`.
    """
    return _gathered(function, _dump(function, group, mine), group, weights_only)


@dataclass(frozen=True, slots=True)
class _Refused:
    """What a rank says in `everybodys` that refuses its own arguments."""

    why: str


@contextmanager
def telling(
    function: str,
    group_of: Callable[[], ProcessGroup | None],
    exchange: Callable[[str, Any, ProcessGroup], Any] = everybodys,
) -> Iterator[None]:
    """Around checks of this rank's arguments, before `everybodys(function, ...)`: others hear there what it refuses.

    group_of: whom to tell; it may refuse, too, or be None, and then nobody is told. exchange: what is called then in
    the place of `everybodys`.
    """
    try:
        yield
    except (UsageError, TypeError) as error:
        with suppress(UsageError, DistError, ElasticError):  # what this rank refuses matters more
            if (group := group_of()) is not None:
                exchange(function, _Refused(str(error)), group)
        raise


def check_refusals(function: str, everybody: Sequence[Any]) -> None:
    """CollectiveMismatch with the rank and its reason where one of `everybodys` refused its arguments."""
    for rank, said in enumerate(everybody):
        if isinstance(said, _Refused):
            raise CollectiveMismatch(f"{function}: rank {rank} refused its arguments: {said.why}")


def _gathered(what: str, dumped: _Dumped, pg: ProcessGroup, weights_only: bool) -> list[Any]:
    with _whole(what, pg, dumped):
        sizes = _sizes(what, _size(dumped), pg)
        data = _sent(what, pg, dumped, dict(enumerate(sizes)))
        rows = _room(pg.size(), enumerate(sizes))
        api.all_gather_into_tensor(rows, _padded(data, rows.shape[1]), pg)
    return _load_all(what, pg, rows, sizes, weights_only)


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
    with Telling(pg, Kind.ALL_GATHER, function="gather_object"):
        root = 0 if dst is None and group_dst is None else root_of(pg, dst, group_dst, "gather_object: dst")
    dumped = _dump("gather_object", pg, obj)
    needed = pg.size() if root == pg.rank() else 0
    if not isinstance(object_gather_list, list | None):
        dumped = UsageTypeError(f"gather_object: object_gather_list: {_no_list(object_gather_list)}")
    elif bool(object_gather_list) != bool(needed) or len(object_gather_list or ()) < needed:
        found = f"{len(object_gather_list)} places" if object_gather_list else "none"
        dumped = UsageError(
            f"gather_object, {pg.title()}: object_gather_list: expected {pg.size()} places on the destination, rank "
            f"{root}, and none elsewhere, got {found}; no object was sent, and the group stays usable"
        )
    with _whole("gather_object", pg, dumped):
        sizes = _sizes("gather_object", _size(dumped), pg)
        data = _sent("gather_object", pg, dumped, dict(enumerate(sizes)))
        rows = _room(needed, enumerate(sizes))
        api.gather(_padded(data, rows.shape[1]), list(rows) if needed else None, group=pg, group_dst=root)
    if needed and object_gather_list is not None:
        object_gather_list[: pg.size()] = _load_all("gather_object", pg, rows, sizes, weights_only)


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
    with Telling(pg, Kind.BROADCAST, function=what):
        root = 0 if src is None and group_src is None else root_of(pg, src, group_src, "broadcast_object_list: src")
        if pg.rank() != root or not isinstance(object_list, tuple):
            _check_places(f"{what}: object_list", object_list, 0)
    dumped = _dump(what, pg, object_list) if pg.rank() == root else _EMPTY
    size = np.full(len(object_list), _size(dumped), np.int64)  # so long that ranks compare the lists' lengths
    with _whole(what, pg, dumped):
        try:
            _tell_sizes(what, size, root, pg)
        except CollectiveMismatch as error:
            raise CollectiveMismatch(
                f"{what}: expected one source and lists of one length on every rank, here {len(object_list)}: {error}"
            ) from None
        if not len(size):
            return
        data = _sent(what, pg, dumped, {root: int(size[0])})
        data = data.copy() if pg.rank() == root else _room(1, [(root, int(size[0]))])[0]
        api.broadcast(data, group=pg, group_src=root)
    if pg.rank() != root:
        object_list[:] = _load(what, pg, root, data, weights_only)


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
    with Telling(pg, Kind.BROADCAST, function=what):
        root = 0 if src is None and group_src is None else root_of(pg, src, group_src, "scatter_object_list: src")
        _check_places(f"{what}: scatter_object_output_list", scatter_object_output_list, 1)
        if not isinstance(given, list | tuple | None):
            raise UsageTypeError(f"{what}: scatter_object_input_list: {_no_list(given)}")
    blobs: list[_Dumped] = []
    if pg.rank() == root:
        blobs = [_dump(what, pg, thing) for thing in given or ()]
        if len(blobs) != pg.size():
            found = "None" if given is None else f"{len(blobs)} objects"
            blobs = [
                UsageError(f"{what}, {pg.title()}: the source's input list needs {pg.size()} objects, got {found}")
            ]
    sizes = np.zeros(pg.size(), np.int64)
    sizes[: len(blobs)] = [_size(blob) for blob in blobs]
    refused = next((blob for blob in blobs if isinstance(blob, BaseException)), None)
    with _whole(what, pg, refused):
        _tell_sizes(what, sizes, root, pg)
        ready = [_sent(what, pg, blob, {}) for blob in blobs]
        _sent(what, pg, _EMPTY, {root: int(sizes.min())})
        mine = _room(1, [(root, int(size)) for size in sizes])[0]
        api.scatter(mine, [_padded(blob, mine.size) for blob in ready] or None, group=pg, group_src=root)
    scatter_object_output_list[0] = _load(what, pg, root, mine[: int(sizes[pg.rank()])], weights_only)


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
    if isinstance(object_list, list | tuple):
        dumped = _dump("send_object_list", pg, list(object_list))
    else:
        dumped = UsageTypeError(f"send_object_list: object_list: {_no_list(object_list)}")
    to = peer_of(pg, dst, group_dst, "send_object_list: dst")
    with pg.whole("send_object_list", dumped):
        pg.send(np.array([_size(dumped)], np.int64), to, OBJECTS)
        data = _sent("send_object_list", pg, dumped, {})
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
    with _whole("recv_object_list", pg, None, begun=lambda: bool(size[0] != _UNHEARD)):
        sender = pg.recv(size, source, OBJECTS)
        _sent("recv_object_list", pg, _EMPTY, {sender: int(size[0])})
        data = _room(1, [(sender, int(size[0]))])[0]
        pg.recv(data, sender, OBJECTS)
    objects = _load("recv_object_list", pg, sender, data, weights_only)
    if len(objects) != len(object_list):
        raise UsageError(
            f"recv_object_list: rank {pg.ranks[sender]} sent {len(objects)} objects, this list has {len(object_list)}"
        )
    object_list[:] = objects
    return pg.ranks[sender]
