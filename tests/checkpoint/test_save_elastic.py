"""Whole jobs that end and start again: they go on from the newest checkpoint, with the same bits and a whole ledger."""

import subprocess
import sys
from pathlib import Path

import extent
import pytest

from resilin import checkpoint
from resilin._base import env
from resilin.elastic import ledger

pytestmark = pytest.mark.multiproc
WORKER = Path(__file__).with_name("resumed_worker.py")
STEPS, SAMPLES = 16, 96


def launch(folder, workers, *words):
    folder.mkdir(exist_ok=True)
    command = [Path(sys.executable).with_name("elastic-run"), "--standalone", f"--nproc-per-node={workers}"]
    return subprocess.run(
        [*command, WORKER, folder, str(STEPS), *words],
        env=env.snapshot({"RESILIN_LEDGER": str(folder / "ledger")}),
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def results(folder):
    return {file.read_text() for file in folder.glob("result-*")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What one worker ends with that nobody disturbs."""
    made = {}

    def of(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            done = launch(folder, 1, kind)
            assert done.returncode == 0, done.stderr
            (made[kind],) = results(folder)
        return made[kind]

    return of


@pytest.mark.parametrize(
    ("kind", "before", "after"), extent.short([("plain", 2, 3), ("zero", 3, 2)], of=[("zero", 3, 2)])
)
def test_a_job_that_was_killed_goes_on_in_another_world_with_the_same_bits(tmp_path, undisturbed, kind, before, after):
    killed = launch(tmp_path, before, kind, "KILL:11")
    assert killed.returncode == -9
    latest = checkpoint.latest(tmp_path / "run")
    assert latest is not None
    assert checkpoint.verify(latest) == []
    done = launch(tmp_path, after, kind)
    assert done.returncode == 0, done.stderr
    resumed = {int(file.read_text()) for file in tmp_path.glob("resumed-*")}
    assert resumed == {int(latest.rpartition("-")[2])}
    assert resumed <= {4, 8}
    assert results(tmp_path) == {undisturbed(kind)}
    verdict = ledger.verify(ledger.read(str(tmp_path / "ledger")), SAMPLES, unfinished_last=True)
    assert verdict.ok, str(verdict)
    assert verdict.steps == STEPS


def test_what_is_being_written_when_the_job_is_asked_to_leave_becomes_complete(tmp_path, undisturbed):
    left = launch(tmp_path, 2, "plain", "TERM:8")
    assert left.returncode == 143, left.stderr
    latest = checkpoint.latest(tmp_path / "run")
    step = int(latest.rpartition("-")[2])
    assert step in (8, 12), "or the next one, where the agent takes long to hear of the signal"
    assert checkpoint.verify(latest) == []
    done = launch(tmp_path, 2, "plain")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "resumed-0").read_text() == str(step)
    assert results(tmp_path) == {undisturbed("plain")}
