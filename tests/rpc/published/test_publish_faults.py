"""What readers see while a publisher writes all the time, and when workers are stopped, killed, or told nonsense."""

import contextlib
import os
import signal
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rpc_workers import Me, on_workers, spawned, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM
from resilin.errors import PeerLost, RpcError, RpcTimeout, UsageError
from resilin.rpc.published import api as published
from resilin.rpc.published.publication import Publication
from resilin.rpc.published.stripes import Striped
from resilin.testing import rpc_faults

LARGE = 40_000  # numbers, so that tensors are lent


def state(value: float, parts: int = 3) -> dict[str, torch.Tensor]:
    return {f"part{number}": torch.full((LARGE,), value) for number in range(parts)}


def loans() -> int:
    """How much this worker has lent that is not back."""
    rpc._get_current_rpc_agent()._channels["lent"]._tell_now()
    found: int = rpc._get_current_rpc_agent()._channels["lent"].stats()["loans"]
    return found


@contextlib.contextmanager
def stopped(name: str) -> Iterator[None]:
    pid = rpc.rpc_sync(name, os.getpid)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def hashed(state: dict[str, Any]) -> int:
    found = 0
    for part in state.values():
        found = zlib.crc32(part.numpy().tobytes(), found)
    return found


@on_workers(3)
def test_readers_never_see_a_mixture_of_versions(me: Me) -> None:
    turns, parts = 60, 5
    expected = [hashed(state(float(turn), parts)) for turn in range(turns + 1)]
    subscription = rpc.subscribe("written", src=0)
    me.meet("subscribed")
    if me.rank == 0:
        weights = state(0.0, parts)
        for turn in range(1, turns + 1):
            for part in weights.values():
                part.fill_(turn)
            handle = rpc.publish(weights, name="written")
            for part in weights.values():  # at once: nobody has taken it over yet
                part.fill_(-turn)
        handle.wait()
    else:
        seen: list[tuple[int, dict[str, torch.Tensor]]] = []
        while not seen or seen[-1][0] < turns:
            version, found = subscription.wait(seen[-1][0] + 1 if seen else 1)
            assert hashed(found) == expected[version], version
            seen.append((version, found))
            del seen[:-4]
        assert [version for version, _ in seen] == sorted(version for version, _ in seen)
        for version, found in seen:
            assert hashed(found) == expected[version], version
    me.meet("done")


@on_workers(2, channels=["inline"])
def test_stripes_are_of_one_version_while_others_are_published(me: Me) -> None:
    subscription = rpc.subscribe("striped", src=0)
    me.meet("subscribed")
    turns, length = 8, 3 << 20
    if me.rank == 0:
        weights = {"one": torch.zeros(length), "two": torch.zeros(length)}
        for turn in range(1, turns + 1):
            for part in weights.values():
                part.fill_(turn)
            rpc.publish(weights, name="striped", checksum=turn % 2 == 0)
            SYSTEM.sleep(0.01)
    else:
        version = 0
        while version < turns:
            version, found = subscription.wait(version + 1)
            for part in found.values():
                assert float(part.min()) == float(part.max()) == version
    me.meet("done")


@on_workers(2)
def test_versions_that_nobody_holds_are_freed(me: Me) -> None:
    subscription = rpc.subscribe("freed", src=0)
    me.meet("subscribed")
    weights = state(0.0)
    most = 0
    for turn in range(1, 16):
        if me.rank == 0:
            for part in weights.values():
                part.fill_(turn)
            rpc.publish(weights, name="freed").wait()
        assert subscription.wait(turn)[0] == turn
        me.meet(f"turn {turn}")
        until(lambda: loans() <= 3 * 4)  # of the newest: its own window, that of each worker, and one on its way
        most = max(most, loans())
    assert most <= 12
    me.meet("published")
    if me.rank == 0:
        rpc.publish({}, name="freed").wait()
    subscription.wait(16)
    until(lambda: loans() == 0)
    me.meet("done")


@on_workers(3)
def test_a_stopped_reader_delays_nobody_and_gets_the_newest_when_it_goes_on(me: Me) -> None:
    subscription = rpc.subscribe("stopped", src=0)
    me.meet("subscribed")
    if me.rank == 0:
        weights = state(0.0)
        with stopped("worker1"):
            begun = SYSTEM.monotonic()
            for turn in range(1, 21):
                for part in weights.values():
                    part.fill_(turn)
                handle = rpc.publish(weights, name="stopped")
            until(lambda: handle.readers()["worker2"] == 20)
            assert SYSTEM.monotonic() - begun < 20
            with pytest.raises(RpcTimeout, match=r"version 20 of 'stopped' was not taken over .* by: worker1"):
                handle.wait(timeout=0.2)
            assert loans() <= 3 * 6
        handle.wait()
    else:
        version, found = subscription.wait(20)
        assert version == 20
        assert float(found["part2"].min()) == 20
    me.meet("done")


