"""Beginning, names, ids: who is who."""

import pickle
import socket
from pathlib import Path

import pytest
from rpc_functions import identity
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed as dist
import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM
from resilin.errors import DistStoreError, RpcError, UsageError
from resilin.rpc.membership import membership


def free_place(me: Me) -> str:
    """Return an init method of a port that nobody listens at; all workers call it, once in a test."""
    if me.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            (Path(me.folder) / "port").write_text(str(free.getsockname()[1]))
    me.meet("port")
    return f"tcp://127.0.0.1:{(Path(me.folder) / 'port').read_text()}"


@on_workers(3)
def test_workers_know_one_another_by_name_and_id(me: Me) -> None:
    own, peer = rpc.get_worker_info(), rpc.get_worker_info(me.next)
    assert (own.name, own.id) == (me.name(me.rank), me.rank)
    assert (peer.name, peer.id) == (me.next, (me.rank + 1) % 3)
    infos = rpc._get_current_rpc_agent().get_worker_infos()
    assert {info.name for info in infos} == {me.name(rank) for rank in range(3)}
    assert {info.id for info in infos} == {0, 1, 2}
    with pytest.raises(RuntimeError, match="could not find destination"):
        rpc.get_worker_info("WorkerUnknown")


@on_workers(2)
def test_a_call_goes_to_a_name_an_id_or_an_info_and_to_nothing_else(me: Me) -> None:
    there = (me.rank + 1) % 2
    ways = [
        lambda to: rpc.rpc_sync(to, torch.add, args=(torch.ones(2), 1)),
        lambda to: rpc.rpc_async(to, torch.add, args=(torch.ones(2), 1)).wait(),
        lambda to: rpc.remote(to, torch.add, args=(torch.ones(2), 1)).to_here(),
    ]
    for call in ways:
        for to in (there, me.next, rpc.get_worker_info(me.next)):
            assert torch.equal(call(to), torch.ones(2) + 1)
        for to in (7, -1, "nobody"):
            with pytest.raises(RuntimeError, match="could not find destination"):
                call(to)
        for to in (there + 0.5, None, [me.next]):
            with pytest.raises(ValueError, match="Cannot get WorkerInfo"):
                call(to)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("abc*", "Worker name must match"),
        (" ", "Worker name must match"),
        ("", "must be non-empty"),
        ("a" * 500, "shorter than 128"),
        ("a" * 128, "shorter than 128"),
    ],
)
def test_a_name_that_no_worker_may_have_is_refused(name: str, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        rpc.WorkerInfo(name, 1)
    with pytest.raises(RuntimeError, match=said):
        rpc.init_rpc(name, rank=0, world_size=1)


def test_a_worker_info_is_a_value() -> None:
    info = rpc.WorkerInfo("a:b-C_9", 3)
    assert pickle.loads(pickle.dumps(info)) == info
    assert len({info, rpc.WorkerInfo("a:b-C_9", 3)}) == 1
    assert str(info) == "WorkerInfo(id=3, name=a:b-C_9)"
    assert info != rpc.WorkerInfo("a", 3)
    assert info != 3
    with pytest.raises(AttributeError):
        info.id = 4  # type: ignore[misc]
    with pytest.raises(UsageError, match="worker id"):
        rpc.WorkerInfo("a", -1)


@on_workers(2)
def test_a_worker_info_is_sent(me: Me) -> None:
    info = rpc.get_worker_info()
    assert rpc.rpc_sync(me.next, identity, args=(info,)) == info


def test_calls_before_the_beginning_say_what_to_do() -> None:
    for call in (
        lambda: rpc.rpc_sync("a", min, args=(1, 2)),
        lambda: rpc.rpc_async("a", min, args=(1, 2)),
        lambda: rpc.remote("a", min, args=(1, 2)),
        rpc.get_worker_info,
        rpc.get_rpc_timeout,
        rpc.shutdown,
        rpc.stats,
    ):
        with pytest.raises(RuntimeError, match=r"^RPC has not been initialized. Call .*init_rpc first"):
            call()
    with pytest.raises(RuntimeError, match="Current RPC agent is not set! Did you initialize the RPC framework"):
        rpc.RRef(1)


@on_workers(2, setup=False)
def test_calls_after_the_end_say_what_to_do(me: Me) -> None:
    me.init()
    assert rpc.rpc_sync(me.next, min, args=(1, 2)) == 1
    rpc.shutdown()
    with pytest.raises(RuntimeError, match=r"^RPC has not been initialized"):
        rpc.rpc_sync(me.next, min, args=(1, 2))


@on_workers(3, setup=False)
def test_two_workers_of_one_name_are_refused_everywhere(me: Me) -> None:
    with pytest.raises(RuntimeError, match="is not unique"):
        rpc.init_rpc(me.name(me.rank % 2), rank=me.rank, world_size=3, rpc_backend_options=me.made_options())
    assert not rpc._is_current_rpc_agent_set()
    me.init()  # and with other names they meet
    assert rpc.rpc_sync(me.next, min, args=(1, 2)) == 1
    rpc.shutdown()


@on_workers(3, setup=False)
def test_all_hear_why_they_are_refused_also_where_one_of_them_serves_the_store(me: Me) -> None:
    where = free_place(me)
    decoded = membership.decoded
    maps = {"worker0": {"cpu": "cpu"}, "nobody": {"cpu": "cpu"}}
    for turn, (name, more, said) in enumerate(
        (
            (me.name(me.rank % 2), {}, "is not unique"),
            (me.name(me.rank), {"device_maps": maps if me.rank == 1 else {}}, "nobody"),
        )
    ):
        options = rpc.TensorPipeRpcBackendOptions(init_method=where, rpc_timeout=30, **more)
        begun = SYSTEM.monotonic()
        if me.rank == 2:  # is slower than the one that has the store
            membership.decoded = lambda record: (SYSTEM.sleep(0.2), decoded(record))[1]
        try:
            with pytest.raises((RpcError, UsageError), match=said):
                rpc.init_rpc(name, None, me.rank, 3, options)
        finally:
            membership.decoded = decoded
        assert SYSTEM.monotonic() - begun < 29.0, "it was the timeout that told"
        me.meet(f"refused{turn}")


@on_workers(2)
def test_a_second_beginning_is_refused(me: Me) -> None:
    with pytest.raises(RuntimeError, match="is already initialized"):
        me.init("again")
    assert rpc.rpc_sync(me.next, min, args=(1, 2)) == 1


@on_workers(2, setup=False)
def test_it_begins_again_after_the_end(me: Me) -> None:
    for turn in range(3):
        me.init()
        assert rpc.rpc_sync(me.next, max, args=(turn, 0)) == turn
        rpc.shutdown()


@on_workers(3, setup=False)
def test_it_begins_again_at_one_port_also_beside_a_process_group_of_the_same(me: Me) -> None:
    where = free_place(me)
    dist.init_process_group("gloo", init_method=where, rank=me.rank, world_size=3)
    for turn in range(5):
        rpc.init_rpc(
            me.name(me.rank), None, me.rank, 3, rpc.TensorPipeRpcBackendOptions(init_method=where, rpc_timeout=30)
        )
        assert rpc.rpc_sync(me.next, max, args=(turn, 0)) == turn
        rpc.shutdown()
    dist.barrier()
    dist.destroy_process_group()


@on_workers(2, setup=False)
def test_workers_of_which_one_has_had_more_rounds_elsewhere_meet_at_a_new_place(me: Me) -> None:
    if me.rank == 0:
        for _ in range(2):
            me.init("own", world_size=1)
            rpc.shutdown()
    for turn in range(2):
        me.init("both")
        assert rpc.rpc_sync(me.next, max, args=(turn, 0)) == turn
        rpc.shutdown()


@on_workers(3, setup=False)
def test_a_worker_that_takes_part_later_meets_those_that_have_had_rounds_there(me: Me) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=free_place(me), rpc_timeout=30)
    for turn in range(4):
        others = 1 if turn < 2 else 2  # who is worker 1
        if me.rank in (0, others):
            rank = 0 if me.rank == 0 else 1
            rpc.init_rpc(f"w{rank}", None, rank, 2, options)
            assert rpc.rpc_sync(f"w{1 - rank}", max, args=(turn, 0)) == turn
            rpc.shutdown()
        me.meet(f"turn{turn}")


