"""Where tensors of devices go, and what cannot be a device map."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
from rpc_functions import identity
from rpc_workers import Me, on_workers

import resilin
import resilin.distributed.rpc as rpc
from resilin.distributed.rpc import TensorPipeRpcBackendOptions as Options
from resilin.rpc.group import start
from resilin.rpc.membership import device_maps
from resilin.rpc.membership.membership import WorkerRecord


def member(number: int, **fields: Any) -> WorkerRecord:
    made = WorkerRecord(number, f"worker{number}", {}, {}, "", device_counts={"sim": 8, "cuda": 2})
    return dataclasses.replace(made, **fields)


# The texts are those that programs written for PyTorch look for.
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"devices": ("cuda:0", "cuda:0")}, "Node worker0 has duplicated devices"),
        ({"devices": ("cuda:2",)}, "Node worker0 has devices with invalid indices"),
        ({"device_maps": {"none_such": {"cuda:0": "cuda:0"}}}, "Node worker0 has invalid target node names"),
        ({"device_maps": {"worker1": {"cuda:0": "cuda:1", "cuda:1": "cuda:1"}}}, "duplicated target devices"),
        (
            {"device_maps": {"worker1": {"cuda:2": "cuda:0"}}},
            "Node worker0 has source devices with invalid indices in its device map for worker1",
        ),
        (
            {"device_maps": {"worker1": {"cuda:0": "cuda:2"}}},
            "Node worker0 has target devices with invalid indices in its device map for worker1",
        ),
        (
            {"devices": ("cuda:0",), "device_maps": {"worker1": {"cuda:1": "cuda:0"}}},
            "Node worker0 has unexpected source devices in its device map for worker1",
        ),
        (
            {"device_maps": {"worker2": {"cuda:0": "cuda:0"}}},
            "Node worker0 has unexpected target devices in its device map for worker2",
        ),
    ],
)
def test_what_cannot_be_a_device_map_is_refused_with_the_texts_of_pytorch(fields: dict[str, Any], said: str) -> None:
    world = [member(0, **fields), member(1), member(2, devices=("cuda:1",))]
    with pytest.raises(ValueError, match=said):
        device_maps.check(world, is_static=True)


def test_maps_that_can_be_pass_and_a_dynamic_group_may_name_who_has_not_come() -> None:
    good = {"worker1": {"cuda:0": "cuda:1", "cuda:1": "cpu", "cpu": "cuda:0"}}
    device_maps.check([member(0, device_maps=good), member(1)], is_static=True)
    device_maps.check([member(0, device_maps={"later": {"cuda:0": "cuda:0"}})], is_static=False)
    device_maps.check([member(0, device_maps=good), member(1, device_counts={})], is_static=True)  # has not counted


def test_what_is_not_loaded_is_not_counted_unless_it_is_named() -> None:
    assert device_maps.counts([])["sim"] == 8
    assert device_maps.counts(["cuda:0"])["cuda"] == resilin.cuda.device_count()


def test_options_take_devices_that_only_other_workers_have() -> None:
    made = Options(device_maps={"worker1": {"sim:0": "cuda:7", 0: "sim:1"}}, devices=[3])
    assert {str(a): str(b) for a, b in made.device_maps["worker1"].items()} == {"sim:0": "cuda:7", "cuda:0": "sim:1"}
    assert [str(each) for each in made.devices] == ["cuda:3"]
    with pytest.raises(RuntimeError, match="no backend is registered for device type 'none'"):
        Options(device_maps={"worker1": {"none:0": "cpu"}})
    with pytest.raises(RuntimeError, match="invalid device string"):
        Options(device_maps={"worker1": {"cuda:": "cpu"}})


def test_only_channels_that_there_are_can_be_chosen() -> None:
    assert list(start.CHANNELS)[-3:] == ["cuda_ipc", "striped", "staged"]
    with pytest.raises(ValueError, match=r"there is no 'rdma' here; there are .*inline.*staged"):
        start._channels(["rdma"], [])


def devices_of(x: Any, y: Any) -> tuple[str, str, Any]:
    return str(x.device), str(y.device), x + 1


@on_workers(2, setup=False)
def test_tensors_go_to_the_devices_that_maps_name_and_results_come_back(me: Me) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("resilin.rpc.channels")
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    maps = {me.next: {"sim:0": "sim:1", "sim:1": "cpu", "cpu": "sim:3"}} if me.rank == 0 else {}
    me.init(device_maps=maps)
    if me.rank == 0:
        x = resilin.arange(600_000).float().to("sim:0")
        for _ in range(2):
            there, other, back = rpc.rpc_sync(me.next, devices_of, args=(x[::2], resilin.ones(2).to("sim:1")))
            assert (there, other, str(back.device)) == ("sim:1", "cpu", "sim:0")
            assert resilin.equal(back.cpu(), x[::2].cpu() + 1)
        there, _, back = rpc.rpc_sync(me.next, devices_of, args=(resilin.ones(3), resilin.zeros(0)))
        assert (there, str(back.device)) == ("sim:3", "cpu")
        row, whole = rpc.rpc_sync(me.next, identity, args=((x[5:9], x),))
        row.fill_(3)
        assert float(whole[6]) == 3.0
        with pytest.raises(RuntimeError, match="RPC backend only supports CPU tensors by default"):
            rpc.rpc_sync(me.next, identity, args=(resilin.ones(1).to("sim:5"),))
        lines = [(r.fields["peer"], r.fields["channel"], r.fields["device"]) for r in records]  # type: ignore[attr-defined]
        assert len(lines) == len(set(lines)), "each choice is logged once"
        assert ("worker1", "staged", "sim:0") in lines
    log.removeHandler(handler)
    log.setLevel(level)
    rpc.shutdown()


@on_workers(2, setup=False)
def test_channels_are_forced_by_options(me: Me) -> None:
    me.init(device_maps={me.next: {"sim:0": "sim:0"}}, channels=["inline"])
    if me.rank == 0:
        assert rpc.rpc_sync(me.next, identity, args=(resilin.ones(2),)).sum() == 2
        with pytest.raises(ValueError, match="no tensor channel reaches worker 'worker1' from sim:0 to sim:0: here"):
            rpc.rpc_sync(me.next, identity, args=(resilin.ones(2).to("sim:0"),))
    rpc.shutdown()


@on_workers(2, setup=False)
def test_every_worker_hears_of_a_map_that_cannot_be(me: Me) -> None:
    with pytest.raises(ValueError, match="Node worker0 has target devices with invalid indices"):
        me.init(device_maps={"worker1": {"sim:0": "sim:100"}} if me.rank == 0 else {})


@on_workers(2, setup=False)
def test_a_worker_with_a_map_that_cannot_be_does_not_enter_a_dynamic_group(me: Me) -> None:
    if me.rank == 0:
        me.init(world_size=None)
    me.meet("begun")
    if me.rank == 1:
        with pytest.raises(ValueError, match="Node worker1 has source devices with invalid indices"):
            me.init(world_size=None, device_maps={"worker0": {"sim:100": "sim:0"}})
        me.init("store", world_size=None)
        assert rpc.rpc_sync("worker0", identity, args=(2,)) == 2
    me.meet("joined")
    rpc.shutdown()