@on_workers(2)
def test_who_waits_for_what_does_not_come_is_told(me: Me) -> None:
    subscription = rpc.subscribe("nothing", src="worker0")
    with pytest.raises(RpcTimeout, match=r"no version 1 of 'nothing' came from worker 'worker0' within 0\.1 s"):
        subscription.wait(timeout=0.1)
    me.meet("done")


@on_workers(2)
def test_bytes_that_changed_are_refused_and_the_version_before_stays(me: Me) -> None:
    if me.rank == 0:
        handle = rpc.publish(state(1.0), to=[1], name="changed", checksum=True)
        handle.wait()
        me.meet("first")
        made = published._registry().publication("changed")
        rpc.publish(state(2.0), name="other", checksum=True)
        wrong = published._registry().publication("other").latest
        assert wrong is not None
        assert wrong.checksum is not None
        made._latest = type(wrong)(wrong.epoch, 2, wrong.state, wrong.checksum ^ 1)
        made._number = 2
        made._tell(1)
        me.meet("told")
    else:
        me.meet("first")
        me.meet("told")
        subscription = rpc.subscribe("changed", src=0)
        with pytest.raises(RpcError, match=r"version 2 of 'changed' came from worker 'worker0' with checksum \w{8}"):
            subscription.wait(2, timeout=20)
        version, found = subscription.latest()
        assert version == 1
        assert float(found["part0"].max()) == 1
    me.meet("done")


