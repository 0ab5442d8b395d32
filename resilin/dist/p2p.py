"""Messages between two ranks: send, recv, and their asynchronous forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from resilin.dist.arguments import Output, contiguous, root_of
from resilin.dist.group import ProcessGroup
from resilin.dist.mailbox import ANY
from resilin.dist.work import Work
from resilin.dist.world import resolve
from resilin.errors import UsageError


def send(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Send `tensor` to rank `dst`; returns when the tensor may be changed again."""
    pg = resolve(group)
    if pg is not None:
        pg.send(contiguous(tensor), _peer(pg, dst, group_dst, "dst"), tag)


def isend(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """As send. Peers always read, so the bytes leave at once: the Work is complete when this returns."""
    pg = resolve(group)
    if pg is None:
        return None
    to = _peer(pg, dst, group_dst, "dst")
    work = Work(f"isend to rank {to} with tag {tag}, {pg.title()}")
    pg.send(contiguous(tensor), to, tag)
    work._future.set_result([tensor])
    return work


def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """Receive into `tensor` from rank `src` (None: from whoever sends first). Returns the sender's global rank."""
    pg = resolve(group)
    if pg is None:
        return -1
    work = _post(pg, tensor, src, tag, group_src)
    work.wait(pg.timeout_s)
    return pg.ranks[work.source_rank()]


def irecv(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """As recv; wait for the Work before using `tensor`."""
    pg = resolve(group)
    return None if pg is None else _post(pg, tensor, src, tag, group_src)


def _post(pg: ProcessGroup, tensor: Any, src: int | None, tag: int, group_src: int | None) -> Work:
    source = ANY if src is None and group_src is None else _peer(pg, src, group_src, "src")
    target = Output(tensor)
    return pg.receive(target.flat, source, tag, target.store)


def _peer(pg: ProcessGroup, rank: int | None, group_rank: int | None, name: str) -> int:
    peer = root_of(pg, rank, group_rank, name)
    if peer == pg.rank():
        raise UsageError(f"{name} is this rank itself: a rank cannot send to itself")
    return peer


class P2POp:
    """One `isend` or `irecv` for `batch_isend_irecv`."""

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
            raise UsageError("P2POp takes resilin.dist.isend or resilin.dist.irecv")
        self.op, self.tensor, self.peer, self.group, self.tag, self.group_peer = (
            op,
            tensor,
            peer,
            group,
            tag,
            group_peer,
        )


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Start all operations; receives are posted before anything is sent."""
    works: dict[int, Work | None] = {}
    for wanted in (irecv, isend):
        for i, p2p in enumerate(p2p_op_list):
            if p2p.op is wanted:
                works[i] = p2p.op(p2p.tensor, p2p.peer, p2p.group, p2p.tag, p2p.group_peer)
    return [work for _, work in sorted(works.items()) if work is not None]
