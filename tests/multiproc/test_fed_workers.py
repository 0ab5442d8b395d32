"""Real processes with loaders that fetch ahead: the end is that of one undisturbed worker, and every sample counted."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import extent
import jobs
import pytest

from resilin.elastic import ledger

pytestmark = pytest.mark.multiproc
WORKER = Path(__file__).with_name("fed_worker.py")
SAMPLES, EPOCHS, STEPS = 45, 4, 16  # those of fed_worker.py


def launch(folder: Path, workers: int, *faults: str, restarts: int = 9) -> subprocess.CompletedProcess[str]:
    """Run the program with `workers` workers under `elastic-run`."""
    return jobs.launch(WORKER, folder, workers, *faults, restarts=restarts)


@cache
def undisturbed() -> str:
    """The digest of one worker that trained alone, without a launcher."""
    with TemporaryDirectory() as folder:
        jobs.alone(WORKER, Path(folder))
        return (Path(folder) / "digest-0").read_text()


def check(folder: Path, outcome: subprocess.CompletedProcess[str]) -> None:
    """What must hold whatever happened."""
    assert outcome.returncode == 0, outcome.stderr
    assert {file.read_text() for file in folder.glob("digest-*")} == {undisturbed()}, outcome.stderr
    verdict = ledger.verify(ledger.read(str(folder / "ledger")))
    assert verdict.ok, str(verdict)
    assert (verdict.steps, dict(verdict.epochs)) == (STEPS, dict.fromkeys(range(EPOCHS), SAMPLES))


@pytest.mark.parametrize("workers", extent.short([2, 4], of=[4]))
def test_without_a_fault_the_bits_are_those_of_one_worker(tmp_path: Path, workers: int) -> None:
    check(tmp_path, launch(tmp_path, workers))


def test_kills_in_every_phase_and_at_the_epochs_border_lose_and_repeat_nothing(tmp_path: Path) -> None:
    faults = ["forward:0:2", "committed:0:4", "applied:0:7"]  # there is always a rank 0, and at least one survivor
    outcome = launch(tmp_path, 4, *(f"{fault}:kill" for fault in faults))
    check(tmp_path, outcome)
    assert len(list(tmp_path.glob("struck-*"))) == len(faults)


def test_a_job_that_was_stopped_wholly_goes_on_from_its_saved_state(tmp_path: Path) -> None:
    for workers, fault in ((2, "reduced:0:2"), (3, "committed:1:4"), (1, "applied:0:7"), (2, "forward:1:12")):
        stopped = launch(tmp_path, workers, f"{fault}:raise", restarts=0)
        assert stopped.returncode != 0
        assert (tmp_path / f"struck-{fault.replace(':', '-')}").exists(), stopped.stderr
        assert not list(tmp_path.glob("digest-*"))
    check(tmp_path, launch(tmp_path, 3))
    generations = {entry.generation for entry in ledger.read(str(tmp_path / "ledger"))}
    assert len(generations) >= 4, "the ledger counts generations on from job to job"
