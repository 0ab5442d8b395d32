"""Modules of a device at another worker: tensors go there, and come back."""

from typing import Any

import pytest
from rpc_workers import Me, on_workers

import resilin as torch
from resilin import nn
from resilin.distributed import _remote_device
from resilin.distributed.nn import RemoteModule


class Parts(nn.Module):
    """Says where it and what it got lie."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Any, more: Any = None) -> Any:
        return {"sum": x + self.weight, "parts": (more, [x])}, str(self.weight.device), str(x.device)


def test_a_device_of_a_worker_is_read_as_pytorch_does():
    device = _remote_device("ps0/sim:1")
    assert (device.worker_name(), device.rank(), device.device()) == ("ps0", None, torch.device("sim:1"))
    assert repr(device) == "ps0/sim:1"
    ranked = _remote_device("rank:3")
    assert (ranked.worker_name(), ranked.rank(), str(ranked.device())) == (None, 3, "cpu")
    assert repr(ranked) == "rank:3/cpu"
    local = _remote_device(torch.device("cpu"))
    assert local == _remote_device("cpu") != ranked
    assert {local, ranked, _remote_device("rank:3/cpu")} == {local, ranked}
    for wrong in ("", "a/b/c", "/", "/cpu", "rank:/cpu", "x:1/cpu", "a:b:c"):
        with pytest.raises(ValueError, match="Could not parse remote_device"):
            _remote_device(wrong)
    with pytest.raises(RuntimeError, match="no_device"):
        _remote_device("worker0/no_device")
    with pytest.raises(TypeError, match="Invalid type for remote_device"):
        _remote_device(3)  # type: ignore[arg-type]


@on_workers(2)
def test_tensors_are_brought_to_the_modules_device_and_results_to_the_host(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1/sim:1", Parts)
        for found, weight, x in (
            module(torch.ones(2), more=torch.zeros(1)),
            module.forward_async(torch.ones(2), [torch.zeros(1)]).wait(),
        ):
            assert (weight, x) == ("sim:1", "sim:1")
            assert found["sum"].tolist() == [2.0, 2.0]
            assert {str(each.device) for each in (found["sum"], *found["parts"][1])} == {"cpu"}


@on_workers(2, device_maps={"worker1": {"sim:0": "sim:1"}, "worker0": {"sim:1": "sim:0"}})
def test_with_a_device_map_results_stay_on_devices(me: Me) -> None:
    if me.rank == 0:
        module = RemoteModule("worker1/sim:1", Parts)
        assert module.is_device_map_set
        found, weight, x = module(torch.ones(2))
        assert (weight, x, str(found["sum"].device)) == ("sim:1", "sim:1", "sim:0")
        found, _, x = module(torch.ones(2, device="sim:0"))
        assert (x, found["sum"].cpu().tolist()) == ("sim:1", [2.0, 2.0])


@on_workers(2)
def test_a_device_that_is_not_there_is_an_error_that_names_it(me: Me) -> None:
    if me.rank == 0:
        with pytest.raises(RuntimeError, match="cuda"):
            RemoteModule("worker1/cuda:9", Parts)(torch.ones(2))
