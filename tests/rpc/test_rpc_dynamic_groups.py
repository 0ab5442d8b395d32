"""Groups without a size: workers come and leave one by one, and others take their places."""

import os
import signal
from pathlib import Path

import pytest
from rpc_functions import debug_info, identity, sleeps
from rpc_workers import Me, on_workers, spawned, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin.errors import OwnerLost, PeerLost
from resilin.rpc.references.states import GloballyUniqueId


def names() -> list[str]:
    return sorted(info.name for info in rpc._get_current_rpc_agent().get_worker_infos())


@on_workers(3, setup=False)
def test_workers_come_one_by_one_and_everybody_knows_them(me: Me) -> None:
    for turn in range(3):
        if turn == me.rank:
            me.init(world_size=None)
            for before in range(turn):
                assert rpc.rpc_sync(me.name(before), identity, args=(turn,)) == turn
                assert me.name(turn) in rpc.rpc_sync(me.name(before), names), "the others know when it is in"
        me.meet(f"turn {turn}")
    for rank in range(3):
        assert torch.equal(rpc.rpc_sync(me.name(rank), torch.add, args=(torch.ones(2), 1)), torch.ones(2) + 1)
    me.meet("called")
    if me.rank == 1:
        rpc.shutdown()
    me.meet("left")
    if me.rank != 1:
        assert names() == ["worker0", "worker2"]
        with pytest.raises(RuntimeError, match="could not find destination"):
            rpc.rpc_sync("worker1", min, args=(1, 2))
        assert rpc.rpc_sync(me.name(2 - me.rank), min, args=(1, 2)) == 1
    me.meet("again")
    if me.rank == 1:
        me.init(world_size=None)
        assert names() == ["worker0", "worker1", "worker2"]
    me.meet("back")
    assert rpc.rpc_sync("worker1", identity, args=(3,)) == 3
    me.meet("done")
    for turn in range(3):
        if turn == me.rank:
            rpc.shutdown()
        me.meet(f"leaves {turn}")


@on_workers(3, setup=False)
def test_workers_that_come_at_once_all_get_in(me: Me) -> None:
    me.init(world_size=None)
    until(lambda: len(names()) == 3)
    me.meet("in")
    assert [rpc.rpc_sync(me.name(rank), identity, args=(rank,)) for rank in range(3)] == [0, 1, 2]
    me.meet("called")


@on_workers(2, setup=False)
def test_a_name_or_an_id_that_is_taken_is_refused(me: Me) -> None:
    if me.rank == 0:
        me.init(world_size=None)
    me.meet("in")
    if me.rank == 1:
        for name, id, said in (("worker0", 1, "name worker0 is not unique"), ("other", 0, "id 0 is not unique")):
            with pytest.raises(RuntimeError, match=said):
                rpc.init_rpc(name, rank=id, rpc_backend_options=me.made_options())
            assert not rpc._is_current_rpc_agent_set()

        me.init(world_size=None)
        assert names() == ["worker0", "worker1"]
    me.meet("done")


def _replaced(me: Me) -> None:
    """Rank 0 calls, rank 1 dies, rank 2 comes in its place."""
    static = 2 if (Path(me.folder) / "static").exists() else None
    rank = min(me.rank, 1)
    name = f"worker{rank}"
    if me.rank == 2:
        until(lambda: (Path(me.folder) / "died").exists())
    elif me.rank == 1 and static is None:
        until(lambda: (Path(me.folder) / "begun").exists())
    rpc.init_rpc(name, rank=rank, world_size=static, rpc_backend_options=me.made_options())
    (Path(me.folder) / f"ready{me.rank}").touch()
    if me.rank == 0:
        (Path(me.folder) / "begun").touch()
        until(lambda: (Path(me.folder) / "ready1").exists())
        pid = rpc.rpc_sync("worker1", os.getpid)
        rref = rpc.remote("worker1", torch.add, args=(torch.ones(2), 1))
        rref.to_here()
        pending = rpc.rpc_async("worker1", sleeps, args=(30.0,))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PeerLost, match=rf"worker 'worker1' \(id 1, host .*, pid {pid}\)"):
            pending.wait()
        with pytest.raises(PeerLost, match="worker1"):
            rpc.rpc_sync("worker1", min, args=(1, 2))
        (Path(me.folder) / "died").touch()
        until(lambda: (Path(me.folder) / "ready2").exists())
        assert rpc.rpc_sync("worker1", os.getpid) != pid
        assert rpc.remote("worker1", identity, args=(4,)).to_here() == 4
        with pytest.raises(OwnerLost):
            rref.to_here()
        (Path(me.folder) / "checked").touch()
    else:
        until(lambda: (Path(me.folder) / "checked").exists(), 30.0)
        assert rpc.rpc_sync("worker0", identity, args=(me.rank,)) == me.rank
        (Path(me.folder) / "answered").touch()
    if me.rank == 0:
        until(lambda: (Path(me.folder) / "answered").exists())
    rpc.shutdown(graceful=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_replacement_of_the_dead_is_reached_under_its_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / kind).touch()
    with spawned(_replaced, 3, tmp_path) as ended:
        assert [ended(rank) for rank in range(3)] == [0, -signal.SIGKILL, 0]


