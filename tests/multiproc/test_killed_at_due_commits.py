"""Real processes in the short loop, killed and asked to leave at commits: no checkpoint that is due is skipped."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import extent
import jobs
import pytest

from resilin import checkpoint
from resilin.elastic import ledger

pytestmark = pytest.mark.multiproc
WORKER = Path(__file__).with_name("due_worker.py")
SAMPLES, EPOCHS, STEPS, EVERY = 45, 4, 16, 4  # those of due_worker.py


@cache
def undisturbed(stage: int) -> str:
    """The digest of one worker that trained alone, without a launcher."""
    with TemporaryDirectory() as folder:
        jobs.alone(WORKER, Path(folder), str(stage))
        return (Path(folder) / "digest-0").read_text()


def done(folder: Path) -> dict[int, Counter[int]]:
    """By due commit: in which generations all ranks of the world did the work, and in which only some of them."""
    found: dict[int, Counter[int]] = {}
    for mark in folder.glob("due-*"):
        step, generation, _, size = map(int, mark.name.removeprefix("due-").split("-"))
        found.setdefault(step, Counter())[generation] += 1
        assert size >= found[step][generation]
    return found


def check(folder: Path, stage: int, outcome: subprocess.CompletedProcess[str]) -> None:
    """What must hold whatever happened."""
    assert outcome.returncode == 0, outcome.stderr
    assert {file.read_text() for file in folder.glob("digest-*")} == {undisturbed(stage)}, outcome.stderr
    verdict = ledger.verify(ledger.read(str(folder / "ledger")))
    assert verdict.ok, str(verdict)
    assert (verdict.steps, dict(verdict.epochs)) == (STEPS, dict.fromkeys(range(EPOCHS), SAMPLES))
    assert sorted(done(folder)) == list(range(EVERY, STEPS + 1, EVERY)), outcome.stderr
    for step in range(EVERY, STEPS + 1, EVERY):
        assert checkpoint.verify(folder / "saved", step=step) == [], outcome.stderr


@pytest.mark.parametrize("stage", extent.short([0, 2, 3], of=[3]))
def test_kills_at_the_commit_skip_no_checkpoint_that_is_due_and_lose_no_sample(tmp_path: Path, stage: int) -> None:
    faults = ["forward:0:2:kill", "due:0:4:kill", "saving:1:8:kill", "applied:0:11:kill"]
    outcome = jobs.launch(WORKER, tmp_path, 3, str(stage), *faults)
    check(tmp_path, stage, outcome)
    assert len(list(tmp_path.glob("struck-*"))) == len(faults), outcome.stderr


def test_a_worker_that_leaves_at_the_commit_does_its_part_first_and_nobody_does_it_twice(tmp_path: Path) -> None:
    outcome = jobs.launch(WORKER, tmp_path, 3, "0", "due:1:4:leave", "saving:0:8:leave")
    check(tmp_path, 0, outcome)
    assert len(re.findall("leaves|left", outcome.stderr)) >= 2, outcome.stderr
    for step, generations in done(tmp_path).items():
        assert len(generations) == 1, f"commit {step}: {generations}"
