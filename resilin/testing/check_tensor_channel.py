"""The conformance suite of `resilin.rpc.channels.base.TensorChannel`: what every one must do, as tests to inherit.

    class TestMyChannel(TensorChannelConformance):
        @pytest.fixture
        def make(self):
            return MyChannel              # made as MyChannel(post)

        device, target = "cpu", "cpu"     # where tensors lie, and where they go

What the channel does not reach (too small, another kind of memory) goes inline or staged, as in a real worker;
`least_bytes` says from which size on all must take the channel. Tensors are made on `device` by this library.
"""

from __future__ import annotations

import gc
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import resilin
from resilin._base.clock import SYSTEM, Deadline
from resilin.rpc.channels.base import Post, TensorChannel
from resilin.rpc.channels.inline import InlineChannel
from resilin.rpc.channels.staged import StagedChannel
from resilin.rpc.serialization.serializer import Serializer
from resilin.testing.patience import PATIENCE_S

Tensors = list[Any]
SIZES = [1, 3, 15, 16, 17, 4095, 4097, 65_536, 262_145, (2 << 20) + 3]  # elements
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool", "complex64"]


@dataclass
class Receiver:
    """A worker as its peers know it."""

    id: int
    name: str
    channels: Mapping[str, str]
    devices: Mapping[str, str]
    allows_closures: bool = False

    def device_for(self, device: str) -> str | None:
        """Return where tensors of `device` go."""
        return self.devices.get(device)


@dataclass
class SentMessage:
    """A message on its way, as the transport has it: its parts are the receiver's."""

    flags: int
    data: bytes
    parts: list[bytearray]
    channels: list[str] = field(default_factory=list)
    """Of its blocks."""


class JoinedChannels:
    """Channels of one process, joined as those of workers are; what they post arrives when the test says so."""

    def __init__(
        self, make: Callable[[Post], TensorChannel], count: int = 2, device: str = "cpu", target: str = "cpu"
    ) -> None:
        self._posts: dict[tuple[int, int], deque[bytes]] = {
            (source, to): deque() for source in range(count) for to in range(count)
        }
        self.channels = [make(self._post_of(source)) for source in range(count)]
        self._serializers = [self._serializer(number) for number in range(count)]
        self.peers = [
            Receiver(
                number,
                f"worker{number}",
                self._serializers[number].described(),
                {device: target, target: device},
            )
            for number, channel in enumerate(self.channels)
        ]

    def _post_of(self, source: int) -> Post:
        return lambda to, note: self._posts[source, to].append(note)

    def _serializer(self, number: int) -> Serializer:
        channels: list[TensorChannel] = [self.channels[number]]
        for kind in (InlineChannel, StagedChannel):  # as in a real worker: for what it does not reach
            if self.channels[number].name != kind.name:
                channels.append(kind(self._post_of(number)))
        return Serializer(channels, None, False)

    def deliver(self) -> None:
        """Let every post arrive that is on its way."""
        for (source, to), notes in self._posts.items():
            while notes:
                self.channels[to].handle(source, notes.popleft())

    def pack(self, thing: Any, source: int = 0, to: int = 1) -> SentMessage:
        """Return the message that `source` sends to `to`: the transport has taken its parts."""
        flags, data, parts, _ = self._serializers[source].dump(thing, self.peers[to])
        names = [name for name, *_ in pickle.loads(parts[0])] if parts else []
        return SentMessage(flags, data, [bytearray(part) for part in parts], names)

    def unpack(self, sent: SentMessage, source: int = 0, to: int = 1) -> Any:
        """Return what `to` reads."""
        return self._serializers[to].load(sent.flags, sent.data, sent.parts, source)[0]

    def send(self, thing: Any, source: int = 0, to: int = 1) -> Any:
        """Send and read, and let posts arrive."""
        received = self.unpack(self.pack(thing, source, to), source, to)
        self.deliver()
        return received

    def kept(self) -> dict[str, int]:
        """Return what the channels keep for one another, by what `stats` (where they have it) calls it."""
        found: dict[str, int] = {}
        for channel in self.channels:
            for name, number in getattr(channel, "stats", dict)().items():
                found[name] = found.get(name, 0) + number
        return found

    def close(self) -> None:
        """Close all channels, and let what they still post arrive."""
        for channel in self.channels:
            channel.close()
        self.deliver()


Join = Callable[..., JoinedChannels]


