"""Move state from the members that have it to those that lack it: who sends which bytes to whom. Pure, but for `run`.

All tensors of a state form one virtual stream of bytes, in the order of the manifest:

    stream     | model.weight | model.bias | optimizer exp_avg | ...
    sources    |      rank 0        |      rank 2      | ...        each sends its even share, in chunks,
    receivers  |  everybody else receives all of it                 each chunk followed by its blake2b digest
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import resilin.distributed as dist
from resilin._base import fault_points
from resilin.core.tensor import Tensor
from resilin.distributed.wire.packing import Bytes, ByteStream
from resilin.errors import StateError, UsageError

CHUNK_BYTES = 8 << 20  # large enough to run at memory speed, small enough that staging it costs nothing beside state
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Move:
    """Rank `source` sends bytes [start, stop) of the stream to rank `receiver`."""

    source: int
    receiver: int
    start: int
    stop: int


def plan(
    total_bytes: int, sources: Sequence[int], receivers: Sequence[int], chunk_bytes: int | None = None
) -> tuple[Move, ...]:
    """Every receiver gets every byte once; every source sends an even share of them, to all receivers.

    A receiver starts with a different source than its neighbour, so that at any moment the sources work for different
    receivers. Moves are in an order in which blocking sends and receives cannot wait for one another in a ring: a
    source only sends, a receiver only receives.
    """
    if not sources or set(sources) & set(receivers):
        raise UsageError(f"transfer needs sources that are not receivers, got {list(sources)} and {list(receivers)}")
    chunk_bytes = chunk_bytes or CHUNK_BYTES
    moves = []
    for lap in range(len(sources)):
        for place, receiver in enumerate(receivers):
            share = (place + lap) % len(sources)
            start, stop = (total_bytes * (share + k) // len(sources) for k in (0, 1))
            for at in range(start, stop, chunk_bytes):
                moves.append(Move(sources[share], receiver, at, min(at + chunk_bytes, stop)))
    return tuple(moves)


def seal(stream: ByteStream, move: Move) -> Bytes:
    """The move's bytes followed by their digest: what goes over the wire."""
    size = move.stop - move.start
    message = np.empty(size + DIGEST_BYTES, np.uint8)
    stream.read(move.start, move.stop, message[:size])
    message[size:] = np.frombuffer(_digest(message[:size]), np.uint8)
    return message


def unseal(stream: ByteStream, move: Move, message: Bytes) -> None:
    """Write a received message into the stream. StateError, before anything is written, when its digest is wrong."""
    size = move.stop - move.start
    got, told = _digest(message[:size]), message[size:].tobytes()
    if got != told:
        raise StateError(
            f"state from rank {move.source}, bytes [{move.start}, {move.stop}) of {stream.nbytes}: blake2b is "
            f"{got.hex()[:16]}..., the sender said {told.hex()[:16]}...; the bytes changed on the way or in memory"
        )
    stream.write(move.start, message[:size])


def run(stream: ByteStream, moves: Sequence[Move], rank: int, group: dist.ProcessGroup) -> int:
    """Carry out this rank's part of `moves`; returns the bytes it sent or received. Errors are the group's."""
    moved = 0
    for move in moves:
        fault_points.reached("state")
        if move.source == rank:
            dist.send(Tensor._wrap(seal(stream, move)), group_dst=move.receiver, group=group)
        elif move.receiver == rank:
            message = np.empty(move.stop - move.start + DIGEST_BYTES, np.uint8)
            dist.recv(Tensor._wrap(message), group_src=move.source, group=group)
            unseal(stream, move, message)
        else:
            continue
        moved += move.stop - move.start
    return moved


def _digest(data: Bytes) -> bytes:
    return hashlib.blake2b(data.data, digest_size=DIGEST_BYTES).digest()
