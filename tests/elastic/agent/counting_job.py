"""A job that counts steps until it is told to stop, on one host or several: for tests of what becomes of its state."""

import contextlib
import os
import re
import signal
import subprocess
import sys

from launches import until

from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S

SCRIPT = """
import os, pathlib, sys, time
import numpy as np
import resilin as rs
from resilin import dist, elastic

folder, name = pathlib.Path(sys.argv[1]), f"{sys.argv[2]}.{os.environ['LOCAL_RANK']}"
time.sleep(60 * (folder / "slow").exists())
model = rs.nn.Linear(4, 4)
# before the state
state = elastic.State(model=model, total=0)

@elastic.run
def train(state):
    while True:
        flag = np.array([float((folder / "hold").exists())])
        dist.all_reduce(flag)
        if not flag[0]:
            return
        time.sleep(0.02)
        # in each step
        with rs.no_grad():
            model.bias += 1.0
        state.total += 1
        state.commit()
        path = folder / f"{name}-{dist.get_world_size()}"
        new = folder / f"{path.name}.new"
        new.write_text(f"{os.getpid()} {state.total}")
        new.replace(path)

train(state)
os.write(1, f"{state.total} {state.fingerprint()}\\n".encode())
"""


class Job:
    """Its nodes. A worker writes `NODE.LOCAL_RANK-SIZE`: its pid and the steps it has committed.

    more: flags of elastic-run. model, before, each: lines of the script instead of those above. script: another one.
    """

    def __init__(
        self, folder, meeting, *more, nodes="1", workers=1, restarts=3, model="", before="", each="", script=SCRIPT
    ):
        self.folder = folder
        self.flags = (f"--nnodes={nodes}", "--rdzv-endpoint", meeting, f"--max-restarts={restarts}", *more)
        self.flags += (f"--nproc-per-node={workers}",)
        self.started = {}
        script = script.replace("rs.nn.Linear(4, 4)", model or "rs.nn.Linear(4, 4)")
        (folder / "train.py").write_text(script.replace("# before the state", before).replace("# in each step", each))
        (folder / "hold").touch()

    def run(self, host, name, *words):
        env = {**os.environ, "RESILIN_SECRET": SECRET}
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            command = [*(host.enter if host is not None else ()), sys.executable, "-m", *map(str, words)]
            self.started[name] = subprocess.Popen(command, stdout=out, stderr=err, env=env, start_new_session=True)

    def store(self, host):
        self.run(host, "store", "resilin.launcher.main", "store", "serve", "--host", host.address, "--port", "29500")

    def node(self, host, name):
        command = ("resilin.launcher.elastic_run", *self.flags, self.folder / "train.py", self.folder, name)
        self.run(host, name, *command)

    def steps(self, name, size, local_rank=0):
        """How many steps a node's worker had committed when it last did in a world of `size`."""
        return self.worker(name, size, local_rank)[1]

    def err(self, name):
        return (self.folder / f"{name}.err").read_text()

    def worker(self, name, size, local_rank=0):
        """(pid, committed steps) of a node's worker when it last committed in a world of `size`."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            pid, steps, *_ = (self.folder / f"{name}.{local_rank}-{size}").read_text().split()
            return int(pid), int(steps)
        return 0, 0

    def rank(self, name, size, local_rank=0):
        """Its rank there, of a script that writes it."""
        return int((self.folder / f"{name}.{local_rank}-{size}").read_text().split()[2])

    def until(self, condition):
        until(
            condition,
            60,
            story=lambda: "\n".join(f"{one.name}: {one.read_text()}" for one in self.folder.glob("*.err")),
        )

    def ends_well(self, *names):
        """All finish, with one state; nobody was killed, and none has lost what its worker said last."""
        (self.folder / "hold").unlink()
        told = "\n".join(self.err(name) for name in names)
        assert [self.started[name].wait(PATIENCE_S) for name in names] == [0] * len(names), told
        ends = {(self.folder / f"{name}.out").read_text() for name in names}
        assert len(ends) == 1, ends
        assert ends != {""}, told
        assert "worker died" not in told, told
        assert set(re.findall(r"(\d+) restarts? used", told)) <= {"0"}, told

    def close(self):
        for one in self.started.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


@contextlib.contextmanager
def jobs(folder):
    """Give what makes a job in `folder`: `make(meeting, ...)`; its processes end with the block."""
    made = []

    def make(meeting, *more, **options):
        made.append(Job(folder, meeting, *more, **options))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.close()
