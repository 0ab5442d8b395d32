"""Cut a version into stripes for readers that cannot map it: several of them are under way at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import trees
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributed.work.future import Future
from resilin.rpc.published.versions import Version, bytes_of
from resilin.rpc.references.rref import RRef

STRIPE_BYTES = 8 << 20  # one message: short beside what a transport buffers, long beside what a call costs
_UNDER_WAY = 4
Piece = tuple[int, int, int]
"""A tensor's number, and where its bytes begin and end."""


@dataclass(frozen=True)
class StripedHole:
    """The place of a tensor that comes in stripes."""

    number: int
    shape: tuple[int, ...]
    dtype: str


class Striped:
    """A version at its publisher, for as long as a reader refers to it."""

    def __init__(self, version: Version) -> None:
        leaves, self._tree = trees.flatten(version.state)
        self.version = version
        self._bytes: list[Any] = []
        self._leaves = [self._hole(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def _hole(self, tensor: Tensor) -> StripedHole:
        self._bytes.append(bytes_of(tensor))
        shape = tuple(int(length) for length in tensor._array.shape)
        return StripedHole(len(self._bytes) - 1, shape, dtypes.from_numpy(tensor._array.dtype).name)

    @property
    def outline(self) -> Any:
        """Return the state with a StripedHole in the place of each tensor."""
        return trees.unflatten(self._leaves, self._tree)

    def stripe(self, pieces: list[Piece]) -> Tensor:
        """Return the bytes of some pieces, one behind the other."""
        found = [self._bytes[number][begin:end] for number, begin, end in pieces]
        return creation.from_numpy(found[0] if len(found) == 1 else np.concatenate(found))


def _cut(sizes: list[int]) -> list[list[Piece]]:
    """The stripes of tensors of so many bytes, one after the other."""
    stripes: list[list[Piece]] = [[]]
    room = STRIPE_BYTES
    for number, size in enumerate(sizes):
        at = 0
        while at < size:
            if not room:
                stripes.append([])
                room = STRIPE_BYTES
            taken = min(room, size - at)
            stripes[-1].append((number, at, at + taken))
            at += taken
            room -= taken
    return stripes if stripes[0] else []


def assembled(outline: Any, there: RRef[Striped], timeout_s: float) -> Any:
    """Return the state of `outline`, having asked for all its stripes. Raises what calls raise."""
    leaves, tree = trees.flatten(outline)
    arrays = [np.empty(leaf.shape, dtypes.by_name(leaf.dtype).np) for leaf in leaves if isinstance(leaf, StripedHole)]
    rows = [array.reshape(-1).view(np.uint8) for array in arrays]
    under_way: deque[tuple[list[Piece], Future[Tensor]]] = deque()
    left = deque(_cut([row.size for row in rows]))
    while left or under_way:
        while left and len(under_way) < _UNDER_WAY:
            pieces = left.popleft()
            under_way.append((pieces, there.rpc_async(timeout_s).stripe(pieces)))
        pieces, future = under_way.popleft()
        found, at = future.wait()._array, 0
        for number, begin, end in pieces:
            rows[number][begin:end] = found[at : at + end - begin]
            at += end - begin
    made = [creation.from_numpy(arrays[leaf.number]) if isinstance(leaf, StripedHole) else leaf for leaf in leaves]
    return trees.unflatten(made, tree)
