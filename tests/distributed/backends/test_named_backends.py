"""Backends by name: what strings mean, those of third parties, one for each device type, disagreement between ranks."""

import contextlib
import socket
import threading

import numpy as np
import pytest

import resilin
from resilin import distributed as dist
from resilin.distributed.backends import registry
from resilin.distributed.backends.base import METHODS
from resilin.distributed.backends.per_device import DeviceBackends
from resilin.distributed.backends.registry import (
    Backend,
    BackendConfig,
    get_default_backend_for_device,
    is_backend_available,
)
from resilin.distributed.backends.scheduled import ScheduledBackend
from resilin.distributed.backends.socket import SocketBackend
from resilin.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistBackendError,
    GroupAborted,
    PeerLost,
    UsageError,
)
from resilin.testing.check_group import GroupConformance
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import run_ranks


class Letters(ScheduledBackend):
    """Every message of a collective is one of the group's own point-to-point messages."""

    name = "letters"

    def __init__(self, setup):
        super().__init__(setup.group_rank, setup.group_size)
        self._peers = setup.peers

    def exchange(self, to, out, source, into, deadline):
        self._peers.exchange(to, out, source, into, deadline)

    def abort(self, rank, lost):
        """The group's messages end with the group."""

    def close(self):
        """Nothing was opened."""


