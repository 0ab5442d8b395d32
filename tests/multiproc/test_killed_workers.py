"""Real processes, real SIGKILL: survivors keep their process; the result is that of an undisturbed single worker."""

from __future__ import annotations

import random
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import extent
import jobs
import pytest

from resilin.elastic import ledger

pytestmark = pytest.mark.multiproc
WORKER = Path(__file__).with_name("killed_worker.py")
STEPS, SAMPLES, BATCH = 24, 124, 16  # those of killed_worker.py


def launch(
    folder: Path, workers: int, *kills: str, restarts: int = 9, steps: int = STEPS
) -> subprocess.CompletedProcess[str]:
    """Run the program with `workers` workers under `elastic-run`."""
    return jobs.launch(WORKER, folder, workers, str(steps), *kills, restarts=restarts)


@cache
def undisturbed(steps: int = STEPS, *words: str) -> str:
    """Digest of parameters, optimizer, scheduler and sampler after one worker trained alone, without a launcher."""
    with TemporaryDirectory() as folder:
        jobs.alone(WORKER, Path(folder), str(steps), *words)
        return (Path(folder) / "result").read_text()


def histories(folder: Path) -> dict[int, list[tuple[int, int, int]]]:
    """Per pid: (generation, rank, step) of its commits."""
    found = defaultdict(list)
    for file in folder.iterdir():
        if file.name.isdigit():
            found[int(file.name)] = [tuple(map(int, line.split())) for line in file.read_text().splitlines()]
    return found


def digests(folder: Path) -> set[str]:
    """What the ranks of the last generation ended with."""
    return {file.read_text() for file in folder.glob("digest-*")}


def check(folder: Path, outcome: subprocess.CompletedProcess[str], steps: int = STEPS) -> None:
    """What must hold whatever happened."""
    assert outcome.returncode == 0, outcome.stderr
    assert digests(folder) == {undisturbed(steps)}, outcome.stderr
    verdict = ledger.verify(ledger.read(str(folder / "ledger")), SAMPLES, unfinished_last=True)
    assert verdict.ok, str(verdict)
    assert verdict.steps == steps


@pytest.mark.parametrize("workers", extent.short([1, 3], of=[3]))
def test_without_a_fault_the_bits_are_those_of_one_worker(tmp_path: Path, workers: int) -> None:
    check(tmp_path, launch(tmp_path, workers))


@pytest.mark.parametrize(
    "kill",
    extent.short(
        ["start:1:0", "forward:0:5", "backward:1:6", "reduced:1:7", "applied:0:8", "committed:1:9", "done:1:24"],
        of=["start:1:0", "backward:1:6"],  # some more are in one job, below
    ),
)
def test_a_killed_worker_is_replaced_and_the_survivor_keeps_its_process(tmp_path: Path, kill: str) -> None:
    outcome = launch(tmp_path, 2, kill)
    check(tmp_path, outcome)
    assert (tmp_path / f"killed-{kill.replace(':', '-')}").exists(), "the fault was never reached"
    commits = histories(tmp_path)
    survivor = max(commits.values(), key=len)
    steps = [step for _, _, step in survivor]
    assert steps == list(range(1, STEPS + 1)), "the survivor committed every step once, in one process"


@pytest.mark.parametrize(
    "kill",
    extent.short(
        ["forward:0:5", "backward:1:6", "reduced:0:7", "applied:0:8", "committed:1:9", "in-agreed:1:10", "zero"],
        of=["backward:1:6", "zero"],
    ),
)
def test_a_worker_killed_in_a_step_on_a_device_is_replaced_and_the_bits_stay(tmp_path: Path, kill: str) -> None:
    words = ("device", "zero") if kill == "zero" else ("device",)
    kill = "applied:0:8" if kill == "zero" else kill
    outcome = launch(tmp_path, 2, *words, kill)
    assert outcome.returncode == 0, outcome.stderr
    assert digests(tmp_path) == {undisturbed(STEPS, *words)}, outcome.stderr
    assert (tmp_path / f"killed-{kill.replace(':', '-')}").exists(), "the fault was never reached"
    survivor = max(histories(tmp_path).values(), key=len)
    assert [step for _, _, step in survivor] == list(range(1, STEPS + 1)), "it kept its process and every step"


