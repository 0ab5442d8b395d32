from collections.abc import Callable

import pytest

from resilin.rpc.channels import striped
from resilin.rpc.channels.striped import StripedChannel
from resilin.testing.check_tensor_channel import JoinedChannels, TensorChannelConformance


class TestBetweenDevices(TensorChannelConformance):
    device, target = "sim:1", "sim:2"
    least_bytes = 100_000

    @pytest.fixture
    def make(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StripedChannel]:
        monkeypatch.setattr(striped, "MIN_BYTES", self.least_bytes)
        monkeypatch.setattr(striped, "STRIPE_BYTES", 30_000)
        return StripedChannel

    def test_a_block_goes_in_stripes(self, join: Callable[..., JoinedChannels]) -> None:
        packed = join().pack([self.tensor(25_001)])
        assert [len(part) for part in packed.parts[1:]] == [30_000, 30_000, 30_000, 10_004]
