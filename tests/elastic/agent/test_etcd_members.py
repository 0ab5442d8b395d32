"""Any member of a cluster of three etcds may be killed at any time: the job does not notice."""

import signal
import sys

import extent
import pytest
from launches import INPLACE

from resilin.testing.etcd import EtcdCluster

pytestmark = pytest.mark.multiproc


@pytest.fixture
def cluster():
    with EtcdCluster(members=3) as three:
        yield three


def committed(steps):
    path = steps / "committed"
    return int(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize("leads", extent.short([True, False], of=[True]))
def test_a_member_killed_during_rendezvous_training_and_recovery_changes_nothing(launch, steps, cluster, leads):
    def kill():
        leader = cluster.leader()
        victim = leader if leads else (leader + 1) % 3
        cluster.kill(victim)
        return victim

    (steps / "hold").touch()
    meeting = ("--rdzv-backend", "etcd", "--rdzv-endpoint", ",".join(cluster.endpoints), "--rdzv-id", "job")
    program = ("--no-python", sys.executable, INPLACE, steps, 10, 0.01)
    first = launch("--nnodes", 2, "--max-restarts", 1, *meeting, *program)
    first.until(lambda: "waiting for 1 more node" in first.err)
    gone = kill()  # during rendezvous
    second = launch("--nnodes", 2, "--max-restarts", 1, *meeting, *program)
    first.until(lambda: "world 1" in first.out)
    second.until(lambda: "world 1" in second.out)

    cluster.restart(gone)
    gone, before = kill(), committed(steps)  # during training
    first.until(lambda: committed(steps) >= before + 20)

    cluster.restart(gone)
    (steps / f"die-{committed(steps)}").write_text("1 SIGKILL")
    gone = kill()  # during recovery
    first.until(lambda: "world 2 rank 0/2" in first.out)
    (steps / "hold").unlink()
    assert [first.wait(), second.wait()] == [0, 0]
    worlds = {line.split()[1] for line in (first.out + second.out).splitlines() if line.startswith("world")}
    assert worlds == {"1", "2"}, "one world, and one with the replacement"
    assert "is gone" not in first.err + second.err


@pytest.mark.deep
def test_without_two_of_three_members_training_goes_on_and_changes_wait(launch, steps, cluster):
    (steps / "hold").touch()
    meeting = ("--rdzv-backend", "etcd", "--rdzv-endpoint", ",".join(cluster.endpoints), "--rdzv-id", "job")
    launched = [
        launch("--nnodes", "1:2", *meeting, "--no-python", sys.executable, INPLACE, steps, 10, 0.01) for _ in range(2)
    ]
    first, second = launched
    for one in launched:
        one.until(lambda one=one: "/2 step" in one.out)
    members = [0, 1]
    for member in members:
        cluster.kill(member)
    before = committed(steps)
    first.until(lambda: "the store" in first.err and "does not answer" in first.err)
    first.until(lambda: committed(steps) >= before + 20)
    second.signal(signal.SIGTERM)
    for member in members:
        cluster.restart(member)
    assert second.wait() == 128 + signal.SIGTERM
    first.until(lambda: "rank 0/1" in first.out)
    (steps / "hold").unlink()
    assert first.wait() == 0
