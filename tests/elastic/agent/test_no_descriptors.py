"""A job whose agent, or what starts its workers, has no file descriptor left when a worker has to be replaced."""

import re
import resource
import sys
from itertools import count
from pathlib import Path

import pytest
from launches import INPLACE

pytestmark = pytest.mark.multiproc


def limit_to(pid, most):
    """Let a process have no descriptor beyond those that it has, or `most`; returns what it might have before."""
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    free = next(number for number in count() if number not in used)  # those above that are in use stay so
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free if most is None else most, before[1]))
    return before[0]


def spawner_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(child) for child in children if Path(f"/proc/{child}/comm").read_text().startswith("resilin-spawn"))


@pytest.mark.parametrize("where", ["agent", "spawner"])
def test_a_replacement_starts_when_there_is_a_descriptor_for_it(launch, steps, where):
    (steps / "hold").touch()
    program = ("--no-python", sys.executable, INPLACE, steps, 10, 0.01, 2)
    one = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 3, "--start-method", "spawn", *program)
    one.until(lambda: "world 1" in one.out)
    pid = one.process.pid if where == "agent" else spawner_of(one.process.pid)
    fewest = limit_to(pid, None)
    (steps / "die-0").write_text("0 SIGKILL")
    one.until(lambda: "no file descriptor is left to start a worker" in one.err)
    assert "ulimit -n" in one.err
    assert one.process.poll() is None
    limit_to(pid, fewest)
    one.until(lambda: re.search(r"world \d+ rank 1/2", one.out.partition("world 2")[2]))
    (steps / "hold").unlink()
    assert one.wait() == 0, one.err
    assert "Traceback" not in one.err
