from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core import device as devices
from resilin.core.backends import ArrayBackend, make_xp
from resilin.rpc.channels.staged import StagedChannel
from resilin.testing.check_tensor_channel import JoinedChannels, TensorChannelConformance, values


class _Staged(TensorChannelConformance):
    @pytest.fixture
    def make(self) -> Callable[..., StagedChannel]:
        return StagedChannel


class TestFromDeviceToDevice(_Staged):
    device, target = "sim:1", "sim:2"


class TestFromHostToDevice(_Staged):
    device, target = "cpu", "sim:0"


class TestFromDeviceToHost(_Staged):
    device, target = "sim:3", "cpu"


class Foreign(ArrayBackend):
    """Devices whose memory only their backend reaches."""

    type = "foreign"

    def __init__(self) -> None:
        self.xp = make_xp()

    def count(self) -> int:
        return 2

    def from_host(self, array: np.ndarray[Any, Any], index: int) -> Any:
        return array.copy()

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        copied: np.ndarray[Any, Any] = array.copy()
        return copied

    def synchronize(self, index: int) -> None:
        """Everything is done at once."""


def test_a_backend_from_outside_is_staged_by_its_own_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_BACKENDS", dict(devices._BACKENDS))
    monkeypatch.setattr(devices, "_DEVICES", dict(devices._DEVICES))
    resilin.register_backend(Foreign())
    x = resilin.arange(12).float().reshape(3, 4)
    for device, target in (
        ("foreign:0", "foreign:1"),
        ("cpu", "foreign:0"),
        ("foreign:1", "cpu"),
        ("sim:0", "foreign:1"),
    ):
        workers = JoinedChannels(StagedChannel, 2, device, target)
        sent = x.clone().to(device)
        view, whole, empty = workers.send([sent[:, 1], sent.t(), sent[:0]])
        assert {str(each.device) for each in (view, whole, empty)} == {target}
        assert values(view) == values(x[:, 1])
        assert values(whole) == values(x.t())
        sent.fill_(0)
        assert values(whole) == values(x.t())
        workers.close()
