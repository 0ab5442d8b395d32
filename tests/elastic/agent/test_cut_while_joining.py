"""Two hosts whose link is cut while the state goes from one to the other: who has it goes on, who lacks it joins again.

The newcomer stops in the middle of the transfer until the link is cut, so it is cut there and nowhere else.
"""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from launches import until

from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc

SCRIPT = """
import os, pathlib, sys, time
import numpy as np
import resilin as rs
from resilin import dist, elastic
from resilin._base import moments

folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
model = rs.nn.Linear(2048, 4096)  # several pieces
reached = 0

def stop_once(moment):
    global reached
    reached += moment == "state"
    if name == "newcomer" and reached == 2 and not (folder / "cut").exists():
        (folder / "half-way").touch()
        while not (folder / "cut").exists():
            time.sleep(0.01)

moments.listen(stop_once)
state = elastic.State(model=model, total=0)

@elastic.run
def train(state):
    while True:
        flag = np.array([float((folder / "hold").exists())])
        dist.all_reduce(flag)
        if not flag[0]:
            return
        time.sleep(0.02)
        with rs.no_grad():
            model.bias += 1.0
        state.total += 1
        state.commit()
        (folder / f"{name}-{dist.get_world_size()}").write_text(str(state.total))

train(state)
os.write(1, f"{state.total} {state.fingerprint()}\\n".encode())
"""


class Job:
    """Its nodes on two hosts, which meet at `meeting`."""

    def __init__(self, folder, meeting):
        self.folder, self.meeting = folder, meeting
        self.started = []
        (folder / "train.py").write_text(SCRIPT)
        (folder / "hold").touch()

    def run(self, host, name, *words):
        """Start `resilin.launcher.<words>` on a host; its output is in files."""
        env = {**os.environ, "RESILIN_SECRET": "word"}
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            command = [*host.enter, sys.executable, "-m", *words]
            self.started.append(subprocess.Popen(command, stdout=out, stderr=err, env=env, start_new_session=True))
        return self.started[-1]

    def node(self, host, name):
        """Start a node of the job."""
        flags = (
            "--nnodes",
            "1:2",
            "--rdzv-endpoint",
            self.meeting,
            "--rdzv-conf",
            "lease_ttl=2",
            "--max-restarts",
            "2",
        )
        return self.run(host, name, "resilin.launcher.elastic_run", *flags, self.folder / "train.py", self.folder, name)

    def err(self, name):
        """What a process has said so far."""
        return (self.folder / f"{name}.err").read_text()

    def steps(self, name, size):
        """How many steps a node's worker has committed, when it last did in a world of `size`."""
        path = self.folder / f"{name}-{size}"
        return int(path.read_text() or 0) if path.exists() else 0

    def until(self, condition):
        """Wait for it."""
        until(condition, story=lambda: "\n".join(f"{one.name}: {one.read_text()}" for one in self.folder.glob("*.err")))

    def end(self, *nodes):
        """Let all nodes finish: they do, with one state."""
        (self.folder / "hold").unlink()
        assert [one.wait(PATIENCE_S) for one in nodes] == [0, 0], self.err("first") + self.err("newcomer")
        ends = [(self.folder / f"{name}.out").read_text() for name in ("first", "newcomer")]
        assert ends[0] == ends[1] != ""
        assert "worker died" not in self.err("first") + self.err("newcomer")


@pytest.fixture
def job(hosts, tmp_path):
    """`job(meeting)` makes one; its processes end with the test."""
    made = []

    def make(meeting):
        made.append(Job(tmp_path, meeting))
        return made[-1]

    yield make
    for one in (process for each in made for process in each.started):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


def cut_half_way(job, hosts):
    """Train on the first host, and cut the link when half of the state has come to the second; the processes."""
    first = job.node(hosts[0], "first")
    job.until(lambda: job.steps("first", 1) > 3)
    newcomer = job.node(hosts[1], "newcomer")
    job.until((job.folder / "half-way").exists)
    hosts[1].cut()
    (job.folder / "cut").touch()
    return first, newcomer


def test_who_has_the_state_goes_on_and_the_newcomer_joins_again_when_the_link_is_back(hosts, job):
    one = job(f"{hosts[0].address}:29500")
    first, newcomer = cut_half_way(one, hosts)
    before = one.steps("first", 1)
    one.until(lambda: one.steps("first", 1) > before + 20)
    hosts[1].restore()
    one.until(lambda: one.steps("newcomer", 2) > before + 40)
    one.end(first, newcomer)


def test_a_newcomer_that_is_left_alone_with_the_store_begins_anew_and_says_so(hosts, job):
    one = job(f"{hosts[1].address}:29500")
    words = ("resilin.launcher.main", "store", "serve", "--host", hosts[1].address, "--port", "29500")
    one.run(hosts[1], "store", *words)
    first, newcomer = cut_half_way(one, hosts)
    one.until(lambda: one.steps("newcomer", 1) > 3)
    hosts[1].restore()
    one.until(lambda: one.steps("newcomer", 2) > 20)
    one.end(first, newcomer)
    assert "training begins at step 1: node" in one.err("newcomer")


def test_a_cut_that_is_shorter_than_the_lease_changes_nothing(hosts, job):
    one = job(f"{hosts[0].address}:29500")
    first, newcomer = cut_half_way(one, hosts)
    hosts[1].restore()
    one.until(lambda: one.steps("newcomer", 2) > 20)
    one.end(first, newcomer)
