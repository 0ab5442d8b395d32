"""The mpi backend under a real `mpiexec`: all cases of check_group; a dead, a late, an aborting rank; wrong starts."""

import subprocess
import sys
from pathlib import Path

import extent
import pytest

from resilin._base import env
from resilin.testing.check_group import CASES
from resilin.testing.patience import PATIENCE_S

pytest.importorskip("mpi4py", reason="mpi4py and an MPI come with the extra `test`")
MPIEXEC = Path(sys.executable).parent / "mpiexec"
pytestmark = [
    pytest.mark.multiproc,
    pytest.mark.skipif(not MPIEXEC.exists(), reason="the extra `test` brings mpich with its mpiexec on Linux"),
]

CONFORMANCE = """
from resilin import dist
from resilin.testing.check_group import CASES
dist.init_process_group("mpi", timeout=30.0)
assert (dist.get_backend(), dist.default_group().stats()["transport"]) == ("mpi", "mpi")
for name, case in CASES.items():
    case(dist.get_rank(), dist.get_world_size())
    if dist.get_rank() == 0:
        print("passed", name, flush=True)
dist.destroy_process_group()
"""

FAULTS = """
import os, signal, sys, threading
import numpy as np
from resilin import dist
from resilin._base.clock import SYSTEM
mode, limit, folder = sys.argv[1], float(sys.argv[2]), sys.argv[3]
def await_survivors():
    began = SYSTEM.monotonic()
    while len([name for name in os.listdir(folder) if name.isdigit()]) < 2 and SYSTEM.monotonic() - began < limit:
        SYSTEM.sleep(0.01)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by which mpiexec tells all it has started of a death
if mode == "kill" and os.environ["PMI_RANK"] == "1" and (worker := os.fork()):
    # The end of PMI_FD tells mpiexec of the death, as ever. When a child of its own has died it kills the others, too,
    # whatever its flags, and before they have spoken if the machine is busy: so this one dies after they have.
    os.close(int(os.environ["PMI_FD"]))
    os.waitpid(worker, 0)
    await_survivors()
    os._exit(1)
dist.init_process_group("mpi", timeout=40.0)
dist.set_timeout(limit)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # MPI may have a handler of its own
rank, array = dist.get_rank(), np.ones(300_000, np.float32)
dist.all_reduce(array)
began = SYSTEM.monotonic()
try:
    dist.barrier()  # which others may still be in when rank 1 dies
    if rank == 1 and mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and mode == "late":
        dist.recv(array, src=0)
    if rank == 1 and mode == "abort":
        dist.default_group().abort()
    dist.all_reduce(array)
except dist.DistError as error:
    spent = SYSTEM.monotonic() - began
    with open(f"{folder}/{rank}.part", "w") as file:
        file.write(f"{type(error).__name__} {spent < limit / 2} {error}")
    os.replace(f"{folder}/{rank}.part", f"{folder}/{rank}")
    if mode == "kill":
        await_survivors()
        os._exit(0)  # MPI_Finalize may wait for the dead rank for ever
"""

SAME_RANK = """
import os
from resilin import dist
path, rank = os.environ["MEET"], int(os.environ["RANK"])
try:
    dist.init_process_group("mpi", f"file://{path}", rank=rank, world_size=2, timeout=20)
except dist.DistBackendError as error:
    print(error)
"""

IN_ANOTHER_ORDER = """
import os, sys
import numpy as np
from mpi4py import MPI
from resilin import dist
rank = MPI.COMM_WORLD.size - 1 - MPI.COMM_WORLD.rank
dist.init_process_group("mpi", f"file://{sys.argv[1]}", rank=rank, world_size=MPI.COMM_WORLD.size, timeout=20)
rows = np.zeros(dist.get_world_size(), np.int64)
dist.all_gather_into_tensor(rows, np.array([dist.get_rank()]))
assert rows.tolist() == list(range(dist.get_world_size())), rows
part = dist.new_group([2, 0], sort_ranks=False)
if rank != 1:
    both = np.zeros(2, np.int64)
    dist.all_gather_into_tensor(both, np.array([dist.get_rank()]), group=part)
    assert both.tolist() == [2, 0], both
"""


def mpiexec(count, source, *arguments, flags=(), timeout_s=90):
    """Run `source` on `count` ranks: exit code, output, errors."""
    ended = subprocess.run(
        [MPIEXEC, *flags, "-n", str(count), sys.executable, "-c", source, *arguments],
        env=env.snapshot({"RESILIN_SECRET": ""}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("count", extent.short([2, 3, 4], of=[3]))
def test_every_case_passes_between_mpi_processes(count):
    code, out, err = mpiexec(count, CONFORMANCE)
    assert code == 0, out + err
    assert out.count("passed") == len(CASES)


def test_survivors_name_the_dead_rank(tmp_path):
    code, out, err = mpiexec(3, FAULTS, "kill", "20", str(tmp_path), flags=("-disable-auto-cleanup",))
    assert code != 0
    told = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(told) == {"0", "2"}, out + err
    assert all(text.startswith("PeerLost True") and "rank 1 (127.0.0.1:" in text for text in told.values()), told


def test_a_rank_that_does_not_come_is_named_at_the_deadline(tmp_path):
    code, _, err = mpiexec(3, FAULTS, "late", "2", str(tmp_path))
    assert code == 0, err
    told = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(told) == {"0", "1", "2"}
    for rank in "02":
        assert told[rank].startswith("CollectiveTimeout False"), told
        assert "rank 1 did not answer" in told[rank]
        assert "all_reduce #2" in told[rank]


def test_abort_returns_the_others_at_once(tmp_path):
    code, _, err = mpiexec(3, FAULTS, "abort", "20", str(tmp_path))
    assert code == 0, err
    told = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(told) == {"0", "1", "2"}
    assert all(text.startswith("GroupAborted True") for text in told.values()), told


def test_ranks_may_be_numbered_otherwise_than_mpi_numbers_them(tmp_path):
    code, _, err = mpiexec(3, IN_ANOTHER_ORDER, str(tmp_path / "meet"))
    assert code == 0, err


def test_processes_of_no_common_mpi_job_are_told_to_use_mpiexec(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SAME_RANK],
            env=env.snapshot({"MEET": str(tmp_path / "meet"), "RANK": str(rank)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    for out, err in ended:
        assert "are ranks [0, 0] of MPI's world" in out, err
        assert "start them together with mpiexec" in out
