"""Short jobs of real processes under faults: each ends with the bits of one undisturbed worker.

A seed that fails is replayed with

    resilin chaos --seeds SEED --steps 40 -- --standalone --nproc-per-node 2 --max-restarts 5 \
        -m resilin.testing.chaos_job '{folder}' --steps 40 --workers 2
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import extent
import pytest

from resilin.elastic.chaos import judge, schedule
from resilin.elastic.chaos.schedule import Setup
from resilin.launcher import chaos
from resilin.launcher.chaos import report
from resilin.launcher.chaos.run import ChaosJob, run_job

pytestmark = pytest.mark.multiproc
STEPS, WORKERS, LIMIT_S = 40, 2, 90.0
FLAGS = ("--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", "5")
PROGRAM = ("-m", "resilin.testing.chaos_job", "{folder}", "--steps", str(STEPS), "--workers", str(WORKERS))


@pytest.fixture(scope="module")
def undisturbed():
    return chaos.undisturbed(FLAGS, PROGRAM, LIMIT_S)


def test_the_undisturbed_run_tells_which_moments_the_program_has_and_when(undisturbed):
    met = chaos.undisturbed(FLAGS, PROGRAM, LIMIT_S, WORKERS)
    assert (met.fingerprint, met.step) == (undisturbed.fingerprint, STEPS)
    assert met.moments.keys() == {
        "backward",
        "optimizer",
        "commit",
        "ledger",
        "saving",
        "collective",
        "rendezvous",
        "state",
    }
    assert met.moments["commit"] == [STEPS - 3, STEPS - 2, STEPS - 1, STEPS]
    assert 2 < met.moments["saving"][-1] <= STEPS + 1


# a full disk; a worker that leaves after a kill; one whose thread keeps the interpreter; an agent killed
@pytest.mark.parametrize("seed", extent.short(range(30), of=(5, 9, 19, 22)))
def test_a_disturbed_job_ends_with_the_same_bits_and_every_sample_counted_once(undisturbed, seed):
    faults = schedule.draw(seed, Setup(workers=WORKERS, steps=STEPS))
    with TemporaryDirectory() as folder:
        run = run_job(ChaosJob(command=(*FLAGS, *PROGRAM)), faults, Path(folder), LIMIT_S)
    found = judge.judge(run, undisturbed.fingerprint)
    story = "\n".join((*report.lines(found), *run.said))
    assert found.ok, story
    assert found.attributed, story
    assert run.fired, story
