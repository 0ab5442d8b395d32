"""Fork a worker, as loaders of data do: the child is no worker, and the parent stays one."""

import contextlib
import os
import traceback
from collections.abc import Callable

import pytest
from rpc_functions import identity
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc


def in_child(check: Callable[[], None]) -> None:
    """Run `check` in a forked child; AssertionError with what it raised, or when it hangs."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:  # noqa: BLE001 - a process' top: told to the parent
            os.write(theirs, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(theirs)
    ended: list[int] = []
    with contextlib.closing(os.fdopen(ours, "rb")) as said:
        try:
            until(lambda: ended.append(pid) or True if os.waitpid(pid, os.WNOHANG)[0] else False)
        finally:
            if not ended:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
        text = said.read().decode()
    assert not text, text


@on_workers(2)
def test_a_forked_child_is_no_worker(me: Me) -> None:
    if me.rank == 0:
        rref = rpc.remote("worker1", torch.ones, args=(3,))
        assert rref.to_here().sum() == 3

        def refuses() -> None:
            for call in (
                lambda: rpc.rpc_sync("worker1", identity, args=(1,)),
                lambda: rpc.rpc_async("worker1", identity, args=(1,)),
                lambda: rpc.remote("worker1", identity, args=(1,)),
                lambda: rref.to_here(),
                lambda: rref.rpc_sync().sum(),
                lambda: rpc.shutdown(),
            ):
                with pytest.raises(RuntimeError, match="not been initialized in this process, which was forked"):
                    call()

        in_child(refuses)
        assert rref.rpc_sync().sum() == 3
        assert rpc.rpc_async("worker1", identity, args=(2,)).wait() == 2


@on_workers(2)
def test_a_forked_child_may_be_a_worker_of_its_own(me: Me) -> None:
    if me.rank == 0:

        def works() -> None:
            options = me.made_options("of the child")
            rpc.init_rpc("child", rank=0, world_size=1, rpc_backend_options=options)
            assert rpc.rpc_sync("child", identity, args=(torch.ones(2),)).sum() == 2
            assert rpc.rpc_async("child", identity, args=(3,)).wait() == 3
            rpc.shutdown()

        in_child(works)
        assert rpc.rpc_async("worker1", identity, args=(torch.ones(100_000),)).wait().sum() == 100_000
