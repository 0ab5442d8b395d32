"""Channels of RPC for tensors of CUDA devices, over the stand-ins for CuPy and for CUDA's IPC."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import cupy_standin
import fake_ipc
import numpy as np
import pytest
import standin_device

import resilin
from resilin._base import host
from resilin.core import device as devices
from resilin.errors import RpcError
from resilin.rpc.channels import cuda_ipc, striped
from resilin.rpc.channels.base import Block, TensorChannel
from resilin.rpc.channels.cuda_ipc import CudaIpcChannel
from resilin.rpc.channels.staged import StagedChannel
from resilin.rpc.channels.striped import StripedChannel
from resilin.testing.check_tensor_channel import JoinedChannels, TensorChannelConformance, values


@pytest.fixture
def ipc(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_ipc.FakeIpc]:
    """The stand-ins, as the device "cuda"; at the end nothing is owned or mapped."""
    module = cupy_standin.make_module(devices=2)
    fake = fake_ipc.install(module, monkeypatch)
    standin_device.install(monkeypatch, module)
    yield fake
    assert fake.owned == fake.mapped == {}


class TestStagedBetweenGpus(TensorChannelConformance):
    device = target = "cuda:0"

    @pytest.fixture
    def make(self, ipc: fake_ipc.FakeIpc) -> Callable[..., TensorChannel]:
        return StagedChannel


class TestStagedFromAGpuToTheHost(TensorChannelConformance):
    device, target = "cuda:0", "cpu"

    @pytest.fixture
    def make(self, ipc: fake_ipc.FakeIpc) -> Callable[..., TensorChannel]:
        return StagedChannel


class TestStriped(TensorChannelConformance):
    device = target = "cuda:0"
    least_bytes = 100_000

    @pytest.fixture
    def make(self, ipc: fake_ipc.FakeIpc, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TensorChannel]:
        monkeypatch.setattr(striped, "MIN_BYTES", self.least_bytes)
        monkeypatch.setattr(striped, "STRIPE_BYTES", 30_000)
        return StripedChannel

    def test_pinned_memory_stays_at_two_buffers(self, join: Callable[..., JoinedChannels]) -> None:
        workers = join()
        for _ in range(3):
            workers.send([self.tensor(self.large())])
        assert workers.kept() == {"idle_pairs": 2}  # one of each end

    def test_small_tensors_do_not_take_it(self, join: Callable[..., JoinedChannels]) -> None:
        channel, theirs = join().channels[0], join().channels[1].describe()
        assert not channel.reaches(Block(None, 0, 99_999, (), "cuda:0", "cuda:0"), theirs)
        assert channel.reaches(Block(None, 0, 100_000, (), "cuda:0", "cuda:0"), theirs)
        assert not channel.reaches(Block(None, 0, 100_000, (), "cpu", "cuda:0"), theirs)


class TestCudaIpc(TensorChannelConformance):
    device = target = "cuda:0"

    @pytest.fixture
    def make(self, ipc: fake_ipc.FakeIpc) -> Callable[..., TensorChannel]:
        return CudaIpcChannel

    def test_a_slab_is_mapped_once_and_the_offset_travels(
        self, join: Callable[..., JoinedChannels], ipc: fake_ipc.FakeIpc
    ) -> None:
        workers = join()
        x, y = self.tensor(1000), self.tensor(2000, 7)
        first, second = workers.pack([x]), workers.pack([y])
        assert workers.kept()["loans"] == 2
        assert values(workers.unpack(second)[0]) == values(y)
        assert values(workers.unpack(first)[0]) == values(x)
        workers.deliver()
        for _ in range(5):
            workers.send([x])
        assert (ipc.opened, len(ipc.owned)) == (1, 1)
        assert len(ipc.waited) == 7  # the GPU waits for the lender's in every one

    def test_a_slab_is_freed_when_every_borrower_has_unmapped_it(
        self, join: Callable[..., JoinedChannels], ipc: fake_ipc.FakeIpc, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cuda_ipc, "SLAB_BYTES", 4096)
        monkeypatch.setattr(cuda_ipc, "IDLE_BYTES", 4096)
        workers = join(3)
        x, y = self.tensor(1024), self.tensor(1024, 5)
        packed = [workers.pack([x], 0, 1), workers.pack([y], 0, 2)]
        assert workers.kept()["slabs"] == 2
        workers.unpack(packed[0], 0, 1)
        workers.unpack(packed[1], 0, 2)
        assert len(ipc.mapped) == 2
        workers.deliver()
        workers.deliver()
        assert workers.kept() == {"loans": 0, "slabs": 1, "maps": 1}
        assert (len(ipc.owned), len(ipc.mapped)) == (1, 1)

    def test_a_slab_stays_while_a_borrower_copies_and_is_freed_when_that_is_lost(
        self, join: Callable[..., JoinedChannels], ipc: fake_ipc.FakeIpc
    ) -> None:
        workers = join()
        workers.pack([self.tensor(1024)])
        workers.channels[0].close()
        assert len(ipc.owned) == 1
        workers.channels[0].lost(1)
        assert ipc.owned == {}

    def test_a_message_that_was_not_sent_gives_its_loan_back(self, join: Callable[..., JoinedChannels]) -> None:
        channel = join().channels[0]
        assert isinstance(channel, CudaIpcChannel)
        x = self.tensor(1024)
        packed = channel.pack(Block(x, x._array.data.ptr, 4096, [x], "cuda:0", "cuda:0"), 1)
        assert channel.stats()["loans"] == 1
        channel.withdraw(packed, 2)  # whose it is not
        assert channel.stats()["loans"] == 1
        channel.withdraw(packed, 1)
        assert channel.stats()["loans"] == 0

    def test_where_mapping_fails_the_next_tensors_go_another_way(
        self, join: Callable[..., JoinedChannels], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuses(handle: bytes, flags: int = 1) -> int:
            raise fake_ipc.CudaError("cudaErrorInvalidResourceHandle: invalid resource handle")

        workers = join()
        monkeypatch.setattr(devices.backend_of("cuda").cupy.cuda.runtime, "ipcOpenMemHandle", refuses)  # type: ignore[attr-defined]
        with pytest.raises(RpcError, match=r"cudaErrorInvalidResourceHandle.*the next tensors go another way"):
            workers.send([self.tensor(5)])
        with caplog.at_level("WARNING"):
            workers.deliver()
        assert "CUDA memory cannot be mapped by a peer" in caplog.text
        assert workers.kept()["loans"] == 0
        block = Block(None, 0, 20, (), "cuda:0", "cuda:0")
        assert not workers.channels[0].reaches(block, workers.channels[1].describe())


# --- who reaches whom ---


def reached(theirs: str, device: str = "cuda:0", target: str = "cuda:0") -> bool:
    channel = CudaIpcChannel(lambda peer, note: None)
    return channel.reaches(Block(None, 0, 100, (), device, target), theirs)


def test_host_and_device_are_compared_and_never_guessed(ipc: fake_ipc.FakeIpc, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = CudaIpcChannel(lambda peer, note: None).describe()
    assert json.loads(theirs)["host"] == host.host_id()
    assert reached(theirs)
    assert reached(theirs, "cuda:0", "cuda:1")  # with peer access
    assert not reached(theirs, "cuda:0", "cpu")
    assert not reached(theirs, "cpu", "cuda:0")
    assert not reached(theirs, "cuda:0", "cuda:7")
    assert not reached(theirs.replace(host.host_id(), "another-host"))
    assert not reached(theirs.replace(b"stand-in 0".hex(), b"stand-in 9".hex()))
    assert not reached(theirs.replace("0000:00:00.0", "0000:09:00.0"))
    for nonsense in ("", "{}", "[]", "staged 1", '{"host": 1, "reads": []}', '{"host": "x", "reads": {"cuda:0": 1}}'):
        assert not reached(nonsense)
    ipc.no_access.add((1, 0))
    theirs = CudaIpcChannel(lambda peer, note: None).describe()
    assert not reached(theirs, "cuda:0", "cuda:1")
    assert reached(theirs)


def test_a_gpu_without_an_identity_is_reached_by_nobody(ipc: fake_ipc.FakeIpc, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = devices.backend_of("cuda").cupy.cuda.runtime  # type: ignore[attr-defined]
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda index: {})
    assert not reached(CudaIpcChannel(lambda peer, note: None).describe())


def test_a_process_that_does_not_use_cuda_loads_nothing_and_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_BACKENDS", {k: b for k, b in devices._BACKENDS.items() if k != "cuda"})
    channel = CudaIpcChannel(lambda peer, note: None)
    assert json.loads(channel.describe())["reads"] == {}
    assert not reached(channel.describe())
    with pytest.raises((ValueError, RpcError)):
        channel.unpack(bytes(200), (), 1)


def both(post: Any) -> list[TensorChannel]:
    return [CudaIpcChannel(post), StagedChannel(post)]


@pytest.mark.parametrize("differs", ["nothing", "host", "uuid"])
def test_tensors_fall_back_to_staging_for_another_host_or_another_gpu(
    ipc: fake_ipc.FakeIpc, caplog: pytest.LogCaptureFixture, differs: str
) -> None:
    workers = [JoinedChannels(kind, 2, "cuda:0", "cuda:0") for kind in (CudaIpcChannel, StagedChannel)]
    (fast, slow) = workers
    peer = fast.peers[1]
    said = peer.channels["cuda_ipc"]
    if differs == "host":
        said = said.replace(host.host_id(), "another-host")
    elif differs == "uuid":
        said = said.replace(b"stand-in 0".hex(), b"stand-in 9".hex())
    peer.channels = {"cuda_ipc": said, "staged": slow.channels[1].describe()}
    serializer = fast._serializers[0]
    serializer._channels = {each.name: each for each in (fast.channels[0], slow.channels[0])}
    x = resilin.arange(9).float().to("cuda:0")
    with caplog.at_level("INFO", "resilin.rpc.channels"):
        packed = [fast.pack([x]) for _ in range(3)]
    expected = "cuda_ipc" if differs == "nothing" else "staged"
    assert {name for each in packed for name in each.channels} == {expected}
    (record,) = [record for record in caplog.records if record.getMessage() == "tensors take a channel"]
    assert record.fields == {"peer": "worker1", "channel": expected, "device": "cuda:0", "target": "cuda:0"}  # type: ignore[attr-defined]
    if differs == "nothing":
        fast.unpack(packed[0])
    for each in packed[differs == "nothing" :]:
        fast.unpack(each) if expected == "cuda_ipc" else slow.unpack(each)
    for each in workers:
        each.deliver()
        each.close()


def test_a_slab_stays_mapped_until_the_copy_that_reads_it_is_done(
    ipc: fake_ipc.FakeIpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = JoinedChannels(CudaIpcChannel, 2, "cuda:0", "cuda:0")
    x = resilin.arange(1000).float().to("cuda:0")
    packed = workers.pack([x])
    runtime = devices.backend_of("cuda").cupy.cuda.runtime  # type: ignore[attr-defined]
    copy = runtime.memcpyAsync

    def loses_the_lender(*args: Any) -> None:
        workers.channels[1].lost(0)
        assert len(ipc.mapped) == 1
        copy(*args)

    monkeypatch.setattr(runtime, "memcpyAsync", loses_the_lender)
    (got,) = workers.unpack(packed)
    assert ipc.mapped == {}
    assert values(got) == np.arange(1000, dtype=np.float32).tobytes()
    workers.deliver()
    workers.close()


@pytest.mark.parametrize("stripe", [0, 1, 30_000])
def test_stripes_that_do_not_fit_their_note_are_refused(ipc: fake_ipc.FakeIpc, stripe: int) -> None:
    channel = StripedChannel(lambda peer, note: None)
    note = struct.pack("<QQ", 60_000, stripe) + b"cuda:0"
    for sizes in ([60_000], [30_000, 29_999], [20_000, 40_000], []):
        with pytest.raises(ValueError, match=r"expected 60000 bytes in stripes of .*, got"):
            channel.unpack(note, [bytearray(size) for size in sizes], 1)


def test_a_device_that_the_receiver_does_not_have_is_named(ipc: fake_ipc.FakeIpc) -> None:
    channel = StagedChannel(lambda peer, note: None)
    with pytest.raises(RpcError, match="tensors were sent to 'cuda:9', which this worker does not have"):
        channel.unpack(b"cuda:9", [bytearray(4)], 1)