def couriers(store, rank, size, timeout):
    """Sockets of its own, whose addresses ranks exchange through the store: PyTorch's signature."""
    sockets = {}
    with socket.create_server(("127.0.0.1", 0), backlog=size) as server:
        store.set(f"port/{rank}", str(server.getsockname()[1]))
        for peer in range(rank):
            sockets[peer] = socket.create_connection(("127.0.0.1", int(store.get(f"port/{peer}"))), timeout.seconds)
            sockets[peer].sendall(bytes([rank]))
        for _ in range(rank + 1, size):
            sock, _ = server.accept()
            sockets[sock.recv(1)[0]] = sock
    return SocketBackend(rank, size, sockets)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Names registered here are forgotten afterwards."""
    monkeypatch.setattr(registry, "_PLUGINS", {})
    for name in ("backend_list", "default_device_backend_map", "backend_capability"):
        monkeypatch.setattr(Backend, name, getattr(Backend, name).copy())
    yield
    for name in ("LETTERS", "COURIERS", "ODD", "MY_OWN"):
        with contextlib.suppress(AttributeError):
            delattr(Backend, name)


@pytest.fixture
def letters(registered):
    Backend.register_backend("letters", lambda setup, options: Letters(setup), extended_api=True, devices="cpu")


class TestWrittenOverTheGroupsMessages(GroupConformance):
    sizes = (3,)

    @pytest.fixture
    def run(self, letters):
        return lambda size, case: run_ranks(size, case, size, backend="letters", abort=False).results()


@pytest.mark.deep
class TestWrittenOverTheMessagesOfOtherGroups(TestWrittenOverTheGroupsMessages):
    sizes = (1, 2, 4)


class TestWithSocketsMetInTheStore(GroupConformance):
    sizes = (3,)

    @pytest.fixture
    def run(self, registered):
        Backend.register_backend("couriers", couriers, devices=["cpu"])
        return lambda size, case: run_ranks(size, case, size, backend="couriers", abort=False).results()


def test_strings_name_a_backend_for_each_device_type():
    for given, pairs, name in (
        (None, "cpu:cpu,cuda:nccl", "cpu"),
        ("undefined", "cpu:cpu,cuda:nccl", "cpu"),
        ("GLOO", "cpu:gloo,cuda:gloo", "gloo"),
        ("nccl", "cuda:nccl", "nccl"),
        ("cuda_ipc", "cuda:cuda_ipc", "cuda_ipc"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
        ("sim:cpu", "sim:cpu", "sim:cpu"),
    ):
        config = BackendConfig(given)
        assert (str(config), config.name) == (pairs, name)
    for wrong, said in (
        ("x", "backend 'x' is not available; use 'cpu', or another of cpu, gloo, mpi"),
        ("cpu:gloo,cpu:mpi", "names device type 'cpu' twice"),
        ("cpu:gloo,cuda", "expected pairs such as 'cpu:gloo,cuda:nccl', got 'cuda'"),
        ("cpu:a:b", "expected pairs"),
        (5, "expected a name such as"),
    ):
        with pytest.raises(UsageError, match=said):
            BackendConfig(wrong)


def test_registered_backends_are_found_by_name_and_serve_their_devices():
    with pytest.warns(UserWarning, match="devices is not given"):
        Backend.register_backend("ODD", lambda *_: None)
    assert str(BackendConfig("odd")) == "cpu:odd,cuda:odd"
    Backend.register_backend("my-own", lambda *_: None, devices=["npu"])
    assert (Backend.ODD, Backend.MY_OWN, Backend("My-Own")) == ("odd", "my-own", "my-own")
    assert {"odd", "my-own"} < set(Backend.backend_list)
    assert Backend.backend_capability["my-own"] == ["npu"]
    assert is_backend_available("cpu:gloo,npu:my-own")
    assert not is_backend_available("unheard-of")
    assert get_default_backend_for_device("npu:1") == "my-own"
    assert get_default_backend_for_device(resilin.device("cpu")) == "cpu"
    assert str(BackendConfig()) == "cpu:cpu,cuda:nccl,npu:my-own"
    with pytest.raises(UsageError, match="device type 'sim' has no default backend"):
        get_default_backend_for_device(resilin.device("sim:1"))
    for name, func, said in (("gloo", print, "not built in"), ("a,b", print, "letters"), ("odd", 5, "a function")):
        with pytest.raises(UsageError, match=said):
            Backend.register_backend(name, func)


def test_groups_tell_their_backends(letters):
    def rank_main(rank):
        part = dist.new_group([0, 1], backend="cpu:gloo")
        return [
            (
                str(dist.get_backend(group)),
                dist.get_backend_config(group),
                group.stats()["transport"],
            )
            for group in (dist.default_group(), part)
        ]

    expected = [("letters", "cpu:letters", "letters"), ("cpu:gloo", "cpu:gloo", "shm")]
    assert run_ranks(2, rank_main, backend="letters").results() == [expected] * 2


def test_init_process_group_and_new_group_use_the_backend_and_pass_options_on():
    given = []

    def make(setup, options):
        given.append((setup.group_id, setup.group_size, setup.global_ranks_in_group, setup.timeout.seconds, options))
        return Letters(setup)

    Backend.register_backend("my-own", make, extended_api=True, devices="cpu")
    store = dist.HashStore()
    dist.init_process_group("MY-OWN", store=store, rank=0, world_size=1, timeout=7, pg_options="loud")
    try:
        assert dist.get_backend() == "my-own"
        part = dist.new_group([0], pg_options="quiet")
        other = dist.new_group([0], backend="gloo")
        array = np.ones(3)
        dist.all_reduce(array, group=part)
        assert array.tolist() == [1.0] * 3
        assert [dist.get_backend_config(group) for group in (part, other)] == [
            "cpu:my-own",
            "cpu:gloo,cuda:gloo",
        ]
        with pytest.raises(UsageError, match="new_group: backend 'unheard' is not available"):
            dist.new_group([0], backend="unheard")
    finally:
        dist.destroy_process_group()
    assert given == [("default", 1, (0,), 7, "loud"), ("default/group/0", 1, (0,), 7, "quiet")]


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("transport", ["shm", "tcp", "hosts"])
def test_ranks_that_give_different_backends_all_hear_of_it(letters, odd, transport):
    def never(rank):
        raise AssertionError("there is a group")

    outcome = run_ranks(3, never, transport=transport, backend=lambda r: "letters" if r == odd else "gloo")
    assert set(outcome.errors) == {0, 1, 2}
    for error in outcome.errors.values():
        assert type(error) is CollectiveMismatch
        assert f"rank {odd} gave 'cpu:letters'" in str(error)
        assert f"rank {(odd + 1) % 3} gave 'cpu:gloo,cuda:gloo'" in str(error)


def test_a_backend_that_one_rank_cannot_make_ends_the_group_for_all():
    def moody(store, rank, size, timeout):
        if rank == 1:
            raise OSError("no such cable")
        store.get("never set")

    Backend.register_backend("odd", moody, devices="cpu")
    outcome = run_ranks(3, lambda rank: None, backend="odd", timeout_s=30.0)
    assert {type(outcome.errors[rank]) for rank in (0, 2)} == {GroupAborted}
    assert type(outcome.errors[1]) is DistBackendError
    assert all("no such cable" in str(error) for error in outcome.errors.values())
    assert all("backend 'odd' for 'cpu' tensors" in str(error) for error in outcome.errors.values())


def test_a_backend_without_all_methods_is_refused_by_their_names():
    Backend.register_backend("odd", lambda *_: object(), devices="cpu")
    outcome = run_ranks(1, lambda rank: None, backend="odd")
    with pytest.raises(DistBackendError, match="got object without attach, agree, barrier, all_reduce"):
        outcome.results()


def test_every_method_of_a_backend_is_passed_on():
    assert [name for name in METHODS if not callable(getattr(DeviceBackends, name, None))] == []


def test_tensors_of_other_devices_are_staged_where_the_string_says_so(letters):
    def rank_main(rank):
        mine = resilin.arange(6.0).reshape(2, 3).to("sim:1") + rank
        dist.all_reduce(mine)
        odd = (resilin.arange(6.0).reshape(2, 3).to("sim:1") + rank).T  # not contiguous
        dist.all_reduce(odd, dist.ReduceOp.MAX)
        scalar = resilin.tensor(float(rank)).to("sim:1")
        dist.all_reduce(scalar)
        parts = [resilin.zeros(2, device="sim:1") for _ in range(2)]
        dist.all_gather(parts, resilin.full((2,), float(rank), device="sim:1"))
        one = resilin.zeros(1, device="sim:1")
        dist.reduce_scatter_tensor(one, resilin.tensor([1.0, 2.0]).to("sim:1"))
        swapped = resilin.zeros(2, device="sim:1")
        dist.all_to_all_single(swapped, resilin.tensor([10.0 * rank, 10.0 * rank + 1]).to("sim:1"))
        root = resilin.full((2,), float(rank), device="sim:1")
        dist.broadcast(root, src=1)
        rows = [resilin.zeros(1, device="sim:1") for _ in range(2)] if rank == 0 else None
        dist.gather(resilin.full((1,), float(rank), device="sim:1"), rows, dst=0)
        given = resilin.zeros(1, device="sim:1")
        dist.scatter(given, rows, src=0)
        dist.reduce(root, dst=0)
        if rank == 0:
            dist.send(root, dst=1)
        else:
            dist.recv(root, src=0)
        every = [mine, odd, scalar, *parts, one, swapped, root, *(rows or ()), given]
        assert {str(tensor.device) for tensor in every} == {"sim:1"}
        return [tensor.tolist() for tensor in (mine, odd, scalar, *parts, one, swapped, root, given)]

    for backend in ("cpu:cpu,sim:cpu", "cpu:cpu,sim:letters", "cpu:letters,sim:letters"):
        first, second = run_ranks(2, rank_main, backend=backend).results()
        assert first[:5] == second[:5]
        assert first[0] == [[1.0, 3.0, 5.0], [7.0, 9.0, 11.0]]
        assert first[1] == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
        assert first[2] == 1.0
        assert first[3:5] == [[0.0, 0.0], [1.0, 1.0]]
        assert (first[5], second[5]) == ([2.0], [4.0])
        assert (first[6], second[6]) == ([0.0, 10.0], [1.0, 11.0])
        assert first[7] == second[7] == [2.0, 2.0]
        assert (first[8], second[8]) == ([0.0], [1.0])


def test_a_tensor_of_a_device_without_backend_is_refused_and_the_way_is_shown():
    def rank_main(rank):
        with pytest.raises(
            UsageError, match=r"no backend for 'sim' tensors: this group has cpu:cpu,cuda:nccl; .*sim:gl"
        ):
            dist.all_reduce(resilin.ones(3, device="sim:0"))
        with pytest.raises(UsageError, match="expected all tensors on one device, found 'cpu' and 'sim'"):
            dist.all_gather([resilin.ones(3, device="sim:0")] * 2, resilin.ones(3))
        dist.barrier()

    run_ranks(2, rank_main).results()


def test_a_backend_for_several_devices_is_made_once_and_only_when_needed(letters):
    made = []

    def make(setup, options):
        made.append((setup.group_rank, setup.device_type))
        return Letters(setup)

    Backend.register_backend("odd", make, extended_api=True, devices=["sim"])

    def rank_main(rank):
        dist.all_reduce(np.ones(2))
        before = len(made)  # none: no tensor of that device yet
        dist.barrier()
        for _ in range(2):
            x = resilin.ones(2, device="sim:0")
            dist.all_reduce(x)
        assert x.tolist() == [2.0, 2.0]
        dist.barrier()
        return before, dist.default_group().stats()["transport"]

    outcome = run_ranks(2, rank_main, backend="cpu:cpu,sim:odd").results()
    assert outcome == [(0, "shm, sim:letters")] * 2
    assert sorted(made) == [(0, "sim"), (1, "sim")]


def test_a_cpu_tensor_on_one_rank_and_a_device_tensor_on_another_is_a_mismatch_on_both():
    Backend.register_backend("odd", lambda setup, _: Letters(setup), extended_api=True, devices=["sim"])

    def rank_main(rank):
        x = resilin.ones(2, device="sim:0" if rank else "cpu")
        with pytest.raises(
            CollectiveMismatch, match=r"rank 0 called all_reduce #0 .* rank 1 called all_reduce #0 on sim"
        ):
            dist.all_reduce(x)
        dist.barrier()

    run_ranks(2, rank_main, backend="cpu:cpu,sim:odd").results()


def test_a_dead_rank_ends_a_third_partys_collective_on_all_others(letters):
    faults = FaultPlan().kill(rank=2, at="all_reduce", call=3)

    def steps(rank):
        for _ in range(5):
            dist.all_reduce(np.ones(1000, np.float32))

    outcome = run_ranks(3, steps, backend="letters", faults=faults)
    assert faults.all_fired()
    assert {rank: type(error) for rank, error in outcome.errors.items()} == {0: PeerLost, 1: PeerLost}
    assert all(error.ranks == {2} for error in outcome.errors.values())


def test_a_rank_that_does_not_come_is_named_at_the_deadline_by_a_third_partys_collective(letters):
    late = threading.Event()

    def rank_main(rank):
        if rank == 1:
            late.wait(20)
            return
        try:
            dist.all_reduce(np.ones(4))
        finally:
            late.set()

    outcome = run_ranks(2, rank_main, backend="letters", timeout_s=0.3, abort=False)
    assert type(outcome.errors[0]) is CollectiveTimeout
    assert outcome.errors[0].ranks == {1}
    assert "all_reduce #0" in str(outcome.errors[0])


def test_abort_returns_a_third_partys_collective_at_once(letters):
    def rank_main(rank):
        if rank == 0:
            work = dist.all_reduce(np.ones(4), async_op=True)
            dist.default_group().abort()
            work.wait(5.0)
        dist.recv(np.zeros(1), src=0)

    outcome = run_ranks(2, rank_main, backend="letters", timeout_s=30.0)
    assert {type(error) for error in outcome.errors.values()} == {GroupAborted}
