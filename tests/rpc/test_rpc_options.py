"""What the options take, refuse, and do."""

import json
import logging
import os
from datetime import timedelta
from unittest import mock

import pytest
from rpc_functions import debug_info, identity, sleeps
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin.errors import UsageError
from resilin.testing.job_secret import SECRET

Options = rpc.TensorPipeRpcBackendOptions


def test_the_defaults_are_pytorchs() -> None:
    made = Options()
    assert (made.num_worker_threads, made.rpc_timeout, made.init_method) == (16, 60.0, "env://")
    assert made.device_maps == {}
    assert made.devices == []
    assert isinstance(made, rpc.RpcBackendOptions)
    built = rpc.backend_registry.construct_rpc_backend_options(
        rpc.BackendType.TENSORPIPE, rpc_timeout=3, init_method="tcp://a:1", num_worker_threads=2
    )
    assert (built.rpc_timeout, built.init_method, built.num_worker_threads) == (3.0, "tcp://a:1", 2)
    assert rpc.constants.DEFAULT_RPC_TIMEOUT_SEC == 60.0
    assert rpc.constants.UNSET_RPC_TIMEOUT == -1


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"rpc_timeout": timedelta(seconds=3)}, TypeError, "incompatible constructor arguments"),
        ({"rpc_timeout": "3"}, TypeError, "incompatible constructor arguments"),
        ({"rpc_timeout": -1}, ValueError, "expected seconds"),
        ({"rpc_timeout": float("nan")}, ValueError, "expected seconds"),
        ({"num_worker_threads": 1.5}, TypeError, "incompatible constructor arguments"),
        ({"num_worker_threads": 0}, ValueError, "at least 1"),
        ({"init_method": 3}, TypeError, "incompatible constructor arguments"),
        ({"transports": "zeromq"}, TypeError, "list of names"),
        ({"tls": "ca.pem"}, TypeError, "expected texts by 'ca'"),
        ({"tls": {"certificate": "ca.pem"}}, TypeError, "expected texts by 'ca'"),
        ({"max_message_bytes": 0}, ValueError, "at least 1"),
        ({"devices": ["cpu"]}, ValueError, "expect a list of CUDA devices, but got device type cpu"),
        ({"device_maps": {"a": {"cpu": "cpu", "sim:0": "cpu"}}}, ValueError, "only supports 1-to-1 mapping"),
    ],
)
def test_what_is_no_option_is_refused(given: dict[str, object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Options(**given)  # type: ignore[arg-type]


def test_device_maps_grow_and_stay_one_to_one() -> None:
    made = Options(device_maps={"a": {"sim:0": "sim:1"}})
    made.set_device_map("a", {"sim:1": "sim:0"})
    made.set_device_map("b", {"sim:0": "sim:0"})
    assert made.device_maps["a"] == {
        torch.device("sim:0"): torch.device("sim:1"),
        torch.device("sim:1"): torch.device("sim:0"),
    }
    with pytest.raises(ValueError, match="`set_device_map` only supports 1-to-1 mapping"):
        made.set_device_map("a", {"sim:0": "sim:0"})
    with pytest.raises(ValueError, match="only supports 1-to-1 mapping"):
        made.set_device_map("b", {"sim:1": "sim:0"})


def test_what_has_no_meaning_here_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resilin._base.said_once._said", set())
    with caplog.at_level(logging.WARNING):
        Options(_transports=["uv"])
        Options(_transports=["shm"])
    assert sum("no meaning here" in record.getMessage() for record in caplog.records) == 1


@on_workers(2, num_worker_threads=3)
def test_as_many_calls_run_at_once_as_there_are_threads(me: Me) -> None:
    if me.rank == 0:
        futures = [rpc.rpc_async(me.next, sleeps, args=(0.2,)) for _ in range(6)]
        for future in futures:
            future.wait()
        latency = rpc.stats()["calls"]["rpc_functions:sleeps"]["latency_us"]
        assert sum(count for end, count in latency.items() if end <= 262_144) <= 3 <= sum(latency.values()) - 3
    me.meet("done")


@on_workers(2, setup=False)
def test_a_transport_or_channel_that_is_not_here_is_named(me: Me) -> None:
    with pytest.raises(UsageError, match=r"transports=.*no 'pigeon' here; there are .*zeromq"):
        me.init(transports=["pigeon"])
    with pytest.raises(UsageError, match=r"channels=.*no 'pigeon' here; there are .*inline"):
        me.init("other", channels=["pigeon"])
    me.init("third", transports=["zeromq"], channels=["inline"])
    assert torch.equal(rpc.rpc_sync(me.next, identity, args=(torch.ones(2),)), torch.ones(2))


@on_workers(2, max_pending_calls=8)
def test_a_caller_waits_where_too_many_calls_are_pending(me: Me) -> None:
    if me.rank == 0:
        futures = []
        for n in range(200):
            futures.append(rpc.rpc_async(me.next, identity, args=(n,)))
            assert len(rpc._get_current_rpc_agent().pending) <= 8
        assert [future.wait() for future in futures] == list(range(200))
    me.meet("done")


@on_workers(2)
def test_statistics_count_calls_bytes_errors_and_latencies(me: Me) -> None:
    for n in range(5):
        rpc.rpc_sync(me.next, identity, args=(n,))
    with pytest.raises(TypeError):
        rpc.rpc_sync(me.next, identity)
    me.meet("called")
    until(lambda: rpc.stats()["served"]["rpc_functions:identity"]["calls"] == 6)  # counted once it is answered
    made, run = (rpc.stats()[side]["rpc_functions:identity"] for side in ("calls", "served"))
    for counts in (made, run):
        assert (counts["calls"], counts["errors"]) == (6, 1)
        assert counts["bytes"] > 0
        assert sum(counts["latency_us"].values()) == 6
    assert rpc._get_debug_info().keys() > debug_info().keys()


@on_workers(2, allow_closures=True)
def test_code_is_sent_to_workers_that_allow_it(me: Me) -> None:
    pytest.importorskip("cloudpickle", reason="closures travel by the package cloudpickle")
    offset = torch.ones(2)
    assert torch.equal(rpc.rpc_sync(me.next, lambda x: x + offset, args=(torch.ones(2),)), torch.ones(2) * 2)
    rref = rpc.RRef(3)
    assert rpc.rpc_sync(me.next, lambda: rref.to_here() + 1) == 4


@on_workers(2, setup=False)
def test_options_say_over_how_many_connections_long_messages_go(me: Me) -> None:
    for lanes in (None, 1, 5):
        me.init(f"lanes {lanes}", transports=["zeromq"], channels=["inline"], num_lanes=lanes)
        large = torch.ones(1 << 20)
        assert torch.equal(rpc.rpc_sync(me.next, identity, args=(large,)), large)
        (made,) = rpc._get_current_rpc_agent()._transports
        assert [len(link.lanes) for link in made._links.values()] == [lanes or 1]
        rpc.shutdown()


@pytest.mark.parametrize(("lanes", "error"), [(0, ValueError), (17, ValueError), (2.0, TypeError), ("2", TypeError)])
def test_how_many_connections_cannot_be(lanes: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="num_lanes: expected"):
        Options(num_lanes=lanes)  # type: ignore[arg-type]


@on_workers(2, setup=False)
def test_options_say_that_messages_of_one_host_are_encrypted(me: Me) -> None:
    with mock.patch.dict(os.environ, RESILIN_SECRET=SECRET):
        for transport in ("zeromq", "grpc"):
            me.init(transport, transports=[transport], encrypt=True)
            assert rpc.rpc_sync(me.next, max, args=(1, 2)) == 2
            made = rpc._get_current_rpc_agent()._transports
            assert [json.loads(each.address)["encrypted"] for each in made] == [True]
            rpc.shutdown()


@on_workers(1, setup=False)
def test_files_of_tls_are_for_grpc(me: Me) -> None:
    with pytest.raises(UsageError, match="name it in transports="):
        me.init("one", tls={"ca": "/nowhere"})
    with pytest.raises(UsageError, match="none for cert, key"):
        me.init("other", transports=["grpc"], tls={"ca": "/nowhere"})