class TensorChannelConformance:
    """Inherit it, and give it a `make` fixture."""

    device: ClassVar[str] = "cpu"
    target: ClassVar[str] = "cpu"
    least_bytes: ClassVar[int] = 0
    """Blocks from this size on take the channel."""
    passing: ClassVar[tuple[str, ...]] = ("loans", "windows")
    """Names in `stats` of what must be none when nothing is under way."""

    @pytest.fixture
    def join(self, make: Callable[[Post], TensorChannel]) -> Iterator[Join]:
        """Join channels, which are closed after the test: `join(count)`."""
        made: list[JoinedChannels] = []

        def join(count: int = 2) -> JoinedChannels:
            made.append(JoinedChannels(make, count, self.device, self.target))
            return made[-1]

        yield join
        for each in made:
            each.close()

    def tensor(self, count: int, start: int = 0) -> Any:
        """Return a tensor of `count` float32 numbers, which begin with `start`, on the device."""
        return resilin.tensor(np.arange(start, start + count, dtype=np.float32)).to(self.device)

    def settle(self, workers: JoinedChannels) -> None:
        """Wait until nothing is kept for tensors that are gone."""
        deadline = Deadline(PATIENCE_S)
        while any(workers.kept().get(name) for name in self.passing):
            assert not deadline.passed(), workers.kept()
            gc.collect()
            workers.deliver()
            SYSTEM.sleep(0.001)

    def large(self) -> int:
        """Return elements enough for the channel, about 1 MiB more than it asks for."""
        return self.least_bytes // 4 + (1 << 18) + 1

    # --- values ---

    @pytest.mark.parametrize("count", SIZES)
    def test_a_tensor_of_any_size_arrives_on_the_target(self, join: Join, count: int) -> None:
        workers = join()
        sent = workers.pack([self.tensor(count)])
        (got,) = workers.unpack(sent)
        workers.deliver()
        assert str(got.device) == self.target
        assert values(got) == np.arange(count, dtype=np.float32).tobytes()
        if 4 * count >= self.least_bytes:
            assert sent.channels == [workers.channels[0].name]

    def test_the_channel_is_taken_for_what_is_large(self, join: Join) -> None:
        workers = join()
        packed = workers.pack([self.tensor(self.large())])
        assert packed.channels == [workers.channels[0].name]
        workers.unpack(packed)
        workers.deliver()

    def test_empty_tensors_arrive(self, join: Join) -> None:
        workers = join()
        a, b = workers.send([self.tensor(0), self.tensor(6).reshape(2, 3)[:, 3:]])
        assert (tuple(a.shape), tuple(b.shape)) == ((0,), (2, 0))
        assert str(a.device) == str(b.device) == self.target

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_dtype_arrives_as_it_was(self, join: Join, dtype: str) -> None:
        workers = join()
        x = (self.tensor(self.large()) % 2).to(getattr(resilin, dtype))
        (got,) = workers.send([x])
        assert got.dtype is x.dtype
        assert values(got) == values(x)

    def test_views_that_are_not_contiguous_arrive_with_their_strides(self, join: Join) -> None:
        workers = join()
        side = int(self.large() ** 0.5) + 1
        x = self.tensor(side * side).reshape(side, side)
        for view in (x.t(), x[:, 1::2], x[1:, :3], x[3]):
            (got,) = workers.send([view])
            assert values(got) == values(view)
            assert tuple(got.shape) == tuple(view.shape)
        (turned,) = workers.send([x.t()])
        assert turned.stride() == (1, side)

    def test_tensors_of_several_memories_arrive_in_one_message(self, join: Join) -> None:
        workers = join()
        sent = [self.tensor(self.large(), start) for start in range(3)] + [self.tensor(1)]
        got = workers.send({"all": sent, "first": sent[0]})
        assert [values(each) for each in got["all"]] == [values(each) for each in sent]
        got["first"].add_(1)
        assert values(got["all"][0]) == values(got["first"])

    def test_parameters_and_what_requires_gradients_stay_so(self, join: Join) -> None:
        workers = join()
        weight = resilin.nn.Parameter(self.tensor(self.large()))
        leaf = self.tensor(5).requires_grad_()
        got = workers.send([weight, leaf, self.tensor(5)])
        assert [each.requires_grad for each in got] == [True, True, False]
        assert type(got[0]) is resilin.nn.Parameter
        assert values(got[0]) == values(weight)
        assert [str(each.device) for each in got] == [self.target] * 3

    # --- memory ---

    def test_views_of_one_memory_share_it_at_the_receiver(self, join: Join) -> None:
        workers = join()
        x = self.tensor(self.large())
        packed = workers.pack([x, x[5:], x[::2]])
        assert len(packed.channels) == 1
        whole, behind, every_other = workers.unpack(packed)
        workers.deliver()
        whole.fill_(7)
        assert values(behind) == np.full(x.numel() - 5, 7, np.float32).tobytes()
        assert float(every_other.sum()) == 7 * every_other.numel()
        again, once_more = workers.send([whole, behind], 1, 0)
        again.fill_(9)
        assert float(once_more[0]) == 9

    def test_what_is_written_later_shows_at_neither_side(self, join: Join) -> None:
        workers = join()
        x = self.tensor(self.large())
        before = values(x)
        packed = workers.pack([x])
        x.add_(1)
        after = values(x)
        (got,) = workers.unpack(packed)
        assert values(got) == before
        got.mul_(0)
        x.add_(0)
        assert values(x) == after
        (first,), (second,) = workers.send([x]), workers.send([x])
        first.fill_(3)
        assert values(second) == after == values(x)

    def test_a_tensor_goes_there_and_back_and_on(self, join: Join) -> None:
        workers = join(3)
        x = self.tensor(self.large())
        before = values(x)
        (there,) = workers.send([x])
        (back,) = workers.send([there], 1, 0)
        assert str(back.device) == self.device
        assert values(back) == before
        (third,) = workers.send([back], 0, 2)
        back.fill_(0)
        there.fill_(1)
        assert values(third) == before

    def test_a_worker_sends_to_itself(self, join: Join) -> None:
        workers = join()
        x = self.tensor(self.large())
        before = values(x)
        (got,) = workers.send([x], 0, 0)
        x.fill_(0)
        assert values(got) == before

    # --- ends ---

    def test_nothing_is_kept_for_what_is_gone(self, join: Join) -> None:
        workers = join()
        for _ in range(20):
            workers.send([workers.send([self.tensor(self.large())])[0]], 1, 0)
        self.settle(workers)

    def test_a_message_that_nobody_reads_frees_what_the_sender_keeps(self, join: Join) -> None:
        workers = join()
        packed = workers.pack([self.tensor(self.large())])
        workers.unpack(packed)  # and dropped
        self.settle(workers)

    def test_what_came_from_a_lost_peer_stays_readable_and_the_next_worker_is_served(self, join: Join) -> None:
        workers = join(3)
        x = self.tensor(self.large())
        (got,) = workers.send([x])
        workers.channels[1].lost(0)
        assert values(got) == values(x)
        workers.channels[0].lost(1)
        x.add_(1)
        (third,) = workers.send([x], 0, 2)
        assert values(third) == values(x)
        got.fill_(0)

    def test_what_came_stays_readable_behind_the_end_which_may_come_twice(self, join: Join) -> None:
        workers = join()
        x = self.tensor(self.large())
        before = values(x)
        (got,) = workers.send([x])
        for _ in range(2):
            workers.close()
        assert values(got) == before
        got.fill_(1)
        assert values(x) == before

    def test_notes_that_no_channel_writes_are_refused(self, join: Join) -> None:
        workers = join()
        for note in (b"?", b"\xff" * 7, bytes(1000)):
            for parts in ((), (b"1", b"2", b"3")):
                with pytest.raises((ValueError, RuntimeError)):
                    workers.channels[0].unpack(note, parts, 1)
        for note in (b"?", b"\xff" * 7):
            with pytest.raises(ValueError):
                workers.channels[0].handle(1, note)

    # --- threads ---

    def test_threads_send_at_the_same_time(self, join: Join) -> None:
        workers, errors = join(), []

        def sends(number: int) -> None:
            try:
                for turn in range(8):
                    x = self.tensor(self.large(), number + turn)
                    (got,) = workers.unpack(workers.pack([x], number % 2, 1 - number % 2), number % 2, 1 - number % 2)
                    assert values(got) == values(x)
            except BaseException as error:  # noqa: BLE001 - of a thread: the test's
                errors.append(error)

        threads = [threading.Thread(target=sends, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not errors, errors
        workers.deliver()
        self.settle(workers)


def values(tensor: Any) -> bytes:
    """Return a tensor's elements as bytes."""
    array = tensor.detach().cpu()._array
    return bytes(np.ascontiguousarray(array).tobytes())
