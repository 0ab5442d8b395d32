"""Channels of one process, joined as workers would be: what they send and post is delivered when the test says so."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import resilin
from resilin.core.kernels.common import address_of
from resilin.core.machine import memory
from resilin.core.state.copying import array_over
from resilin.rpc.channels.base import Block, Packed
from resilin.rpc.channels.lent import LentChannel

Tensors = list[Any]
Layout = list[tuple[Any, tuple[int, ...], tuple[int, ...], int]]
DEADLINE_S = 20.0


def block_of(tensors: Tensors) -> Block:
    """The block that tensors over one memory lie in."""
    owner = tensors[0]._array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    bounds = [np.lib.array_utils.byte_bounds(tensor._array) for tensor in tensors]
    start, end = min(low for low, _ in bounds), max(high for _, high in bounds)
    return Block(owner, start, end - start, tensors, "cpu")


def layout_of(block: Block) -> Layout:
    """What a message says of the tensors beside their memory."""
    arrays = [tensor._array for tensor in block.tensors]
    return [(a.dtype, a.shape, a.strides, address_of(a) - block.start) for a in arrays]


def tensors_over(unpacked: Any, layout: Layout) -> Tensors:
    """The tensors that a receiver makes of a block."""
    return [resilin.Tensor._wrap(array_over(unpacked, *each)) for each in layout]


class Workers:
    """Some channels, the ends of loans that are on their way, and messages that are."""

    def __init__(self, count: int, secret: str = "") -> None:
        self.posts: dict[tuple[int, int], deque[bytes]] = {
            (source, to): deque() for source in range(count) for to in range(count)
        }
        self.channels = [LentChannel(self.post_of(source), secret) for source in range(count)]

    def post_of(self, source: int) -> Callable[[int, bytes], None]:
        """What the channel of `source` posts with."""
        return lambda to, note: self.posts[source, to].append(note)

    def deliver(self) -> None:
        """Deliver every post that is on its way."""
        for (source, to), notes in self.posts.items():
            while notes:
                self.channels[to].handle(source, notes.popleft())

    def pack(self, tensors: Tensors, source: int, to: int) -> tuple[Packed, Layout]:
        """What `source` sends to `to`."""
        block = block_of(tensors)
        assert self.channels[source].reaches(block, self.channels[to].describe())
        return self.channels[source].pack(block, to), layout_of(block)

    def unpack(self, sent: tuple[Packed, Layout], source: int, to: int) -> Tensors:
        """What `to` makes of it."""
        packed, layout = sent
        return tensors_over(self.channels[to].unpack(packed.note, packed.parts, source), layout)

    def send(self, tensors: Tensors, source: int, to: int) -> Tensors:
        """Send tensors over one memory, and receive them."""
        return self.unpack(self.pack(tensors, source, to), source, to)

    def settle(self) -> None:
        """Wait until no channel lends or shows anything. AssertionError after a while."""
        end = time.monotonic() + DEADLINE_S
        while any(found["loans"] or found["windows"] for found in (each.stats() for each in self.channels)):
            assert time.monotonic() < end, [each.stats() for each in self.channels]
            self.deliver()
            time.sleep(0.001)

    def settle_one(self, worker: int, loans: int = 0) -> None:
        """Wait until a worker lends nothing, or so much."""
        end = time.monotonic() + DEADLINE_S
        while self.channels[worker].stats()["loans"] != loans:
            assert time.monotonic() < end, self.channels[worker].stats()
            self.deliver()
            time.sleep(0.001)

    def close(self) -> None:
        """Close all channels, and wait until nobody serves what they have lent."""
        for channel in self.channels:
            channel.close()
        end = time.monotonic() + DEADLINE_S
        while any(each.name.startswith("resilin-rpc-") for each in threading.enumerate()):
            assert time.monotonic() < end, threading.enumerate()
            time.sleep(0.0005)


@contextmanager
def joined(count: int, secret: str = "") -> Iterator[Workers]:
    """Workers that are closed at the end."""
    memory.install()
    workers = Workers(count, secret)
    try:
        yield workers
    finally:
        workers.close()