@on_workers(2, setup=False)
def test_a_round_that_one_gave_up_is_begun_again(me: Me) -> None:
    if me.rank == 0:
        with pytest.raises(DistStoreError, match="no value for"):
            me.init(rpc_timeout=0.2)
        assert not rpc._is_current_rpc_agent_set()
    me.meet("given up")
    me.init()
    assert rpc.rpc_sync(me.next, max, args=(1, 0)) == 1
    rpc.shutdown()


@on_workers(2, setup=False)
def test_a_worker_that_was_refused_for_its_options_meets_those_that_wait_for_it(me: Me) -> None:
    if me.rank == 1:
        with pytest.raises(UsageError, match="nonesuch"):
            me.init(channels=["nonesuch"])
    me.init()
    assert rpc.rpc_sync(me.next, max, args=(1, 0)) == 1
    rpc.shutdown()


@on_workers(2, setup=False)
def test_it_begins_at_the_port_of_a_process_group_whose_end_comes_amid_it(me: Me) -> None:
    where = free_place(me)
    dist.init_process_group("gloo", init_method=where, rank=me.rank, world_size=2)
    dist.barrier()
    begun = Path(me.folder) / "begun"
    if me.rank == 0:
        until(begun.exists)
        SYSTEM.sleep(0.2)  # worker 1 is connected to the store of the group, most likely
    dist.destroy_process_group()
    begun.touch()
    rpc.init_rpc(me.name(me.rank), None, me.rank, 2, rpc.TensorPipeRpcBackendOptions(init_method=where, rpc_timeout=30))
    assert rpc.rpc_sync(me.next, max, args=(1, 0)) == 1
    rpc.shutdown()


