"""Who sends which part to whom, step by step, for every algorithm over point-to-point connections.

Pure: no socket, no array. A schedule for one rank is a list of steps; parts are half-open ranges of chunk numbers of
one buffer cut into `world_size` chunks (`bounds`). Within a step a rank may send and receive at the same time. Tests
run the schedules of all ranks on lists of integers.

    ring       2(P-1) steps, 2(P-1)/P of the buffer per rank: large buffers
    doubling   log2 P steps of the whole buffer: small ones; every rank sums in the same tree, so bits are equal
    binomial   log2 P steps: broadcast and reduce
"""

from __future__ import annotations

from dataclasses import dataclass


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


def ring_reduce_scatter(rank: int, size: int) -> list[Step]:
    """After it, rank r holds the complete chunk r. Chunk c is summed in the order c+1, c+2, ..., c."""
    steps = []
    for k in range(size - 1):
        out, into = (rank - 1 - k) % size, (rank - 2 - k) % size
        steps.append(Step(Part((rank + 1) % size, out, out + 1), Part((rank - 1) % size, into, into + 1), True))
    return steps


def ring_all_gather(rank: int, size: int) -> list[Step]:
    """From rank r holding chunk r to every rank holding all."""
    steps = []
    for k in range(size - 1):
        out, into = (rank - k) % size, (rank - 1 - k) % size
        steps.append(Step(Part((rank + 1) % size, out, out + 1), Part((rank - 1) % size, into, into + 1)))
    return steps


def ring_all_reduce(rank: int, size: int) -> list[Step]:
    """Reduce-scatter, then all-gather, along one ring."""
    return ring_reduce_scatter(rank, size) + ring_all_gather(rank, size)


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
