"""Two hosts whose link is cut while the state goes from one to the other: who has it goes on, who lacks it joins again.

Both stop in the middle of the transfer until the link is cut, so it is cut there and nowhere else: what is on its way
already would arrive from the kernels' buffers, which may hold all of it.
"""

import pytest
from counting_job import jobs

pytestmark = pytest.mark.multiproc

LARGE = "rs.nn.Linear(2048, 4096)"  # several pieces
STOP_ONCE = """
from resilin._base import fault_points
reached = 0

def stop_once(moment):
    global reached
    reached += moment == "state"
    if reached == 2 and not (folder / "cut").exists():
        if name.startswith("newcomer"):
            (folder / "half-way").touch()
        while not (folder / "cut").exists():
            time.sleep(0.01)

fault_points.listen(stop_once)
"""


@pytest.fixture
def job(hosts, tmp_path):
    with jobs(tmp_path) as make:
        flags = ("--rdzv-conf", "lease_ttl=2")
        yield lambda meeting: make(meeting, *flags, nodes="1:2", restarts=2, model=LARGE, before=STOP_ONCE)


def cut_half_way(job, hosts):
    """Train on the first host, and cut the link when a part of the state has come to the second."""
    job.node(hosts[0], "first")
    job.until(lambda: job.steps("first", 1) > 3)
    job.node(hosts[1], "newcomer")
    job.until((job.folder / "half-way").exists)
    hosts[1].cut()
    (job.folder / "cut").touch()


def test_who_has_the_state_goes_on_and_the_newcomer_joins_again_when_the_link_is_back(hosts, job):
    one = job(f"{hosts[0].address}:29500")
    cut_half_way(one, hosts)
    before = one.steps("first", 1)
    one.until(lambda: one.steps("first", 1) > before + 20)
    hosts[1].restore()
    one.until(lambda: one.steps("newcomer", 2) > before + 40)
    one.ends_well("first", "newcomer")


def test_a_newcomer_that_is_left_alone_with_the_store_begins_anew_and_says_so(hosts, job):
    one = job(f"{hosts[1].address}:29500")
    one.store(hosts[1])
    cut_half_way(one, hosts)
    one.until(lambda: one.steps("newcomer", 1) > 3)
    hosts[1].restore()
    one.until(lambda: one.steps("newcomer", 2) > 20)
    one.ends_well("first", "newcomer")
    assert "training begins at step 1: node" in one.err("newcomer"), one.err("newcomer")


def test_a_cut_that_is_shorter_than_the_lease_changes_nothing(hosts, job):
    one = job(f"{hosts[0].address}:29500")
    cut_half_way(one, hosts)
    hosts[1].restore()
    one.until(lambda: one.steps("newcomer", 2) > 20)
    one.ends_well("first", "newcomer")
