"""SIGTERM to agents, at every moment of a job: whoever is asked leaves, and no work is lost or done twice.

Two nodes of one worker each meet in a folder, so that no node serves the store to the other.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import extent
import pytest
from test_killed_workers import SAMPLES, STEPS, WORKER, digests, histories, undisturbed

from resilin._base import env
from resilin.elastic import ledger
from resilin.elastic.records import Keys
from resilin.store.connect import connect

pytestmark = pytest.mark.multiproc
TIMEOUT_S = 60
TERMED, KILLED, INTERRUPTED = 143, 137, 7

# site:rank:step, see killed_worker.py
ONE = [
    "at-state:0:0",  # the first state is being handed over, by the one that leaves
    "at-state:1:0",
    "start:1:0",
    "backward:1:6",
    "in-agreed:1:7",  # inside a collective
    "in-data:0:7",
    "at-optimizer:0:8",
    "applied:1:9",
    "at-ledger:1:10",
    "committed:0:11",
    "done:0:24",  # the job is ending
]
ALL = ["start:1:0", "in-data:1:6", "applied:0:8", "at-ledger:1:9"]


class Nodes:
    """Two `elastic-run` of one job."""

    def __init__(self, folder: Path, *words: str, steps: int = STEPS, grace_s: float = 30) -> None:
        self.folder = folder
        self.logs = [folder / f"log{number}" for number in range(2)]
        command = [Path(sys.executable).with_name("elastic-run"), "--nnodes=1:2", "--max-restarts=3", "--rdzv-id=job"]
        command += ["--rdzv-backend=file", f"--rdzv-endpoint={folder / 'meeting'}"]
        command += ["--rdzv-conf=last_call_timeout=10", f"--shutdown-timeout={grace_s}", WORKER, folder, str(steps)]
        settings = env.snapshot({"RESILIN_LEDGER": str(folder / "ledger")})
        self.processes = []
        for log in self.logs:
            with log.open("wb") as stream:
                self.processes.append(subprocess.Popen([*command, *words], env=settings, stdout=stream, stderr=stream))

    @property
    def said(self) -> str:
        return "\n".join(log.read_text() for log in self.logs)

    def wait(self) -> list[int]:
        """The exit codes, the lower one first."""
        end = time.monotonic() + TIMEOUT_S
        return sorted(process.wait(max(0.1, end - time.monotonic())) for process in self.processes)

    def commits(self) -> dict[int, list[int]]:
        """By process: the steps that it committed."""
        return {pid: [step for _, _, step in lines] for pid, lines in histories(self.folder).items() if lines}

    def check_work(self, steps: int) -> None:
        """No step was lost, none was applied twice by a process, and each sample counted once."""
        for committed in self.commits().values():
            assert committed == list(range(committed[0], committed[-1] + 1)), self.said
        verdict = ledger.verify(ledger.read(str(self.folder / "ledger")), SAMPLES, unfinished_last=True)
        assert verdict.ok, str(verdict)
        assert verdict.steps == steps

    def check_result(self) -> None:
        self.check_work(STEPS)
        assert digests(self.folder) == {undisturbed()}, self.said


@contextmanager
def running(folder: Path, *words: str, **options: float) -> Iterator[Nodes]:
    nodes = Nodes(folder, *words, **options)
    try:
        yield nodes
    finally:
        for process in nodes.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.mark.parametrize("where", extent.short(ONE, of=("at-state:0:0", "in-agreed:1:7")))
def test_a_node_that_is_asked_to_go_costs_no_work_at_any_moment(tmp_path: Path, where: str) -> None:
    with running(tmp_path, "preempt:one", "after:2", where) as nodes:
        codes = nodes.wait()
        assert (tmp_path / f"killed-{where.replace(':', '-')}").exists(), nodes.said
        assert codes in ([0, TERMED], [0, 0]), nodes.said  # [0, 0]: training was over before it could go
        assert codes[1] == TERMED or where.endswith(f":{STEPS}"), nodes.said
        nodes.check_result()
        assert "failed" not in nodes.said
        assert max(len(steps) for steps in nodes.commits().values()) == STEPS, "the one that stays repeats no step"


@pytest.mark.parametrize("where", extent.short(ALL, of=("start:1:0", "applied:0:8")))
def test_when_all_nodes_are_asked_to_go_every_step_that_was_begun_counts_once(tmp_path: Path, where: str) -> None:
    with running(tmp_path, "preempt:all", "after:2", where) as nodes:
        codes = nodes.wait()
        assert set(codes) <= {TERMED, INTERRUPTED}, nodes.said
        last = [steps[-1] for steps in nodes.commits().values()]
        assert len(set(last)) <= 1, "all leave at the same step"
        nodes.check_work(last[0] if last else 0)


def test_a_node_that_is_asked_to_go_while_it_waits_for_others_goes(tmp_path: Path) -> None:
    with running(tmp_path, "preempt:one") as nodes:
        nodes.processes[1].terminate()  # at some moment of its start
        assert nodes.wait() == [0, TERMED] or nodes.processes[1].returncode == -15
        nodes.check_result()


def test_a_node_that_is_asked_to_go_while_its_worker_starts_goes(tmp_path: Path) -> None:
    with running(tmp_path, "preempt:one") as nodes:
        agreed = threading.Event()
        heard = lambda events: agreed.set()  # noqa: E731
        with connect(f"file://{tmp_path / 'meeting'}") as store, store.watch(Keys("job").generation, heard, 1):
            assert agreed.wait(TIMEOUT_S), nodes.said
        nodes.processes[1].terminate()
        assert nodes.wait() == [0, TERMED], nodes.said
        nodes.check_result()


@pytest.mark.parametrize("where", extent.short(["loss:0:6", "loss:1:6"], of=["loss:0:6"]))
def test_a_node_that_is_asked_to_go_while_another_one_recovers_costs_no_work(tmp_path: Path, where: str) -> None:
    with running(tmp_path, "preempt:one", "after:2", where, "start:0:6") as nodes:  # the survivor has rank 0 then
        codes = nodes.wait()
        assert codes in ([0, TERMED], [0, 0]), nodes.said  # it stays until it has handed its state over
        nodes.check_result()


def test_a_second_sigterm_kills_the_workers_and_the_step_is_not_counted(tmp_path: Path) -> None:
    with running(tmp_path, "preempt:one:twice", "after:2", "backward:1:6") as nodes:
        assert nodes.wait() == [0, TERMED], nodes.said
        assert "SIGTERM again: killing the workers" in nodes.said
        nodes.check_result()


def test_the_end_of_the_grace_period_kills_and_what_was_committed_stays(tmp_path: Path) -> None:
    with running(tmp_path, "preempt:one", "after:2", "backward:1:6", grace_s=0) as nodes:
        assert nodes.wait() == [0, TERMED], nodes.said
        nodes.check_result()
