"""Kill any worker in any phase of a distributed backward: nobody hangs, errors name the dead, contexts are freed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import extent
import pytest
import rpc_graphs as graphs
from rpc_graphs import fresh
from rpc_workers import Me, spawned, until

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM
from resilin.errors import PeerLost, RpcTimeout

pytestmark = pytest.mark.multiproc

COUNT = 3
PHASES = ("forward", "backward", "cleanup")
CASES = [(phase, victim) for phase in PHASES for victim in range(COUNT)]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Dies(torch.autograd.Function):
    """The identity; its process dies in `backward`."""

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        die()
        return grad


def part(a: Any, b: Any, rank: int, phase: str, victim: int) -> Any:
    """One worker's part of the forward: those with higher ranks are called by it."""
    value = a * b
    if rank + 1 < COUNT:
        value = rpc.rpc_sync(f"worker{rank + 1}", part, args=(value, b, rank + 1, phase, victim)) * a
    if rank == victim and phase == "forward":
        die()
    if rank == victim and phase == "backward":
        value = Dies.apply(value)
    return value + b


def chain(me: Me, phase: str, victim: int) -> None:
    """Worker 0 runs a forward and a backward through all; who survives finds no context in the end."""
    me.init(world_size=None)
    me.meet("init")
    rpc.rpc_sync(me.name(me.rank + 1), os.getpid)
    me.meet("begun")
    if me.rank == 0:
        pids = {rank: rpc.rpc_sync(f"worker{rank}", os.getpid) for rank in range(COUNT)}
        lost: PeerLost | None = None
        a, b = fresh(300, 300), fresh(300, 300)
        with dist_autograd.context() as context_id:
            try:
                loss = part(a, b, 0, phase, victim).sum()
                dist_autograd.backward(context_id, [loss])
                assert set(dist_autograd.get_gradients(context_id)) == {a, b}
                if phase == "cleanup" and victim:
                    os.kill(pids[victim], signal.SIGKILL)
                    until(lambda: is_lost(victim))
                elif phase == "cleanup":
                    die()
            except PeerLost as error:
                lost = error
        if phase != "cleanup":
            assert lost is not None
            assert f"worker 'worker{victim}' (id {victim}, host" in str(lost), str(lost)
            assert f"pid {pids[victim]})" in str(lost), str(lost)
    else:
        until(lambda: (Path(me.folder) / "over").exists() or is_lost(victim))
    (Path(me.folder) / "over").touch()
    until(lambda: graphs.contexts_here() == 0)
    until(lambda: not rpc._get_current_rpc_agent().gradients.backwards.running)
    (Path(me.folder) / f"well{me.rank}").touch()
    rpc.shutdown(graceful=False)


def far(me: Me) -> None:
    """Worker 2 has a context of worker 0, of which only worker 1 has told it; both die at once."""
    me.init()
    if me.rank == 0:
        with dist_autograd.context():
            rpc.rpc_sync("worker1", rpc.rpc_sync, args=("worker2", graphs.add, (fresh(3), 1)))
            me.meet("called")
            until((Path(me.folder) / "there").exists)
            die()
    me.meet("called")
    if me.rank == 1:
        until((Path(me.folder) / "there").exists)
        die()
    assert graphs.contexts_here() == 1
    until(lambda: rpc._get_current_rpc_agent().peers.is_connected(0))
    (Path(me.folder) / "there").touch()
    until(lambda: graphs.contexts_here() == 0)
    rpc.shutdown(graceful=False)


@pytest.mark.slow
def test_a_context_ends_with_a_maker_that_never_called_this_worker(tmp_path: Path) -> None:
    with spawned(far, COUNT, tmp_path) as ended:
        assert [ended(rank) for rank in range(COUNT)] == [-signal.SIGKILL, -signal.SIGKILL, 0]


class Stops(torch.autograd.Function):
    """The identity; its process is stopped in `backward`."""

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        SYSTEM.sleep(0.3)  # another thread may take the signal first
        return grad


def stopping(value: Any) -> Any:
    return Stops.apply(value)


def silent(me: Me) -> None:
    """Worker 1 is stopped in the backward, which gives it up; it goes on, and takes part in the next one."""
    me.init()
    pid = rpc.rpc_sync("worker1", os.getpid)
    if me.rank == 0:
        value = fresh(3)
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync("worker1", stopping, args=(value,)).sum()
            rpc._set_rpc_timeout(1.0)
            with pytest.raises(RpcTimeout, match="worker 'worker1' says nothing of its part since 1"):
                dist_autograd.backward(context_id, [loss])
            rpc._set_rpc_timeout(60.0)
            os.kill(pid, signal.SIGCONT)
            loss = rpc.rpc_sync("worker1", torch.mul, args=(value, 2)).sum() + value.sum()
            dist_autograd.backward(context_id, [loss])
            assert graphs.grads(context_id, value) == [[3.0] * 3]
    rpc.shutdown()


@pytest.mark.slow
def test_a_stopped_worker_is_given_up_and_may_go_on(tmp_path: Path) -> None:
    with spawned(silent, 2, tmp_path) as ended:
        assert [ended(rank) for rank in range(2)] == [0, 0]


def is_lost(rank: int) -> bool:
    try:
        rpc.rpc_sync(f"worker{rank}", os.getpid)
    except PeerLost:
        return True
    return False


def _case(number: int) -> Callable[[Me], None]:
    return lambda me: chain(me, *CASES[number])


for _number in range(len(CASES)):
    globals()[f"case{_number}"] = _case(_number)
    globals()[f"case{_number}"].__name__ = f"case{_number}"


@pytest.mark.parametrize(
    "number", extent.short(range(len(CASES)), of=(2, 4, 6)), ids=lambda n: "-".join(map(str, CASES[n]))
)
def test_survivors_of_a_kill_go_on_and_keep_no_context(number: int, tmp_path: Path) -> None:
    _, victim = CASES[number]
    with spawned(globals()[f"case{number}"], COUNT, tmp_path) as ended:
        codes = [ended(rank) for rank in range(COUNT)]
    assert codes == [-signal.SIGKILL if rank == victim else 0 for rank in range(COUNT)]
    assert {path.name for path in tmp_path.glob("well*")} == {f"well{rank}" for rank in range(COUNT) if rank != victim}