@on_workers(2, setup=False)
def test_a_store_that_never_comes_back_is_said(me: Me) -> None:
    where = free_place(me)
    if me.rank == 0:
        with dist.TCPStore("127.0.0.1", int(where.rpartition(":")[2]), is_master=True, wait_for_workers=False) as store:
            until(lambda: store.num_keys() > 0)
    else:
        options = rpc.TensorPipeRpcBackendOptions(init_method=where, rpc_timeout=1)
        with pytest.raises(DistStoreError, match=r"init_rpc.*lost the server.*did rank 0 end\?"):
            rpc.init_rpc("late", None, 1, 2, options)


@on_workers(2, setup=False)
def test_ranks_of_which_one_has_had_more_groups_elsewhere_meet_at_a_new_place(me: Me) -> None:
    if me.rank == 0:
        for _ in range(2):
            dist.init_process_group("gloo", init_method=f"file://{me.folder}/own", rank=0, world_size=1)
            dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{me.folder}/both", rank=me.rank, world_size=2)
    dist.barrier()
    dist.destroy_process_group()


@on_workers(2, setup=False)
def test_it_begins_beside_process_groups_before_and_after(me: Me) -> None:
    dist.init_process_group("gloo", init_method=f"file://{me.folder}/group", rank=me.rank, world_size=2)
    me.init()
    assert rpc.rpc_sync(me.next, min, args=(1, 2)) == 1
    rpc.shutdown()
    dist.destroy_process_group()
    me.init("other")
    dist.init_process_group("gloo", init_method=f"file://{me.folder}/group2", rank=me.rank, world_size=2)
    dist.barrier()
    assert rpc.rpc_sync(me.next, min, args=(1, 2)) == 1
    dist.destroy_process_group()


@on_workers(1)
def test_a_world_of_one_calls_itself(me: Me) -> None:
    assert rpc.rpc_sync("worker0", max, args=(1, 2)) == 2


def test_what_is_no_backend_or_option_is_refused(tmp_path: object) -> None:
    with pytest.raises(TypeError, match="Argument backend must be a member of BackendType"):
        rpc.init_rpc("a", backend="TENSORPIPE", rank=0, world_size=1)
    with pytest.raises(TypeError, match="Argument rpc_backend_options must be an instance of RpcBackendOptions"):
        rpc.init_rpc("a", rank=0, world_size=1, rpc_backend_options={"rpc_timeout": 3})  # type: ignore[arg-type]

    class Others(rpc.RpcBackendOptions):
        pass

    with pytest.raises(TypeError, match="Could not infer backend for options"):
        rpc.init_rpc("a", rank=0, world_size=1, rpc_backend_options=Others())
    with pytest.raises(TypeError, match="`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`"):
        rpc.init_rpc(
            "a",
            rpc.BackendType.TENSORPIPE,
            rank=0,
            world_size=1,
            rpc_backend_options=rpc.RpcBackendOptions(init_method=f"file://{tmp_path}/store"),
        )


def test_other_kinds_of_agents_are_registered_once() -> None:
    registry = rpc.backend_registry
    stub = registry.register_backend("test_stub", lambda **kwargs: object(), lambda **kwargs: "an agent")
    assert registry.backend_registered("test_stub")
    assert stub.name == "test_stub"
    assert registry.init_backend(stub) == "an agent"
    assert registry.BackendType.TENSORPIPE.name == "TENSORPIPE"
    with pytest.raises(RuntimeError, match=r"^RPC backend .+: already registered$"):
        registry.register_backend("test_stub", lambda: 0, lambda: 0)


def test_a_group_without_a_size_needs_each_workers_rank(tmp_path: object) -> None:
    with pytest.raises(ValueError, match="rank parameter missing"):
        rpc.init_rpc("a", rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/store"))


@on_workers(1)
def test_it_is_there(me: Me) -> None:
    assert rpc.is_available()
    assert rpc._is_current_rpc_agent_set()
    with pytest.raises(RpcError):
        rpc.get_worker_info("nobody")
