"""Plan who sends which part to whom, step by step, for every algorithm over point-to-point connections.

Pure: no socket, no array. A schedule for one rank is a list of steps; parts are half-open ranges of chunk numbers of
one buffer cut into `world_size` chunks (`bounds`). Within a step a rank may send and receive at the same time. Tests
run the schedules of all ranks on lists of integers.

    doubling   log2 P steps of the whole buffer: small ones; every rank sums in the same tree, so bits are equal
    halving    2 log2 P steps, 2(P-1)/P of the buffer per rank: many ranks
    direct     2(P-1) steps, 2(P-1)/P of the buffer per rank; nothing waits for a third rank, so it costs two latencies
    binomial   log2 P steps: broadcast and reduce of small buffers
    chain      P-1 links, each of which carries the buffer once, in P parts one after the other: large ones

Which one is taken depends on the number of bytes and ranks alone: `all_reduce`, `broadcast` and `reduce` choose.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilin.distributed.wire.cost_model import Link

LINK = Link()  # what decides which schedule is taken: the same on all ranks


@dataclass(frozen=True)
class Part:
    """Chunks [start, stop) to or from `peer`."""

    peer: int
    start: int
    stop: int


@dataclass(frozen=True)
class Step:
    """One step of one rank: send, receive, or both at once."""

    send: Part | None = None
    recv: Part | None = None
    combine: bool = False
    """Whether what arrives is combined with the buffer (else it replaces that part)."""


def bounds(count: int, chunks: int) -> list[int]:
    """`chunks + 1` boundaries that cut `count` elements evenly: chunk i is [bounds[i], bounds[i+1])."""
    return [i * count // chunks for i in range(chunks + 1)]


def direct_reduce_scatter(rank: int, size: int) -> list[Step]:
    """After it, rank r holds the complete chunk r. Chunk c is summed in the order c, c-1, c-2, ..., c+1."""
    return [Step(Part(to, to, to + 1), Part(source, rank, rank + 1), True) for to, source in pairwise(rank, size)]


def direct_all_gather(rank: int, size: int) -> list[Step]:
    """From rank r holding chunk r to every rank holding all."""
    return [Step(Part(to, rank, rank + 1), Part(source, source, source + 1)) for to, source in pairwise(rank, size)]


def direct_all_reduce(rank: int, size: int) -> list[Step]:
    """Every rank sums one chunk, which all others send it, and sends the sum to all."""
    return direct_reduce_scatter(rank, size) + direct_all_gather(rank, size)


def halving_all_reduce(rank: int, size: int) -> list[Step]:
    """Recursive halving, then doubling: partners exchange halves of what they share. Extra ranks as in doubling."""
    power = 1 << (size.bit_length() - 1)
    whole = (0, size)
    if rank >= power:
        partner = Part(rank - power, *whole)
        return [Step(send=partner), Step(recv=partner)]
    joined = rank + power < size
    there = Part(rank + power, *whole)
    mine, distance = whole, power // 2
    steps, back = [Step(recv=there, combine=True)] if joined else [], []
    while distance:
        peer, middle = rank ^ distance, sum(mine) // 2
        halves = (mine[0], middle), (middle, mine[1])
        keep, give = halves if rank < peer else halves[::-1]
        steps.append(Step(Part(peer, *give), Part(peer, *keep), True))
        back.append(Step(Part(peer, *keep), Part(peer, *give)))
        mine, distance = keep, distance // 2
    return steps + back[::-1] + ([Step(send=there)] if joined else [])


def doubling_all_reduce(rank: int, size: int) -> list[Step]:
    """Recursive doubling. With P not a power of two, the ranks beyond it first add to, then copy from, a partner."""
    power = 1 << (size.bit_length() - 1)
    extra = size - power
    if rank >= power:
        partner = Part(rank - power, 0, size)
        return [Step(send=partner), Step(recv=partner)]
    steps = []
    if rank < extra:
        steps.append(Step(recv=Part(rank + power, 0, size), combine=True))
    distance = 1
    while distance < power:
        partner = Part(rank ^ distance, 0, size)
        steps.append(Step(partner, partner, True))
        distance *= 2
    if rank < extra:
        steps.append(Step(send=Part(rank + power, 0, size)))
    return steps


def binomial_broadcast(rank: int, size: int, root: int) -> list[Step]:
    """The whole buffer from `root` to all, in log2 P rounds."""
    place = (rank - root) % size
    steps = []
    distance = 1
    while distance < size:
        if place < distance and place + distance < size:
            steps.append(Step(send=Part((place + distance + root) % size, 0, size)))
        elif distance <= place < 2 * distance:
            steps.append(Step(recv=Part((place - distance + root) % size, 0, size)))
        distance *= 2
    return steps


def binomial_reduce(rank: int, size: int, root: int) -> list[Step]:
    """The sum of all buffers to `root`: the broadcast backwards."""
    return [
        Step(send=step.recv) if step.recv else Step(recv=step.send, combine=True)
        for step in reversed(binomial_broadcast(rank, size, root))
    ]


def chain_broadcast(rank: int, size: int, root: int) -> list[Step]:
    """The whole buffer from `root` along a line of ranks; each passes one chunk on while it receives the next."""
    place = (rank - root) % size
    before, after = _neighbours(rank, size, place)
    return _pass_on(size, before, after, combine=False)


def chain_reduce(rank: int, size: int, root: int) -> list[Step]:
    """The sum of all buffers to `root`, along the same line backwards: each adds its own and passes the sum on."""
    place = (rank - root) % size
    before, after = _neighbours(rank, size, place)
    return _pass_on(size, after, before, combine=True)


def _neighbours(rank: int, size: int, place: int) -> tuple[int | None, int | None]:
    return (rank - 1) % size if place > 0 else None, (rank + 1) % size if place < size - 1 else None


def _pass_on(chunks: int, source: int | None, to: int | None, combine: bool) -> list[Step]:
    steps = []
    for chunk in range(chunks + 1):
        send = Part(to, chunk - 1, chunk) if chunk > 0 and to is not None else None
        recv = Part(source, chunk, chunk + 1) if chunk < chunks and source is not None else None
        if send or recv:
            steps.append(Step(send, recv, combine))
    return steps


def all_reduce(rank: int, size: int, nbytes: int) -> list[Step]:
    """The schedule that costs least on `LINK`."""
    costs = {doubling_all_reduce: LINK.doubling, direct_all_reduce: LINK.direct, halving_all_reduce: LINK.halving}
    return min(costs, key=lambda schedule: costs[schedule](size, nbytes))(rank, size)


def broadcast(rank: int, size: int, nbytes: int, root: int) -> list[Step]:
    """A binomial tree, or a chain where the links' bandwidth matters more than their number."""
    return (chain_broadcast if _by_chain(size, nbytes) else binomial_broadcast)(rank, size, root)


def reduce(rank: int, size: int, nbytes: int, root: int) -> list[Step]:
    """Plan a reduction to `root`, by chain or tree as `broadcast` does."""
    return (chain_reduce if _by_chain(size, nbytes) else binomial_reduce)(rank, size, root)


def _by_chain(size: int, nbytes: int) -> bool:
    return size > 2 and LINK.chain(size, nbytes) < LINK.binomial(size, nbytes)


def dissemination(rank: int, size: int) -> list[Step]:
    """After it, every rank has heard (through others) from every rank: the barrier, and agreement on a call."""
    steps = []
    distance = 1
    while distance < size:
        steps.append(Step(Part((rank + distance) % size, 0, size), Part((rank - distance) % size, 0, size)))
        distance *= 2
    return steps


def pairwise(rank: int, size: int) -> list[tuple[int, int]]:
    """All-to-all: in step k send to rank+k and receive from rank-k, as (destination, source)."""
    return [((rank + k) % size, (rank - k) % size) for k in range(1, size)]
