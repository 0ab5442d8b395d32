"""Hosts of which some cannot connect with others, while all reach the store: nobody is killed, and no state is lost."""

import time

import pytest
from counting_job import jobs

from resilin.testing.hosts import NotPermitted, switched_hosts

pytestmark = pytest.mark.multiproc


@pytest.fixture
def switch(request):
    """Three hosts on a switch, or as many as the test says."""
    try:
        with switched_hosts(getattr(request, "param", 3)) as hosts:
            yield hosts
    except NotPermitted as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")


@pytest.fixture
def job(tmp_path):
    with jobs(tmp_path) as make:
        yield make


def test_a_newcomer_that_cannot_reach_who_has_the_state_waits_and_nothing_is_lost(switch, job):
    one = job(f"{switch[2].address}:29500", nodes="1:2")
    one.store(switch[2])
    one.node(switch[0], "holder")
    one.until(lambda: one.steps("holder", 1) > 3)
    switch[0].cut_from(switch[1])
    pid, before = one.worker("holder", 1)
    one.node(switch[1], "newcomer")
    one.until(lambda: "takes no part for now: it and " in one.err("newcomer"))
    held = one.steps("holder", 1)
    one.until(lambda: one.steps("holder", 1) > held + 20)
    switch[0].meets(switch[1])
    one.until(lambda: one.steps("newcomer", 2) > held + 40 and one.steps("holder", 2) > held + 40)
    assert one.worker("holder", 2)[0] == pid, "the holder's process is another one"
    assert one.steps("holder", 2) > before
    one.ends_well("holder", "newcomer")


RING = """
        if (size := dist.get_world_size()) > 1:
            got = np.zeros(1)
            work = dist.irecv(got, (dist.get_rank() - 1) % size)
            dist.send(flag, (dist.get_rank() + 1) % size)
            work.wait()
"""


@pytest.mark.parametrize(
    "each", [pytest.param("", id="collectives", marks=pytest.mark.deep), pytest.param(RING, id="ring")]
)
def test_of_three_nodes_of_which_two_cannot_connect_two_go_on_and_the_third_waits(switch, job, each):
    """Of messages in a ring each waits for another one, as in a deadlock."""
    one = job(f"{switch[0].address}:29500", nodes="1:3", each=each)
    names = ("first", "second", "third")
    one.node(switch[0], names[0])
    one.node(switch[1], names[1])
    one.node(switch[2], names[2])
    one.until(lambda: all(one.steps(name, 3) > 20 for name in names))
    pids = {name: one.worker(name, 3)[0] for name in names}
    switch[1].cut_from(switch[2])
    one.until(lambda: sum(one.steps(name, 2) > 0 for name in names) == 2)
    kept = [name for name in names if one.steps(name, 2)]
    apart = (set(names) - set(kept)).pop()
    begun = one.steps("first", 2)
    one.until(lambda: one.steps("first", 2) > begun + 100)
    assert kept in (["first", "second"], ["first", "third"])
    assert "takes no part for now: it and " in one.err(apart)
    switch[1].meets(switch[2])
    one.until(lambda: all(one.steps(name, 3) > begun + 100 for name in names))
    assert {name: one.worker(name, 3)[0] for name in names} == pids, "somebody was started again"
    one.ends_well(*names)


DIVIDED = """
import os, pathlib, sys, time
import numpy as np
import resilin as rs
from resilin import dist, elastic, zero

folder, name = pathlib.Path(sys.argv[1]), f"{sys.argv[2]}.{os.environ['LOCAL_RANK']}"
rs.manual_seed(0)
model = zero.shard(rs.nn.Linear(4, 4), stage=3)
optimizer = rs.optim.Adam(model.parameters(), lr=1e-3)
state = elastic.State(model=model, optimizer=optimizer, total=0)

@elastic.run(timeout=5)
def train(state):
    while True:
        flag = np.array([float((folder / "hold").exists())])
        dist.all_reduce(flag)
        if not flag[0]:
            return state.fingerprint()
        time.sleep(0.02)
        optimizer.zero_grad()
        model(rs.ones(2, 4)).sum().backward()
        optimizer.step()
        state.total += 1
        state.commit()
        path = folder / f"{name}-{dist.get_world_size()}"
        new = folder / f"{path.name}.new"
        new.write_text(f"{os.getpid()} {state.total} {elastic.world().rank}")
        new.replace(path)

end = train(state)
os.write(1, f"{state.total} {end}\\n".encode())
"""


@pytest.mark.deep
@pytest.mark.parametrize("switch", [5], indirect=True)
@pytest.mark.parametrize("watchdog", ["off", "1"])
def test_halves_of_which_neither_has_all_of_divided_state_wait_and_go_on_when_one_link_works(switch, job, watchdog):
    """Ranks 0 and 2 are each other's buddies, as 1 and 3 are: a cut between the two pairs leaves each with a half."""
    one = job(f"{switch[4].address}:29500", f"--hang-timeout={watchdog}", nodes="1:4", script=DIVIDED)
    one.store(switch[4])
    names = ("first", "second", "third", "fourth")
    for host, name in zip(switch, names, strict=False):
        one.node(host, name)
    one.until(lambda: all(one.steps(name, 4) > 20 for name in names))
    pids = {name: one.worker(name, 4)[0] for name in names}
    of = {one.rank(name, 4): (name, host) for host, name in zip(switch, names, strict=False)}
    for rank, other in ((0, 1), (0, 3), (2, 1), (2, 3)):
        of[rank][1].cut_from(of[other][1])
    told = "no nodes that all reach one another have the whole divided state: that of ranks "
    one.until(lambda: all(told in one.err(name) for name in names))
    begun = max(one.steps(name, 4) for name in names)
    time.sleep(10)  # the watchdog looks at who stands still, and finds nobody to blame
    small = [path.name for size in (1, 2, 3) for path in one.folder.glob(f"*-{size}")]
    assert not small, f"a world without all of the state has made steps: {small}"
    of[0][1].meets(of[1][1])
    pair = [of[rank][0] for rank in (0, 1)]
    one.until(lambda: all(one.steps(name, 2) > begun + 20 for name in pair))
    for rank, other in ((0, 3), (2, 1), (2, 3)):
        of[rank][1].meets(of[other][1])
    one.until(lambda: all(one.steps(name, 4) > begun + 50 for name in names))
    assert {name: one.worker(name, 4)[0] for name in names} == pids, "somebody was started again"
    one.ends_well(*names)
