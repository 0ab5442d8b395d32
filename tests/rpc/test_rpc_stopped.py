"""Stop workers (SIGSTOP): they are alive, take nothing and answer nothing. Nobody waits for them beyond a deadline."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rpc_functions import identity, sleeps
from rpc_workers import Me, on_workers, until

import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM
from resilin.errors import RpcTimeout


@contextlib.contextmanager
def stopped(name: str) -> Iterator[None]:
    pid = rpc.rpc_sync(name, os.getpid)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def fill(name: str) -> None:
    """Send to a stopped worker until there is no room for the shortest message."""
    for size in (1 << 20, 1 << 12, 1):
        took = 0.0
        while took < 0.05:  # whoever finds no room waits for it, as long as the call may take
            begun = SYSTEM.monotonic()
            rpc.rpc_async(name, len, args=(bytes(size),), timeout=0.05)
            took = SYSTEM.monotonic() - begun


@on_workers(3, transports=("zeromq",))
def test_timeouts_are_kept_while_references_to_a_stopped_worker_are_let_go(me: Me) -> None:
    if me.rank == 0:
        references = [rpc.remote("worker1", identity, args=(n,)) for n in range(5)]
        assert [each.to_here() for each in references] == list(range(5))
        with stopped("worker1"):
            fill("worker1")
            references.clear()
            begun = SYSTEM.monotonic()
            with pytest.raises(RpcTimeout):
                rpc.rpc_async("worker2", sleeps, args=(6.0,), timeout=0.2).wait()
            assert SYSTEM.monotonic() - begun < 4.0
    me.meet("continued")


@on_workers(3, setup=False)
def test_a_newcomer_waits_for_a_stopped_member_no_longer_than_a_call_may_take(me: Me) -> None:
    there, come = Path(me.folder) / "stopped", Path(me.folder) / "come"
    if me.rank != 2:
        me.init(world_size=None)
        until(lambda: len(rpc._get_current_rpc_agent().get_worker_infos()) >= 2)
    if me.rank == 0:
        with stopped("worker1"):
            there.touch()
            until(come.exists)
            assert rpc.rpc_sync("worker2", identity, args=(3,)) == 3
    elif me.rank == 2:
        until(there.exists)
        begun = SYSTEM.monotonic()
        me.init(world_size=None, rpc_timeout=1.0)
        assert SYSTEM.monotonic() - begun < 8.0
        come.touch()
    me.meet("continued")
    if me.rank == 1:
        assert rpc.rpc_sync("worker2", identity, args=(4,)) == 4
    me.meet("called")


@on_workers(2, setup=False)
def test_a_worker_leaves_a_group_with_a_stopped_member_in_its_time(me: Me) -> None:
    me.init(world_size=None)
    until(lambda: len(rpc._get_current_rpc_agent().get_worker_infos()) == 2)
    me.meet("in")
    if me.rank == 0:
        with stopped("worker1"):
            begun = SYSTEM.monotonic()
            with pytest.raises(RpcTimeout, match="worker1"):
                rpc.shutdown(timeout=0.5)
            assert SYSTEM.monotonic() - begun < 8.0
            assert not rpc._is_current_rpc_agent_set()
    me.meet("continued")
