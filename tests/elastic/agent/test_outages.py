"""The store is away for a while and comes back: training goes on meanwhile, and what has to change waits for it.

With OUTAGE_S=60 in the environment the outages are of a minute; otherwise they are as long as it takes to notice them.
"""

import contextlib
import os
import re
import signal
import sys
import time

import extent
import pytest
from launches import INPLACE, resilin, until

from resilin.elastic.chaos import judge
from resilin.elastic.chaos.schedule import Fault, Schedule
from resilin.launcher import chaos
from resilin.launcher.chaos import report
from resilin.launcher.chaos.run import ChaosJob, run_job
from resilin.testing.etcd import EtcdCluster
from resilin.testing.job_secret import SECRET

pytestmark = [pytest.mark.multiproc, pytest.mark.timeout(400)]
OUTAGE_S = float(os.environ.get("OUTAGE_S", "0"))
PATIENT = "lease_ttl=2,read_timeout=200"
PROGRAM = ("--no-python", sys.executable, INPLACE)


def committed(steps):
    with contextlib.suppress(FileNotFoundError):
        return int((steps / "committed").read_text())
    return 0


def trains_on(one, steps, begun):
    """Wait until `one` has noticed that the store is away, the outage is long enough, and training went on in it."""
    one.until(lambda: "does not answer: training goes on" in one.err)
    before = committed(steps)
    one.until(lambda: committed(steps) >= before + 20)
    time.sleep(max(0.0, begun + OUTAGE_S - 1.0 - time.monotonic()))  # the length of it is what this is about
    before = committed(steps)
    one.until(lambda: committed(steps) >= before + 20)


def lose_a_worker(steps, rank):
    (steps / f"die-{committed(steps)}").write_text(f"{rank} SIGKILL")
    until(lambda: not list(steps.glob("die-*")))
    stopped_at = committed(steps)
    time.sleep(1.5)  # nothing is to happen in it
    assert committed(steps) <= stopped_at + 1, "the world cannot have changed"


@pytest.mark.parametrize("how", extent.short(["frozen", "killed"], of=["killed"]))
def test_an_outage_of_all_members_of_etcd_delays_changes_and_nothing_else(launch, steps, how):
    (steps / "hold").touch()
    with EtcdCluster(members=3) as cluster:
        place = ("--rdzv-backend", "etcd", "--rdzv-endpoint", ",".join(cluster.endpoints), "--rdzv-id", "job")
        flags = ("--nnodes", "1:3", "--max-restarts", 1, *place, "--rdzv-conf", PATIENT)
        first, second = (launch(*flags, *PROGRAM, steps, 10, 0.01) for _ in range(2))
        for one in (first, second):
            one.until(lambda one=one: "/2 step" in one.out)
        begun = time.monotonic()
        for member in range(3):
            (cluster.freeze if how == "frozen" else cluster.kill)(member)
        third = launch(*flags, *PROGRAM, steps, 10, 0.01)
        trains_on(first, steps, begun)
        lose_a_worker(steps, rank=1)
        assert "/3" not in first.out
        if how == "frozen":
            for member in range(3):
                cluster.thaw(member)
        else:
            cluster.restart(0, 1, 2)
        lasted = time.monotonic() - begun
        for one in (first, second, third):
            one.until(lambda one=one: "/3 step" in one.out)
        (steps / "hold").unlink()
        assert [one.wait() for one in (first, second, third)] == [0, 0, 0]
    assert lasted >= OUTAGE_S
    (back,) = re.findall(r"the store answers again, after (\d+) s", first.err)
    assert int(back) <= lasted + 2  # counted from when the call was made that failed: a little before
    assert (first.err + second.err).count("worker died: ") == 1


def test_a_frozen_host_of_the_embedded_store_delays_changes_of_the_others_and_nothing_else(launch, steps, free_port):
    (steps / "hold").touch()
    place = ("--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "frozen")
    flags = ("--nnodes", "1:3", "--max-restarts", 1, *place, "--rdzv-conf", PATIENT)
    host = launch(*flags, *PROGRAM, steps, 10, 0.01)
    host.until(lambda: "world 1" in host.out)
    first, second = (launch(*flags, *PROGRAM, steps, 10, 0.01) for _ in range(2))
    first.until(lambda: "/3 step" in first.out)
    assert resilin("drain", "frozen", served_by(host)).returncode == 0
    for one in (first, second):
        one.until(lambda one=one: "/2 step" in one.out)
    ranks = {int(found[-1]): one for one in (first, second) if (found := re.findall(r"rank (\d)/2", one.out))}
    begun = time.monotonic()
    host.signal(signal.SIGSTOP)
    trains_on(first, steps, begun)
    lose_a_worker(steps, rank=1)
    host.signal(signal.SIGCONT)
    ranks[0].until(lambda: ranks[0].out.count("/2 step") >= 2)
    assert time.monotonic() - begun >= OUTAGE_S
    (steps / "hold").unlink()
    assert [one.wait() for one in (first, second, host)] == [0, 0, 0]
    assert (first.err + second.err).count("worker died: ") == 1


def served_by(host):
    """The name of the node whose agent `host` is, which holds its process."""
    told = resilin("status", "frozen")
    names = re.findall(rf"^node (\S+-{host.process.pid}-\S+) ", told.stdout, re.M)
    assert len(names) == 1, f"status ended with {told.returncode}:\n{told.stdout}\n{told.stderr}"
    return names[0]


# ------------------------------------------------------------------------------------------------- clocks

SHIFTED = """
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + 86400
time.time_ns = lambda: _time_ns() + 86400 * 10**9
"""
STEPS = 25
JOB = ("-m", "resilin.testing.chaos_job", "{folder}", "--steps", str(STEPS), "--workers", "2")


def test_a_node_whose_clock_is_a_day_ahead_is_lost_and_found_like_any_other(tmp_path):
    """Python's wall clock of everything on that node, which is all that resilin reads; its monotonic one is right."""
    ahead = tmp_path / "ahead"
    ahead.mkdir()
    (ahead / "sitecustomize.py").write_text(SHIFTED)
    flags = ("--nproc-per-node", "1", "--max-restarts", "5")
    expected = chaos.undisturbed(flags, JOB, 60.0).fingerprint
    place = ("--rdzv-backend", "file", "--rdzv-endpoint", "{folder}/meeting", "--rdzv-conf", "lease_ttl=1")
    log = ("--event-log", "{folder}/events")
    job = ChaosJob(
        command=("--nnodes", "1:2", *flags, *place, *log, *JOB),
        nodes=2,
        enter=((), ("env", f"PYTHONPATH={ahead}")),
        variables=(("RESILIN_SECRET", SECRET),),
    )
    faults = (
        Fault(do="kill", rank=1, at="backward", step=6),
        Fault(do="kill", to="agent", node=1, rank=0, at="collective", step=14, for_s=0.5),
    )
    folder = tmp_path / "run"
    folder.mkdir()
    run = run_job(job, Schedule(faults=faults), folder, 60.0)
    found = judge.judge(run, expected)
    story = "\n".join((*report.lines(found), *run.said))
    assert found.ok, story
    assert found.attributed, story
    assert len(run.fired) == 2, story
    walls = [int(wall) for wall in re.findall(r'"wall": (\d+)', (folder / "events").read_text())]
    assert max(walls) - min(walls) > 86_000, "the clock was not ahead"
