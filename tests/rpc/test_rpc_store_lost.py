"""Kill the process that serves the store through which workers met: the others go on, and do not wait for it."""

import os
import signal
import threading
from pathlib import Path

import pytest
from rpc_functions import identity
from rpc_workers import Me, spawned, until

import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM
from resilin.errors import PeerLost
from resilin.testing import ports

pytestmark = pytest.mark.multiproc
SOON_S = 20.0  # a wait for the store would take as long as it may: 60 s


def _loses(me: Me) -> None:
    port = int((Path(me.folder) / "port").read_text())
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc(f"worker{me.rank}", rank=me.rank, world_size=3, rpc_backend_options=options)
    if me.rank == 1:
        there = rpc.remote("worker0", identity, args=(1,))
        assert there.to_here() == 1
        assert rpc.rpc_sync("worker2", identity, args=(2,)) == 2, "it is in, too"
        os.kill(rpc.rpc_sync("worker0", os.getpid), signal.SIGKILL)
        begun = SYSTEM.monotonic()
        for _ in range(10):
            with pytest.raises(PeerLost, match="worker0"):
                rpc.rpc_sync("worker0", identity, args=(2,))
            with pytest.raises(PeerLost, match="worker0"):
                rpc.rpc_async("worker0", identity, args=(2,)).wait()
            with pytest.raises(PeerLost, match="worker0"):
                rpc.remote("worker0", identity, args=(2,)).to_here()
            assert rpc.rpc_sync("worker2", identity, args=(3,)) == 3
        del there
        assert SYSTEM.monotonic() - begun < SOON_S
        (Path(me.folder) / "done").touch()
    until(lambda: (Path(me.folder) / "done").exists())
    begun = SYSTEM.monotonic()
    rpc.shutdown(graceful=False)
    assert SYSTEM.monotonic() - begun < SOON_S
    assert [each.name for each in threading.enumerate()] == ["MainThread"]


def test_calls_to_the_dead_fail_at_once_though_the_store_died_with_it(tmp_path: Path) -> None:
    with ports.held() as (port,):
        (tmp_path / "port").write_text(str(port))
        with spawned(_loses, 3, tmp_path) as ended:
            assert [ended(rank) for rank in range(3)] == [-signal.SIGKILL, 0, 0]
