"""Two hosts: two network namespaces joined by a veth pair, two ranks in each."""

import extent
import pytest

from resilin.testing.job_secret import SECRET
from resilin.testing.ranks import RankProcess

SCRIPT = """
import itertools, os, sys
import numpy as np
from resilin import dist
from resilin.testing.check_group import CASES
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(init_method=os.environ["METHOD"], rank=rank, world_size=size, timeout=20.0)
for case in CASES.values():
    case(rank, size)
print(dist.default_group().stats()["transport"], flush=True)
sys.stdin.readline()
dist.set_timeout(0.5)
try:
    for call in itertools.count():
        dist.all_reduce(np.ones(100_000))
        if call == 3:
            print("busy", flush=True)
except dist.DistError as error:
    print(type(error).__name__, error, flush=True)
"""


@pytest.mark.multiproc
@pytest.mark.parametrize("first", extent.short([2, 3], of=[3]), ids=["two and two", "three and one"])
def test_ranks_on_two_hosts_pass_every_case_and_notice_a_cut_link(hosts, first):
    shared = {"WORLD_SIZE": "4", "METHOD": f"tcp://{hosts[0].address}:29400", "RESILIN_SECRET": SECRET}
    ranks = [RankProcess(SCRIPT, {**shared, "RANK": str(rank)}, hosts[rank >= first].enter) for rank in range(4)]
    try:
        for rank in ranks:
            line = rank.read_line()
            assert line == "shm+stream", rank.finish()
        for rank in ranks:
            rank.process.stdin.write("go\n")
            rank.process.stdin.flush()
        assert [rank.read_line() for rank in ranks] == ["busy"] * 4
        hosts[0].cut()
        assert all(rank.read_line().startswith(("CollectiveTimeout", "PeerLost", "GroupAborted")) for rank in ranks)
    finally:
        for rank in ranks:
            rank.__exit__()


@pytest.mark.multiproc
def test_without_a_secret_nothing_is_sent_to_another_host(hosts):
    shared = {"WORLD_SIZE": "4", "METHOD": f"tcp://{hosts[0].address}:29400", "RANK": "0", "RESILIN_SECRET": ""}
    with RankProcess(SCRIPT, shared, hosts[0].enter) as rank:
        code, _, err = rank.finish()
        assert code == 1
        assert "SecretRequired" in err
        assert "set RESILIN_SECRET" in err
