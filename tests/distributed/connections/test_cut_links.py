"""Two hosts whose link is cut under every collective, healed in time, cut for good, or whose peer is frozen."""

import os
import signal
import time

import pytest

from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import RankProcess

KINDS = (
    "barrier",
    "all_reduce small",
    "all_reduce large",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "tree_all_reduce",
    "recv",
)

SCRIPT = """
import os, sys, time
import numpy as np
from resilin import dist
from resilin.distributed.wire import shard_tree, sockets
from resilin.errors import ResilinError
rank, size, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["FOLDER"]
sockets.UNREACHABLE_S = int(os.environ.get("UNREACHABLE", 60))
limit = float(os.environ["LIMIT"])
small, array, rows = np.ones(500, np.float32), np.ones(300_000, np.float32), np.ones((size, 300_000), np.float32)
plan, last = shard_tree.plan(size, size), size - 1
def some(kind):
    lists = list(rows) if rank == last else None
    if kind == "barrier": dist.barrier()
    elif kind == "all_reduce small": dist.all_reduce(small)
    elif kind == "all_reduce large": dist.all_reduce(array)
    elif kind == "broadcast": dist.broadcast(array, src=0)
    elif kind == "reduce": dist.reduce(array, dst=last)
    elif kind == "all_gather": dist.all_gather_into_tensor(rows, array)
    elif kind == "reduce_scatter": dist.reduce_scatter_tensor(array, rows)
    elif kind == "gather": dist.gather(array, lists, dst=last)
    elif kind == "scatter": dist.scatter(array, lists, src=last)
    elif kind == "all_to_all": dist.all_to_all_single(np.empty_like(rows), rows)
    elif kind == "tree_all_reduce":
        dist.tree_all_reduce({shard_tree.Subtree(rank, rank + 1): array}, np.empty_like(array), plan)
    elif kind == "recv": dist.recv(small, src=last) if rank == 0 else dist.send(small, dst=0)
    for each in (small, array, rows): each.fill(1)
while kind := sys.stdin.readline().strip():
    meet = f"file://{folder}/{kind.replace(' ', '-')}"
    dist.init_process_group(init_method=meet, rank=rank, world_size=size, timeout=300.0)
    some(kind)
    dist.barrier()
    dist.set_timeout(limit)
    print("ready", flush=True)
    try:
        for _ in range(int(os.environ.get("CALLS", 10**9))):
            some(kind)
        array.fill(rank + 1)
        dist.all_reduce(array)
        print("fine", (array == size * (size + 1) // 2).all(), flush=True)
    except ResilinError as error:
        print(type(error).__name__, sorted(getattr(error, "ranks", ())), error, sep="|", flush=True)
    dist.destroy_process_group()
"""


def start(hosts, folder, per_host, **more):
    ranks = []
    for rank in range(sum(per_host)):
        host = hosts[0] if rank < per_host[0] else hosts[1]
        own = {"RANK": str(rank), "WORLD_SIZE": str(sum(per_host)), "FOLDER": str(folder), "RESILIN_SECRET": SECRET}
        ranks.append(RankProcess(SCRIPT, {**own, "RESILIN_IFNAME": host.links[0].device, **more}, host.enter))
    return ranks


def begin(ranks, kind):
    for rank in ranks:
        rank.process.stdin.write(f"{kind}\n")
        rank.process.stdin.flush()
    for rank in ranks:
        line = rank.read_line()
        assert line == "ready", (line, rank.finish()[2] if not line else "")


def end(ranks):
    for rank in ranks:
        rank.__exit__()


@pytest.mark.multiproc
@pytest.mark.parametrize(
    "per_host", [pytest.param((1, 1), marks=pytest.mark.deep), (2, 1)], ids=["one rank per host", "two ranks and one"]
)
def test_a_cut_link_is_an_error_that_names_a_rank_behind_it_in_every_collective(hosts, tmp_path, per_host):
    ranks = start(hosts, tmp_path, per_host, LIMIT="1")
    try:
        for kind in KINDS[:-1] if len(ranks) > 2 else KINDS:  # recv: between two ranks
            begin(ranks, kind)
            cut_at = time.monotonic()
            hosts[0].cut()
            lines = [rank.read_line() for rank in ranks]
            took = time.monotonic() - cut_at
            hosts[0].restore()
            assert all(line.split("|")[0] in ("CollectiveTimeout", "PeerLost", "GroupAborted") for line in lines), lines
            for rank, line in enumerate(lines):  # all of them name who is on the other side
                beyond = ("[2]",) if rank < 2 else ("[0]", "[1]", "[0, 1]")
                assert kind == "recv" or sum(per_host) < 3 or line.split("|")[1] in beyond, (kind, lines)
            assert any(line.startswith("CollectiveTimeout|[") and "[]" not in line for line in lines), lines
            assert took < PATIENCE_S, (kind, took)  # without the limit it would be the group's
    finally:
        end(ranks)


@pytest.mark.multiproc
def test_a_link_that_comes_back_in_time_does_no_harm(hosts, tmp_path):
    ranks = start(hosts, tmp_path, (2, 1), LIMIT="200", CALLS="400")
    try:
        begin(ranks, "all_reduce large")
        for _ in range(3):
            hosts[0].cut()
            time.sleep(0.1)  # the fault, not a wait for something
            hosts[0].restore()
            time.sleep(0.1)
        assert [rank.read_line() for rank in ranks] == ["fine True"] * 3
    finally:
        end(ranks)


@pytest.mark.multiproc
def test_a_host_that_is_unreachable_is_noticed_long_before_the_timeout_of_a_call(hosts, tmp_path):
    ranks = start(hosts, tmp_path, (1, 1), LIMIT="600", UNREACHABLE="2")
    try:
        begin(ranks, "recv")
        hosts[0].cut()
        assert ranks[0].read_line().startswith("PeerLost|[1]")
    finally:
        end(ranks)


@pytest.mark.multiproc
def test_a_frozen_rank_of_another_host_is_a_timeout_that_names_it(hosts, tmp_path):
    ranks = start(hosts, tmp_path, (1, 1), LIMIT="0.5")
    try:
        begin(ranks, "all_reduce large")
        os.kill(ranks[1].pid, signal.SIGSTOP)
        assert ranks[0].read_line().startswith("CollectiveTimeout|[1]")
        os.kill(ranks[1].pid, signal.SIGCONT)
        assert ranks[1].read_line().split("|")[0] in ("CollectiveTimeout", "PeerLost", "GroupAborted")
    finally:
        end(ranks)
