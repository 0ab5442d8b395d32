"""Send messages between two ranks: send, recv, and their asynchronous forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from resilin.distributed.backends import per_device
from resilin.distributed.group.arguments import Output, array_of, contiguous, root_of
from resilin.distributed.group.coalescing_buffer import at_once, open_block
from resilin.distributed.group.default_group import resolve
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.p2p_matching import ANY
from resilin.distributed.wire.tags import checked
from resilin.distributed.work.work import Work
from resilin.errors import UsageError


def send(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Send `tensor` to rank `dst`; returns when the tensor may be changed again.

    Inside a host a tensor of more than 64 KiB, and mostly one of more than 4 KiB, is copied by the receiver, straight
    from the sender's memory: that is when it has posted its receive, or waits in a send itself. CollectiveTimeout after
    the group's timeout. A receive of another dtype or number of elements is CollectiveMismatch there; here nothing is
    heard of it, for a small message has left before anybody can look at it.
    """
    pg = at_once(group, "send")
    if pg is not None:
        data = per_device.to_host(contiguous(tensor, "send: tensor"))
        pg.send(data, peer_of(pg, dst, group_dst, "send: dst"), checked(tag, "send"))


def isend(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """Send, but return at once. Wait for the Work before changing `tensor`, and before the group is destroyed.

    To another host it returns when the connection has taken the bytes: peers read always, but a frozen one does not.
    """
    pg = resolve(group, "isend")
    if pg is None:
        return None
    to = peer_of(pg, dst, group_dst, "isend: dst")
    return _noted(
        pg, pg.isend(per_device.to_host(contiguous(tensor, "isend: tensor")), tensor, to, checked(tag, "isend"))
    )


def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """Receive into `tensor` from rank `src` (None: from whoever sends first). Returns the sender's global rank.

    What a signal handler raises meanwhile (KeyboardInterrupt) leaves the message for a later recv where it has not come
    yet. Once it has, or is being copied, it ends the group as in an interrupted `send`: its sender hears of it at once.
    """
    pg = at_once(group, "recv")
    if pg is None:
        return -1
    source, tag = source_of(pg, src, group_src, "recv"), checked(tag, "recv")
    target = Output(tensor, "recv: tensor")
    buffer = per_device.host_buffer(target.flat)
    sender = pg.recv(buffer, source, tag)
    per_device.from_host(target.flat, buffer)
    target.store()
    return pg.ranks[sender]


def irecv(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """Receive, but return at once; wait for the Work before using `tensor`.

    A `wait` of it that takes too long takes the receive back, whosever limit it was: the message is for the next one.
    """
    pg = resolve(group, "irecv")
    return None if pg is None else _noted(pg, _post(pg, tensor, src, tag, group_src))


def _noted(pg: ProcessGroup, work: Work) -> Work:
    """`work`, for which an open block of the group waits, too."""
    block = open_block(pg)
    if block is not None:
        block.append(work)
    return work


def _post(pg: ProcessGroup, tensor: Any, src: int | None, tag: int, group_src: int | None) -> Work:
    source, tag = source_of(pg, src, group_src, "irecv"), checked(tag, "irecv")
    target = Output(tensor, "irecv: tensor")
    buffer = per_device.host_buffer(target.flat)

    def done() -> None:
        per_device.from_host(target.flat, buffer)
        target.store()

    return pg.receive(buffer, source, tag, done)


def source_of(pg: ProcessGroup, src: int | None, group_src: int | None, function: str) -> int:
    """The rank in the group that a receive of `function` is for; ANY where it names none. UsageError for this rank."""
    return ANY if src is None and group_src is None else peer_of(pg, src, group_src, f"{function}: src")


def peer_of(pg: ProcessGroup, rank: int | None, group_rank: int | None, what: str) -> int:
    """The rank in the group that `what`, "function: argument", means. UsageError for this rank itself."""
    peer = root_of(pg, rank, group_rank, what)
    if peer == pg.rank():
        raise UsageError(f"{what} is this rank itself: a rank cannot send to itself")
    return peer


class P2POp:
    """One `isend` or `irecv` for `batch_isend_irecv`; `peer` is a global rank, `group_peer` the same in `group`.

    UsageError for another `op`, for a tensor that is none, and for a peer that is not in the group.
    """

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Any,
        peer: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise UsageError(f"P2POp: op: expected resilin.distributed.isend or resilin.distributed.irecv, got {op!r}")
        array_of(tensor, "P2POp: tensor")
        pg = resolve(group, "P2POp")
        if pg is None:
            raise UsageError("P2POp: this process is not in the group")
        self.op = op
        self.tensor = tensor
        self.group = pg
        self.tag = checked(tag, "P2POp")
        self.group_peer = root_of(pg, peer, group_peer, "P2POp: peer")
        self.peer = pg.ranks[self.group_peer]

    def __repr__(self) -> str:
        source, target = self.group.rank(), self.group_peer
        if self.op is irecv:
            source, target = target, source
        array = array_of(self.tensor, "P2POp: tensor")
        return (
            f"P2POp({self.op.__name__} pg={self.group.name}, group_src={source}, group_dst={target}, "
            f"{list(array.shape)}, {array.dtype})"
        )


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Start all operations, receives before anything is sent; their Works, in the order of the list.

    UsageError for operations of more than one group.
    """
    ops: Any = p2p_op_list if isinstance(p2p_op_list, list | tuple) else [p2p_op_list]
    if not all(isinstance(op, P2POp) for op in ops):
        raise UsageError(f"batch_isend_irecv: p2p_op_list: expected a list of P2POp, got {p2p_op_list!r:.80}")
    if any(op.group is not ops[0].group for op in ops):
        raise UsageError("batch_isend_irecv: expected operations of one group, got several groups")
    works: dict[int, Any] = {}
    for wanted in (irecv, isend):
        for i, p2p in enumerate(ops):
            if p2p.op is wanted:
                works[i] = p2p.op(p2p.tensor, group=p2p.group, tag=p2p.tag, **_peer_of(p2p))
    return [work for _, work in sorted(works.items())]


def _peer_of(p2p: P2POp) -> dict[str, int]:
    return {"group_src" if p2p.op is irecv else "group_dst": p2p.group_peer}