@on_workers(2)
def test_bad_input_is_refused(me: Me) -> None:
    with pytest.raises(TypeError, match="expected a state dict, a mapping"):
        rpc.publish([torch.ones(3)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected several workers, as in to=\['worker1'\]"):
        rpc.publish({}, to="worker1")
    with pytest.raises(RpcError, match="no worker is called 'nobody'"):
        rpc.publish({}, to=["nobody"])
    with pytest.raises(TypeError, match="publish: expected a name"):
        rpc.publish({}, name=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected a whole number from 1 on, got 0"):
        rpc.publish({}, version=0)
    with pytest.raises((RpcError, TypeError), match="lock"):
        rpc.publish({"lock": threading.Lock()})
    with pytest.raises(RpcError, match="no worker is called 'nobody'"):
        rpc.subscribe("weights", src="nobody")
    assert rpc.publish({"weight": torch.ones(3)}).version == 1, "what failed is no version"


def test_only_workers_publish() -> None:
    with pytest.raises(RpcError, match="RPC has not been initialized"):
        rpc.publish({})
    with pytest.raises(RpcError, match="RPC has not been initialized"):
        rpc.subscribe("weights", src="worker0")


@on_workers(2, setup=False)
def test_announcements_that_are_lost_are_made_again(me: Me) -> None:
    with rpc_faults.planned(drop={"PUBLISHED": 3}) as plan:
        me.init()
        if me.rank == 0:
            rpc.publish(state(1.0), to=["worker1"]).wait()
            assert plan.all_fired()
        me.meet("taken over")
        if me.rank == 1:
            assert rpc.subscribe(src="worker0").wait()[0] == 1
        me.meet("done")
        rpc.shutdown()


def _publisher_dies(me: Me) -> None:
    me.init(world_size=None)
    agent = rpc._get_current_rpc_agent()
    until(lambda: len(agent.get_worker_infos()) >= 2)
    if me.rank == 0:
        rpc.publish(state(1.0), to=["worker1"], name="policy").wait()
        me.meet("published")
        os.kill(os.getpid(), signal.SIGKILL)
    subscription = rpc.subscribe("policy", src="worker0")
    version, found = subscription.wait()
    me.meet("published")
    with pytest.raises(PeerLost, match=r"no version 2 of 'policy' will come: worker 'worker0'.*the last.*is 1"):
        subscription.wait(2, timeout=30)
    with pytest.raises(PeerLost):
        subscription.wait(2, timeout=30)
    assert subscription.latest()[0] == version == 1
    for part in found.values():
        assert float(part.min()) == float(part.max()) == 1
    (Path(me.folder) / "told").touch()
    until((Path(me.folder) / "replaced").exists)
    version, again = subscription.wait(5)
    assert version == 5
    assert float(again["part0"].max()) == 9
    assert float(found["part0"].max()) == 1
    until((Path(me.folder) / "heard").exists)
    rpc.shutdown(graceful=False)


def _publisher_in_its_place(me: Me) -> None:
    until((Path(me.folder) / "told").exists)
    me.rank, me.world_size = 0, 2
    me.init(world_size=None)
    handle = rpc.publish(state(9.0), name="policy", version=5)
    (Path(me.folder) / "replaced").touch()
    until(lambda: handle.readers().get("worker1") == 5)
    (Path(me.folder) / "heard").touch()
    rpc.shutdown(graceful=False)


@pytest.mark.multiproc
def test_the_last_version_of_a_dead_publisher_stays_until_another_takes_its_place(tmp_path: Path) -> None:
    with spawned(_publisher_dies, 2, tmp_path) as ended, spawned(_publisher_in_its_place, 1, tmp_path) as other:
        assert ended(0) == -signal.SIGKILL
        assert ended(1) == 0
        assert other(0) == 0


def _dies_handing_over(me: Me) -> None:
    """The publisher dies while a reader takes over version 2: when it is asked, or between two stripes."""
    phase = (Path(me.folder) / "phase").read_text()
    me.init(channels=["inline"])
    weights = {"one": torch.ones(6 << 20), "two": torch.ones(3)}
    if me.rank == 0:
        rpc.publish(weights, to=[1]).wait()
        asked = {"asked": (Publication, "taken"), "stripes": (Striped, "stripe")}[phase]
        before = getattr(*asked)
        calls = []

        def dying(self: Any, *args: Any) -> Any:
            calls.append(args)
            if len(calls) == (1 if phase == "asked" else 2):
                os.kill(os.getpid(), signal.SIGKILL)
            return before(self, *args)

        setattr(*asked, dying)
        rpc.publish({name: part + 1 for name, part in weights.items()}, to=[1])
        until((Path(me.folder) / "never").exists)
    subscription = rpc.subscribe(src="worker0")
    assert subscription.wait()[0] == 1
    with pytest.raises(PeerLost, match="worker0"):
        subscription.wait(2, timeout=30)
    version, found = subscription.latest()
    assert version == 1
    assert all(float(part.min()) == float(part.max()) == 1 for part in found.values())
    rpc.shutdown(graceful=False)


@pytest.mark.multiproc
@pytest.mark.parametrize("phase", ["asked", "stripes"])
def test_a_version_whose_publisher_dies_on_the_way_is_never_shown(phase: str, tmp_path: Path) -> None:
    (tmp_path / "phase").write_text(phase)
    with spawned(_dies_handing_over, 2, tmp_path) as ended:
        assert ended(0) == -signal.SIGKILL
        assert ended(1) == 0


def _reader_dies(me: Me) -> None:
    me.init()
    if me.rank == 0:
        weights = state(1.0)
        handle = rpc.publish(weights, to=[1, 2], name="policy")
        handle.wait()
        before = loans()
        me.meet("taken")
        until(lambda: list(handle.readers()) == ["worker2"])
        until(lambda: loans() < before)
        for part in weights.values():
            part.fill_(2)
        rpc.publish(weights, to=[1, 2], name="policy").wait()
        (Path(me.folder) / "done").touch()
        until((Path(me.folder) / "read").exists)
    else:
        subscription = rpc.subscribe("policy", src=0)
        version, found = subscription.wait()
        assert (version, float(found["part0"].max())) == (1, 1)
        me.meet("taken")
        if me.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        assert float(subscription.wait(2)[1]["part1"].min()) == 2
        until((Path(me.folder) / "done").exists)
        (Path(me.folder) / "read").touch()
    rpc.shutdown(graceful=False)


@pytest.mark.multiproc
def test_what_a_dead_reader_held_is_freed_and_the_others_go_on(tmp_path: Path) -> None:
    with spawned(_reader_dies, 3, tmp_path) as ended:
        assert ended(1) == -signal.SIGKILL
        assert ended(2) == 0
        assert ended(0) == 0


@on_workers(2)
def test_an_announcement_that_is_none_changes_nothing(me: Me) -> None:
    for said in (b"", b"[]", b'["a", "b"]', b'["a", "b", "c"]', b'["a", 1, 1]', b'["a", "b", 0]', b"\xff", b"{}"):
        with pytest.raises(ValueError, match="no announcement of a version"):
            published._registry().announced(1 - me.rank, said)
    assert published._registry().announced(1 - me.rank, b'["a", "b", 1]') == b""
    until(lambda: not published._registry().replica(rpc.get_worker_info(me.next), "a")._asking)
    assert rpc.subscribe("a", src=me.next).latest() == (0, {})
