"""SIGKILL where parameters, too, are divided among the workers (ZeRO stages 2 and 3): no step and no file is needed.

The result is that of one undisturbed worker with the module itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import extent
import jobs
import pytest
from test_killed_workers import SAMPLES, STEPS, digests, histories

from resilin._base import env
from resilin.elastic import ledger
from resilin.testing.hosts import Host
from resilin.testing.job_secret import SECRET

pytestmark = pytest.mark.multiproc
WORKER = Path(__file__).with_name("sharded_worker.py")


def launch(folder: Path, workers: int, stage: int, *words: str, restarts: int = 9) -> subprocess.CompletedProcess[str]:
    return jobs.launch(WORKER, folder, workers, str(STEPS), f"stage={stage}", *words, restarts=restarts)


@cache
def undisturbed(*words: str) -> str:
    with TemporaryDirectory() as folder:
        jobs.alone(WORKER, Path(folder), str(STEPS), "stage=0", *words)
        return (Path(folder) / "result").read_text()


def check(folder: Path, said: str, *words: str) -> None:
    assert digests(folder) == {undisturbed(*words)}, said
    verdict = ledger.verify(ledger.read(str(folder / "ledger")), SAMPLES, unfinished_last=True)
    assert verdict.ok, str(verdict)
    assert verdict.steps == STEPS


@pytest.mark.parametrize(
    ("stage", "kill"),
    extent.short(
        [
            (3, "in-moved:1:5"),  # the gathering of a unit has done its part
            (3, "at-backward:1:7"),  # units come again, gradients go
            (3, "at-optimizer:1:8"),  # pieces are about to be written
            (3, "at-buddy:0:9"),  # they are written, and about to go to the buddy
            (3, "at-gather:0:10"),  # the buddy has them, not all ranks know
            (2, "at-gather:1:10"),
        ],
        of=[(3, "at-backward:1:7"), (2, "at-gather:1:10")],
    ),
)
def test_a_killed_worker_is_replaced_wherever_it_was_and_the_survivor_keeps_its_process(
    tmp_path: Path, stage: int, kill: str
) -> None:
    outcome = launch(tmp_path, 2, stage, kill)
    assert outcome.returncode == 0, outcome.stderr
    check(tmp_path, outcome.stderr)
    assert (tmp_path / f"killed-{kill.replace(':', '-')}").exists(), "the fault was never reached"
    survivor = max(histories(tmp_path).values(), key=len)
    assert [step for _, _, step in survivor] == list(range(1, STEPS + 1)), "every step once, in one process"


def test_several_kills_one_in_the_recovery_and_one_that_leaves(tmp_path: Path) -> None:
    words = ["after:4", "term:3:3", "at-gather:2:6", "applied:0:9", "at-state:1:9", "at-buddy:0:14"]
    outcome = launch(tmp_path, 4, 3, *words)
    assert outcome.returncode == 0, outcome.stderr
    check(tmp_path, outcome.stderr)
    assert "left (SIGTERM)" in outcome.stderr


@pytest.mark.parametrize(
    ("stage", "kill"),
    extent.short(
        [
            (3, "forward:1:2"),  # in the first shard of a step
            (3, "between:0:4"),  # some shards are summed
            (3, "at-backward:1:5"),
            (2, "in-moved:2:3"),
            (3, "at-gather:2:8"),
            (2, "between:1:6"),  # in the epoch's last step, of which some shards repeat others
        ],
        of=[(2, "between:1:6")],  # stage 3 dies at several places in one job, below
    ),
)
def test_in_fixed_shards_the_bits_are_those_of_ddp_on_one_worker(tmp_path: Path, stage: int, kill: str) -> None:
    """Four shards on three workers, later on two or three: nothing is rounded to make sums exact."""
    outcome = launch(tmp_path, 3, stage, "shards", kill)
    assert outcome.returncode == 0, outcome.stderr
    check(tmp_path, outcome.stderr, "shards")
    assert (tmp_path / f"killed-{kill.replace(':', '-')}").exists(), "the fault was never reached"
    survivor = max(histories(tmp_path).values(), key=len)
    assert [step for _, _, step in survivor] == list(range(1, STEPS + 1)), "every step once, in one process"


def test_in_fixed_shards_workers_may_die_leave_and_come_at_any_step(tmp_path: Path) -> None:
    words = ["after:4", "term:3:3", "at-gather:2:6", "applied:0:9", "at-state:1:9", "between:1:12", "at-buddy:0:14"]
    outcome = launch(tmp_path, 4, 3, "shards", *words)
    assert outcome.returncode == 0, outcome.stderr
    check(tmp_path, outcome.stderr, "shards")
    assert "left (SIGTERM)" in outcome.stderr


@pytest.mark.parametrize("words", extent.short([["buddies"], ["alone"]], of=[["alone"]]))
def test_workers_that_leave_together_hand_over_what_nobody_else_has(tmp_path: Path, words: list[str]) -> None:
    """Ranks 1 and 3 of four are each other's buddies, or nobody has any."""
    outcome = launch(tmp_path, 4, 3, *words, "after:4", "term:1:7", "term:3:7", restarts=0)
    assert outcome.returncode == 0, outcome.stderr
    check(tmp_path, outcome.stderr)
    assert outcome.stderr.count("left (SIGTERM)") == 2, outcome.stderr
    stayed = [steps for steps in histories(tmp_path).values() if steps and steps[-1][2] == STEPS]
    assert len(stayed) == 2, outcome.stderr
    assert all([step for _, _, step in steps] == list(range(1, STEPS + 1)) for steps in stayed)


