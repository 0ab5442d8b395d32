"""Groups of real processes become the next one: by torch's names, after a kill, over two hosts."""

import extent
import pytest
from company import channels

from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin.errors import (
    UsageError,
)
from resilin.testing.job_secret import SECRET
from resilin.testing.ranks import RankProcess, run_ranks, start_ranks

MEMBER = """
import os, sys
import resilin
from resilin import dist
from resilin.distributed.stores import FileStore
rank = int(os.environ["RANK"])
store = FileStore(os.environ["TEST_INIT_METHOD"].removeprefix("file://"), 3, timeout=20)
dist.init_process_group(store=store, rank=rank, world_size=3, timeout=20, enable_reconfigure=True)
assert dist._supports_reconfigure()
try:
    dist.barrier()
except dist.DistError as error:
    assert "call _reconfigure(uuid, handles) first" in str(error), error
def handles(prefix, ranks):
    store.set(f"{prefix}/{rank}", dist._get_reconfigure_handle())
    return [store.get(f"{prefix}/{each}").decode() for each in ranks]
def total():
    tensor = resilin.ones(70_000) * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    return tensor[0].item()
work = dist._reconfigure(1, handles("first", [0, 1, 2]), timeout=20)
assert work.wait()
assert (dist.get_rank(), dist.get_world_size(), total()) == (rank, 3, 6.0)
if rank == 1:
    os.kill(os.getpid(), 9)
try:
    while True:
        total()
except dist.DistError as error:
    print(type(error).__name__, flush=True)
for uuid, given in ((2, list), (3, set)):
    members = given(handles(f"next {uuid}", [2, 0]))
    assert dist._reconfigure(uuid, members, hints={"any": "thing"}).wait()
    assert (dist.get_world_size(), total()) == (2, 3.0)
if uuid == 3:
    assert dist.default_group().stats()["reused"]["sockets"] == 1
dist.destroy_process_group()
print("done", flush=True)
"""


@pytest.mark.multiproc
def test_the_experimental_names_of_torch_reconfigure_the_default_group(tmp_path):
    ranks = start_ranks(3, MEMBER, str(tmp_path))
    ends = [rank.finish() for rank in ranks]
    assert [code for code, _, _ in ends] == [0, -9, 0], [err for _, _, err in ends]
    assert [out for _, out, _ in ends] == ["PeerLost\ndone\n", "", "PeerLost\ndone\n"]


def test_handles_must_be_a_list_or_a_set():
    def work(rank):
        with pytest.raises(UsageError, match="expected a list or a set of handles, got str"):
            dist._reconfigure(2, dist._get_reconfigure_handle())

    run_ranks(1, work).results()


SURVIVOR = """
import os, sys, time
import numpy as np
import resilin
from resilin import dist
from resilin.testing.ranks import join_from_environment
group = join_from_environment()
rank = group.rank()
big = resilin.ones(2_000_000)
dist.all_reduce(big)
print("ready", flush=True)
sys.stdin.readline()
try:
    while True:
        dist.all_reduce(big)
        big.fill_(1.0)
except dist.DistError as error:
    heard = time.monotonic()
    named = sorted(getattr(error, "ranks", []))
    kind = type(error).__name__
members = [group.topology.endpoints[peer].describe() for peer in (0, 2)]
after = group.reconfigure(2, members)
made = time.monotonic()
with dist.use_group(after):
    for count in (10, 100_000, 2_000_000):
        tensor = resilin.ones(count) * (after.rank() + 1)
        dist.all_reduce(tensor)
        values = np.asarray(tensor)
        assert (values == 3.0).all(), values
print(kind, named, heard, after.stats()["reused"]["sockets"], flush=True)
after.close()
"""


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("transport", "delay"),
    extent.short([("shm", 0.0), ("shm", 0.011), ("tcp", 0.004), ("tcp", 0.03)], of=[("shm", 0.011), ("tcp", 0.004)]),
)
def test_survivors_of_a_real_kill_hear_of_it_at_once_and_go_on(tmp_path, transport, delay):
    took = []
    while not took or (min(took) > 0.5 and len(took) < 10):  # about 2 ms; a busy machine delays single ones
        folder = tmp_path / str(len(took))
        folder.mkdir()
        took.append(kill_the_middle_one(folder, transport, delay))
    assert min(took) < 0.5


def kill_the_middle_one(folder, transport, delay):
    """Seconds until the last survivor has heard of it."""
    ranks = start_ranks(3, SURVIVOR, str(folder), TEST_TRANSPORT=transport)
    try:
        assert [rank.read_line() for rank in ranks] == ["ready"] * 3
        for rank in ranks:
            rank.process.stdin.write("go\n")
            rank.process.stdin.flush()
        SYSTEM.sleep(delay)
        ranks[1].process.kill()
        killed, last = SYSTEM.monotonic(), 0.0
        for rank in (ranks[0], ranks[2]):
            code, out, err = rank.finish()
            assert code == 0, err
            kind, named, heard, reused = out.split()
            assert (kind, named) == ("PeerLost", "[1]")
            assert int(reused) == channels(transport)
            last = max(last, float(heard) - killed)
        return last
    finally:
        for rank in ranks:
            rank.__exit__()


ACROSS = """
import os, sys
import numpy as np
import resilin
from resilin import dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(init_method=os.environ["METHOD"], rank=rank, world_size=size, timeout=20.0)
group = dist.default_group()
def total():
    tensor = resilin.ones(300_000) * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    values = np.asarray(tensor)
    assert (values == values[0]).all()
    return values[0]
assert total() == 10.0
print("ready", flush=True)
sys.stdin.readline()
try:
    while True:
        total()
except dist.DistError as error:
    named = sorted(getattr(error, "ranks", []))
for generation, ranks in ((1, (0, 2, 3)), (2, (3, 2, 0)), (3, (2, 3))):
    if rank in ranks:
        members = [group.topology.endpoints[peer].describe() for peer in ranks]
        current = (group if generation == 1 else current).reconfigure(generation, members)
        with dist.use_group(current):
            assert total() == {3: 6.0, 2: 3.0}[len(ranks)]
        print(current.stats()["transport"], current.stats()["reused"]["sockets"], flush=True)
print(named, flush=True)
"""


@pytest.mark.multiproc
def test_two_hosts_go_on_without_a_rank_that_was_killed(hosts):
    shared = {"WORLD_SIZE": "4", "METHOD": f"tcp://{hosts[0].address}:29400", "RESILIN_SECRET": SECRET}
    ranks = [RankProcess(ACROSS, {**shared, "RANK": str(rank)}, hosts[rank // 2].enter) for rank in range(4)]
    try:
        for rank in ranks:
            line = rank.read_line()
            assert line == "ready", rank.finish()
        for rank in ranks:
            rank.process.stdin.write("go\n")
            rank.process.stdin.flush()
        ranks[1].process.kill()
        ends = {number: ranks[number].finish() for number in (0, 2, 3)}
        assert all(code == 0 for code, _, _ in ends.values()), ends
        assert ends[0][1] == "shm+stream 4\nshm+stream 4\n[1]\n"
        for number in (2, 3):
            assert ends[number][1] == "shm+stream 4\nshm+stream 4\nshm 1\n[1]\n"
    finally:
        for rank in ranks:
            rank.__exit__()