@on_workers(3, setup=False)
def test_references_to_the_values_of_one_that_left_raise_also_when_its_place_is_taken(me: Me) -> None:
    for turn in range(3):
        if turn == me.rank:
            me.init(world_size=None)
        me.meet(f"in {turn}")
    made = [rpc.remote("worker1", identity, args=(number,)) for number in range(2)] if me.rank != 1 else []
    assert [rref.to_here() for rref in made] == [*range(len(made))]
    me.meet("made")
    if me.rank == 1:
        rpc.shutdown()
    me.meet("left")
    if me.rank != 1:
        with pytest.raises(OwnerLost, match=r"worker 'worker1' .* has left"):
            made[0].to_here(timeout=20)
        with pytest.raises(OwnerLost, match="has left"):
            rpc.rpc_sync(me.name(2 - me.rank), identity, args=(made[0],))
    me.meet("asked")
    if me.rank == 1:
        me.init(world_size=None)
    me.meet("back")
    if me.rank != 1:
        assert rpc.rpc_sync("worker1", identity, args=(3,)) == 3
        with pytest.raises(OwnerLost, match="has left"):
            made[1].to_here(timeout=20)
        assert rpc.rpc_sync("worker1", debug_info)["num_owner_rrefs"] == "0"
    me.meet("done")
    rpc.shutdown(timeout=20)


@on_workers(2, setup=False)
def test_a_leave_or_an_entry_that_is_told_late_does_not_touch_the_one_that_came_since(me: Me) -> None:
    for turn in range(2):
        if turn == me.rank:
            me.init(world_size=None)
        me.meet(f"in {turn}")
    peers = rpc._get_current_rpc_agent().peers
    before = peers._members[1]
    me.meet("known")
    if me.rank == 1:
        rpc.shutdown()
        me.init(world_size=None)
    me.meet("back")
    if me.rank == 0:
        now = peers._members[1]
        assert now.turn == before.turn + 1
        peers.left(before)
        peers.take([before])
        assert peers._members[1] is now
        assert rpc.rpc_sync("worker1", identity, args=(3,)) == 3
    me.meet("done")
    rpc.shutdown(timeout=20)


@on_workers(2, setup=False)
def test_a_worker_that_leaves_while_something_is_sent_to_it_is_named_as_lost(me: Me) -> None:
    for turn in range(2):
        if turn == me.rank:
            me.init(world_size=None)
        me.meet(f"in {turn}")
    if me.rank == 0:
        assert rpc.rpc_sync("worker1", identity, args=(3,)) == 3
        peers = rpc._get_current_rpc_agent().peers

        class LeavesFirst:
            def send(self, peer, *args):
                peers.left(peers._members[1])
                return found.send(peer, *args)

        found, peers._routes[1] = peers._routes[1], LeavesFirst()
        with pytest.raises(PeerLost, match=r"worker 'worker1' \(id 1, .*\) has left"):
            rpc.rpc_sync("worker1", identity, args=(3,), timeout=20)
    me.meet("done")
    rpc.shutdown(graceful=False)


@on_workers(3, setup=False)
def test_a_reference_from_one_that_has_not_heard_of_the_owners_replacement_refers_to_nothing(me: Me) -> None:
    for turn in range(3):
        if turn == me.rank:
            me.init(world_size=None)
        me.meet(f"in {turn}")
    if me.rank == 1:
        rpc.shutdown()
        me.init(world_size=None)
    me.meet("back")
    rrefs = rpc._get_current_rpc_agent().rrefs
    if me.rank == 0:
        made_by_rank_2, fork, owner, sender, owners_turn = (2, 0), (2, 7), 1, 2, 0
        state = rrefs.arrived((*made_by_rank_2, *fork, owner, sender, owners_turn))
        with pytest.raises(OwnerLost, match=r"lost with its owner: worker 'worker1' \(id 1, .*\) (has left|is lost)"):
            raise state.error
        assert state.confirmed
        with pytest.raises(PeerLost, match="another process is worker 1 now"):
            rpc.rpc_sync("worker1", value_of, args=((1, 5),), timeout=20)
    if me.rank == 1:
        with pytest.raises(PeerLost, match="gone with its last holder: another process is worker 1 now"):
            rrefs.arrived((2, 0, 2, 8, 1, 2, 0)).value.wait()
    me.meet("asked")
    assert debug_info()["num_owner_rrefs"] == "0"
    me.meet("done")
    rpc.shutdown(timeout=20)


def value_of(id: tuple[int, int]) -> object:
    return rpc._get_current_rpc_agent().rrefs.owner(GloballyUniqueId(*id)).value.wait()
