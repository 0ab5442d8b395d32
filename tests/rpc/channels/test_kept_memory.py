"""What channels keep for a message is freed, also when nobody reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from rpc_functions import identity
from rpc_workers import Me, on_workers, until

import resilin
import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM
from resilin.rpc.channels.base import Block, Packed
from resilin.rpc.channels.inline import InlineChannel
from resilin.rpc.group import start
from resilin.rpc.serialization.serializer import Serializer, take_back
from resilin.rpc.transports.base import Buffer
from resilin.testing.check_tensor_channel import Receiver


class Counting(InlineChannel):
    """Bytes in the message, and a count of what is kept until the receiver has read it."""

    name = "counting"
    kept = 0
    unpacked = 0

    def describe(self) -> str:
        return "inline"

    def pack(self, block: Block, peer: int) -> Packed:
        if block.size == 400:
            raise ValueError("this size is not packed")
        Counting.kept += 1
        return super().pack(block, peer)

    def withdraw(self, packed: Packed, peer: int) -> None:
        Counting.kept -= 1

    def unpack(self, note: bytes, parts: Sequence[Buffer], source: int) -> Any:
        Counting.unpacked += 1
        if len(memoryview(parts[0])) == 800:
            raise ValueError("this size is not unpacked")
        return super().unpack(note, parts, source)


RECEIVER = Receiver(1, "worker1", {"counting": "inline"}, {})


@pytest.fixture
def serializer(monkeypatch: pytest.MonkeyPatch) -> Serializer:
    monkeypatch.setattr(Counting, "kept", 0)
    monkeypatch.setattr(Counting, "unpacked", 0)
    return Serializer([Counting(lambda peer, note: None)], None, False)


def test_a_message_that_cannot_be_packed_keeps_nothing(serializer: Serializer) -> None:
    with pytest.raises(ValueError, match="not packed"):
        serializer.dump([resilin.ones(3), resilin.ones(4), resilin.ones(100)], RECEIVER)
    assert Counting.kept == 0


def test_a_message_that_is_not_sent_keeps_nothing(serializer: Serializer) -> None:
    *_, kept = serializer.dump([resilin.ones(3), resilin.ones(4)], RECEIVER)
    assert Counting.kept == 2
    take_back(kept)
    assert Counting.kept == 0


def test_every_block_of_a_message_is_taken_though_one_fails(serializer: Serializer) -> None:
    flags, data, parts, _ = serializer.dump([resilin.ones(3), resilin.ones(200), resilin.ones(4)], RECEIVER)
    with pytest.raises(ValueError, match="not unpacked"):
        serializer.load(flags, data, [bytearray(part) for part in parts], 0)
    assert Counting.unpacked == 3


def busy(seconds: float) -> None:
    SYSTEM.sleep(seconds)


def counted() -> int:
    return Counting.unpacked


@on_workers(2, setup=False, num_worker_threads=1)
def test_what_was_lent_for_a_call_that_came_late_is_taken_and_let_go(me: Me) -> None:
    start.CHANNELS = {"counting": Counting, **start.CHANNELS}
    try:
        Counting.kept = Counting.unpacked = 0
        me.init()
        if me.rank == 0:
            working = rpc.rpc_async(me.next, busy, args=(0.4,))
            late = rpc.rpc_async(me.next, identity, args=(resilin.ones(5),), timeout=0.1)
            with pytest.raises(RuntimeError):
                late.wait()
            working.wait()
            until(lambda: rpc.rpc_sync(me.next, counted) == 1)
        rpc.shutdown()
    finally:
        del start.CHANNELS["counting"]
