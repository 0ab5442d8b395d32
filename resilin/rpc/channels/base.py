"""Define what carries the memory of tensors between workers, one block at a time.

A message is a pickle in which every tensor is a hole, and the blocks of memory that those tensors lie in: tensors of
one message that share memory share a block, and share it again at the receiver. For each block the sender takes the
first channel that reaches the peer with it; the block's note and parts travel with the message.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from resilin.rpc.transports.base import Buffer


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that tensors of one message lie in."""

    owner: Any
    """The backend's array that has the memory (numpy: the last `base`)."""
    start: int
    """Address of the first byte that a tensor of the message reaches."""
    size: int
    """Bytes up to the last such one."""
    tensors: Sequence[Any]
    """The tensors of the message that lie in it."""
    device: str
    """As in `str(tensor.device)`."""
    target: str = "cpu"
    """The device of the receiver that the block goes to: what `unpack` makes lies there."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A block on its way."""

    note: bytes
    """What the channel at the other end needs to know."""
    parts: Sequence[Buffer]
    """Bytes that travel with the message."""


Post = Callable[[int, bytes], None]
"""Sends a note to the same channel of a peer, behind what was sent to it before. Never blocks, never raises."""


class TensorChannel(abc.ABC):
    """Carry blocks of memory to peers. Made as `C(post)`; the maker calls `close`. All methods: any thread."""

    name: ClassVar[str]
    """What users choose it by, and logs name."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Return what peers compare with theirs: the host's or the device's identity, never a guess."""

    @abc.abstractmethod
    def reaches(self, block: Block, theirs: str) -> bool:
        """Return whether `block` can go through this channel to a peer whose channel of this name `describe`d so."""

    @abc.abstractmethod
    def pack(self, block: Block, peer: int) -> Packed:
        """Return `block` on its way to `peer`. Later writes to its tensors do not show there (snapshot semantics)."""

    def withdraw(self, packed: Packed, peer: int) -> None:  # noqa: B027 - what keeps nothing has nothing to do
        """Free what `pack` has kept for a message that was not sent after all."""

    @abc.abstractmethod
    def unpack(self, note: bytes, parts: Sequence[Buffer], source: int) -> Any:
        """Return the block as a one-dimensional uint8 array of the backend, whose writes do not show at `source`.

        A message that nobody needs any more is unpacked all the same and dropped: that frees what the sender keeps.

        ValueError for a note that no channel of this name has written.
        """

    @abc.abstractmethod
    def handle(self, source: int, note: bytes) -> None:
        """Take what the same channel of `source` has posted."""

    @abc.abstractmethod
    def lost(self, peer: int) -> None:
        """Free what was kept for `peer`, which is gone; what came from it stays readable."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free everything of this channel; what came from peers stays readable. Idempotent."""
