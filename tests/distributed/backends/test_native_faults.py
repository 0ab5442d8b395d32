"""A rank is killed or stopped inside each native collective: survivors say who, and nobody writes afterwards."""

import os
import signal
import time

import extent
import pytest

from resilin.distributed.wire import loader
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import start_ranks

pytestmark = [pytest.mark.multiproc, pytest.mark.skipif(loader.native is None, reason="needs the native code")]

PROGRAM = """
import os, sys, time
import numpy as np
from resilin import dist
from resilin.errors import ResilinError
from resilin.testing.ranks import join_from_environment
join_from_environment()
dist.set_timeout(float(os.environ["LIMIT"]))
rank, size = dist.get_rank(), dist.get_world_size()
part, whole, other = (np.ones(n, np.float32) for n in (200_000, 200_000 * size, 200_000 * size))
rows = list(whole.reshape(size, -1))
calls = {
    "barrier": dist.barrier,
    "all_reduce": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX),
    "broadcast": lambda: dist.broadcast(whole, src=0),
    "reduce": lambda: dist.reduce(whole, dst=0, op=dist.ReduceOp.MAX),
    "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.MAX),
    "gather": lambda: dist.gather(part, rows if rank == 0 else None, dst=0),
    "scatter": lambda: dist.scatter(part, rows if rank == 0 else None, src=0),
    "all_to_all": lambda: dist.all_to_all_single(other, whole),
    "small all_reduce": lambda: dist.all_reduce(part[:1000], dist.ReduceOp.MAX),
}
call = calls[os.environ["CALL"]]
print("ready", flush=True)
try:
    while True:
        call()
except ResilinError as error:
    print(type(error).__name__, sorted(error.ranks), sep="|", flush=True)
for array in (part, whole, other):
    array[:] = rank + 5
print("mine", flush=True)
sys.stdin.readline()
wrong = [int((array != rank + 5).sum()) for array in (part, whole, other)]
print(sum(wrong), flush=True)
os._exit(0)
"""
CALLS = (
    "barrier",
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "small all_reduce",
)
GUARD_ELEMENTS = (256 << 10) // 4  # what a stopped rank may write of the block that it was in


@pytest.mark.parametrize(
    ("call", "blow"),
    extent.short(
        [*((call, signal.SIGKILL) for call in CALLS), *((call, signal.SIGSTOP) for call in CALLS if "reduce" in call)],
        of=[(call, signal.SIGKILL) for call in ("barrier", "reduce", "all_to_all")] + [("all_reduce", signal.SIGSTOP)],
    ),
)
def test_survivors_name_the_rank_and_keep_their_memory_to_themselves(call, blow, tmp_path):
    error, limit = ("PeerLost", f"{2 * PATIENCE_S}") if blow == signal.SIGKILL else ("CollectiveTimeout", "2")
    ranks = start_ranks(3, PROGRAM, str(tmp_path), CALL=call, LIMIT=limit)
    with ranks[0], ranks[1], ranks[2]:
        assert [rank.read_line() for rank in ranks] == ["ready"] * 3
        time.sleep(0.05)
        os.kill(ranks[2].pid, blow)
        begin = time.monotonic()
        said = [rank.read_line() for rank in ranks[:2]]
        assert time.monotonic() - begin < PATIENCE_S
        assert f"{error}|[2]" in said
        # who is told by a peer before it sees for itself hears of an abort
        assert all(line in (f"{error}|[2]", "GroupAborted|[]") for line in said)
        assert [rank.read_line() for rank in ranks[:2]] == ["mine"] * 2
        if blow == signal.SIGSTOP:
            os.kill(ranks[2].pid, signal.SIGCONT)
            assert ranks[2].read_line().split("|")[0] in ("CollectiveTimeout", "PeerLost", "GroupAborted")
        changed = []
        for rank in ranks[:2]:
            rank.process.stdin.write("\n")
            rank.process.stdin.flush()
            changed.append(int(rank.read_line()))
        in_block = blow == signal.SIGSTOP and call in ("all_reduce", "reduce")
        assert max(changed) <= (GUARD_ELEMENTS if in_block else 0)
