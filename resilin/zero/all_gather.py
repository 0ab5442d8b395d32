"""How every rank gets what the others have updated: three ways for a row of parameters.

InPlace  the parameters are views of one flat array, in which every rank fills in the others' ranges: nothing is packed
Staged   parameters keep their memory: ranges pass through a small array, piece by piece
ByOwner  parameters are not cut: each owner broadcasts its own, small ones packed together

A gathering writes what other ranks own and leaves what this rank owns as it is. It is one collective (or several, in
the same order on all ranks): who comes out of it knows that every rank has finished its own update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import resilin.distributed as dist
from resilin.core.tensor import Tensor, wrap
from resilin.distributed.agreement import compare
from resilin.distributed.agreement.compare import Facts
from resilin.zero import partition
from resilin.zero.flat_param import Array, FlatParameter

STAGE_BYTES = 4 << 20  # of all ranks' pieces together: they are copied on while they are in a cache

Parts = list[tuple[Array, int, int]]  # views of parameters, each with its place in a packed array


class Gathering(Protocol):
    """One way, for one row."""

    def run(self, group: dist.ProcessGroup, facts: Facts) -> None:
        """Bring every parameter of the row up to date with its owners, who must have `facts` alike."""

    def follow(self) -> None:
        """A parameter may lie in other memory than before."""


class InPlace:
    """Moves the parameters of a row into one flat array, which ends in padding."""

    def __init__(self, row: FlatParameter, rank: int) -> None:
        self._row = row
        self._flat = row.empty(row.share * row.world_size)
        self._flat[row.total :] = 0
        self._own = slice(rank * row.share, (rank + 1) * row.share)
        self._views = [
            self._flat[start : start + numel].reshape(param._array.shape)
            for param, start, numel in zip(row.params, row.starts, row.numels, strict=False)
        ]
        self.follow()

    def follow(self) -> None:
        """Parameters that were given other memory come back with their values."""
        for param, view in zip(self._row.params, self._views, strict=True):
            if param._array is not view:
                view[...] = param._array
                param.data = wrap(view, self._row.dev)

    def run(self, group: dist.ProcessGroup, facts: Facts) -> None:
        """See Gathering. Cost: (P-1)/P of the row is read and written, once."""
        if self._flat.size:
            tensor = self._row.tensor
            compare.all_gather_into_tensor(tensor(self._flat), tensor(self._flat[self._own]), facts, group)


class Staged:
    """Packs what the ranks own into one array of at most STAGE_BYTES, as often as it takes."""

    def __init__(self, row: FlatParameter, rank: int, stage_bytes: int = STAGE_BYTES) -> None:
        self._row, self._rank = row, rank
        most = max(partition.BLOCK, stage_bytes // (row.dtype.itemsize * row.world_size))
        self._length = min(row.share, most)  # elements of each rank in a round
        self._stage = row.empty(self._length * row.world_size)
        self._seen: list[Array] = []
        self._rounds: list[tuple[int, list[Parts]]] = []  # elements of each rank, and each rank's parameters
        self.follow()

    def follow(self) -> None:
        """See Gathering."""
        arrays = [param._array for param in self._row.params]
        if len(arrays) == len(self._seen) and all(a is b for a, b in zip(arrays, self._seen, strict=True)):
            return
        row, self._seen = self._row, arrays
        self._rounds = []
        for low in range(0, row.share, max(1, self._length)):
            high = min(low + self._length, row.share)
            ends = [(rank * row.share + low, rank * row.share + high) for rank in range(row.world_size)]
            self._rounds.append((high - low, [row.within(start, stop) for start, stop in ends]))

    def run(self, group: dist.ProcessGroup, facts: Facts) -> None:
        """See Gathering. Cost: as InPlace, and one more copy of the row through the cache."""
        tensor = self._row.tensor
        for length, parts in self._rounds:
            stage = self._stage[: length * len(parts)].reshape(len(parts), length)
            mine = stage[self._rank]
            _pack(parts[self._rank], mine)
            compare.all_gather_into_tensor(tensor(stage.reshape(-1)), tensor(mine), facts, group)
            for rank, received in enumerate(stage):
                if rank != self._rank:
                    _unpack(received, parts[rank])


class ByOwner:
    """Sends whole parameters, each owner's in turn."""

    def __init__(self, row: FlatParameter, rank: int) -> None:
        self._row, self._rank = row, rank
        self._packs: list[tuple[int, list[Tensor]]] = []  # the owner, and what travels together
        for owner, pieces in enumerate(row.shares):
            own = [row.params[piece.param] for piece in pieces if piece.numel]
            self._packs += [(owner, pack) for pack in _packed(own)]

    def follow(self) -> None:
        """See Gathering: nothing is remembered of the memory."""

    def run(self, group: dist.ProcessGroup, facts: Facts) -> None:
        """See Gathering. Cost: a broadcast of all parameters."""
        row = self._row
        for owner, pack in self._packs:
            flats = [param._array.reshape(-1) for param in pack]
            if len(flats) == 1:
                compare.broadcast(row.tensor(flats[0]), owner, facts, group)
                continue
            parts = _places(flats)
            stage = row.empty(parts[-1][2])
            if owner == self._rank:
                _pack(parts, stage)
            compare.broadcast(row.tensor(stage), owner, facts, group)
            if owner != self._rank:
                _unpack(stage, parts)


def gathering_of(row: FlatParameter, rank: int, as_view: bool) -> Gathering:
    """The way for `row`. `as_view`: parameters may be moved into one array."""
    if row.whole:
        return ByOwner(row, rank)
    return InPlace(row, rank) if as_view else Staged(row, rank)


def _packed(params: Sequence[Tensor]) -> list[list[Tensor]]:
    """Consecutive parameters in packs of at most STAGE_BYTES; a larger one alone."""
    packs: list[list[Tensor]] = []
    held = 0
    for param in params:
        nbytes = param._array.nbytes
        if packs and held + nbytes <= STAGE_BYTES:
            packs[-1].append(param)
            held += nbytes
        else:
            packs.append([param])
            held = nbytes
    return packs


def _places(flats: Sequence[Any]) -> Parts:
    parts, at = [], 0
    for flat in flats:
        parts.append((flat, at, at + flat.size))
        at += flat.size
    return parts


def _pack(parts: Parts, into: Array) -> None:
    for view, start, stop in parts:
        into[start:stop] = view


def _unpack(packed: Array, parts: Parts) -> None:
    for view, start, stop in parts:
        view[...] = packed[start:stop]