def test_the_loss_of_a_whole_node_costs_no_step_because_buddies_are_on_the_other(
    hosts: Sequence[Host], tmp_path: Path
) -> None:
    """Two hosts of two workers each; one of them is gone at once, with its agent."""
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", "--nnodes=1:2", "--nproc-per-node=2"]
    command += ["--rdzv-backend=file", f"--rdzv-endpoint={tmp_path / 'meeting'}", "--rdzv-conf=last_call_timeout=20"]
    command += [str(WORKER), str(tmp_path), str(STEPS), "stage=3", "node=7", "after:4"]
    lost = 8  # the step that is done when the node dies, and not committed yet
    settings = env.snapshot({"RESILIN_LEDGER": str(tmp_path / "ledger"), "RESILIN_SECRET": SECRET})
    logs = [tmp_path / f"log{number}" for number in range(2)]
    runs = []
    for host, log in zip(hosts, logs, strict=True):
        whole = [*host.enter, *command[:4], "--local-addr", host.address, *command[4:]]
        with log.open("wb") as stream:
            runs.append(subprocess.Popen(whole, env=settings, stdout=stream, stderr=stream))
    try:
        codes = sorted(run.wait(timeout=60) for run in runs)
    finally:
        for run in runs:
            if run.poll() is None:
                run.kill()
            run.wait()
    said = "\n".join(log.read_text() for log in logs)
    assert codes == [-9, 0], said
    assert (tmp_path / "buddies-elsewhere").exists(), said
    check(tmp_path, said)
    ended = {pid: [step for _, _, step in steps] for pid, steps in histories(tmp_path).items()}
    ended = {pid: steps for pid, steps in ended.items() if steps and steps[-1] == STEPS}
    every = list(range(1, STEPS + 1))
    assert len(ended) == 2, said
    assert every in ended.values(), f"one committed every step: {ended}\n{said}"
    for pid, steps in ended.items():
        # a survivor may have been told the result of the step in which the node was lost, by the other one
        began = [tuple(map(int, line.split())) for line in (tmp_path / f"began-{pid}").read_text().splitlines()]
        assert began[0] == (1, 0), f"one process from the first world on: {began}\n{said}"
        told = [] if lost in steps else [step for generation, step in began if generation == 2 and step == lost]
        assert sorted(steps + told) == every, f"{pid} kept every step: {steps}, {began}\n{said}"