@pytest.mark.parametrize("stop", extent.short(["backward:1:6", "applied:0:8"], of=["applied:0:8"]))
def test_a_frozen_worker_is_killed_and_replaced_and_the_survivor_keeps_its_process(tmp_path: Path, stop: str) -> None:
    outcome = launch(tmp_path, 2, "freeze", stop)
    check(tmp_path, outcome)
    assert (tmp_path / f"killed-{stop.replace(':', '-')}").exists(), "the fault was never reached"
    assert "did not answer" in outcome.stderr
    survivor = max(histories(tmp_path).values(), key=len)
    assert [step for _, _, step in survivor] == list(range(1, STEPS + 1))


def test_several_kills_of_different_ranks_in_one_job(tmp_path: Path) -> None:
    # far from one another: also on a busy machine somebody has taken the place of the one before
    kills = ["backward:2:3", "applied:0:150", "committed:1:400", "forward:1:400", "reduced:0:550"]
    outcome = launch(tmp_path, 3, *kills, steps=580)
    check(tmp_path, outcome, steps=580)
    assert all((tmp_path / f"killed-{kill.replace(':', '-')}").exists() for kill in kills)


def test_the_loss_of_every_worker_but_one_is_survived(tmp_path: Path) -> None:
    outcome = launch(tmp_path, 3, "forward:1:7", "forward:2:7")
    check(tmp_path, outcome)


def test_a_worker_that_gets_sigterm_commits_its_step_and_leaves_without_a_failure(tmp_path: Path) -> None:
    outcome = launch(tmp_path, 3, "term:1:9", restarts=0)
    check(tmp_path, outcome)
    commits = {max(steps)[2]: steps for steps in histories(tmp_path).values()}
    assert commits.keys() == {10, STEPS}, "one process left with its step committed, the others trained to the end"
    assert "failed" not in outcome.stderr
    assert "rank 1 left (SIGTERM)" in outcome.stderr


def test_workers_beyond_the_shards_stand_by_and_take_over_when_a_member_dies(tmp_path: Path) -> None:
    outcome = launch(tmp_path, 6, "forward:1:8", "after:6", restarts=0, steps=100)
    check(tmp_path, outcome, 100)
    commits = [steps for steps in histories(tmp_path).values() if steps]
    assert {steps[-1][1] for steps in commits if steps[-1][2] == 100} == {0, 1, 2, 3}
    assert sorted(map(len, commits))[0] == 8, "the killed worker"
    assert len(commits) == 5, "of two that stood by, one was needed"
    assert len(list(tmp_path.glob("digest-*"))) == 4, "a worker that was not needed runs nothing after training"


def test_in_plain_mode_all_ranks_end_equal_and_every_sample_counts_once(tmp_path: Path) -> None:
    steps = 1500  # enough for the last replacement to join
    outcome = launch(tmp_path, 2, "plain", "backward:1:5", "reduced:0:11", "committed:1:17", steps=steps)
    assert outcome.returncode == 0, outcome.stderr
    assert len(list(tmp_path.glob("digest-*"))) == 2, "the last replacement trained to the end, too"
    assert len(digests(tmp_path)) == 1
    entries = ledger.read(str(tmp_path / "ledger"))
    verdict = ledger.verify(entries, SAMPLES - SAMPLES % BATCH, unfinished_last=True)
    assert verdict.ok, str(verdict)
    assert verdict.steps == steps
    assert max(entry.generation for entry in entries) >= 4, "three kills, at least three more generations"


@pytest.mark.deep
def test_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    moments = random.Random(4)
    kills = [f"timer:{rank}:{moments.randrange(1, 150)}" for rank in (0, 1, 2, 0, 1)]
    outcome = launch(tmp_path, 3, *kills, restarts=20, steps=300)
    check(tmp_path, outcome, steps=300)
    assert len(list(tmp_path.glob("killed-*"))) >= 2, "a fast machine may be done before the last ones"
