"""Thirty short jobs of real processes under faults: each ends with the bits of one undisturbed worker.

A seed that fails is replayed with

    resilin chaos --seeds SEED --steps 40 -- --standalone --nproc-per-node 2 --max-restarts 5 \
        -m resilin.testing.chaos_job '{folder}' --steps 40 --workers 2
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from resilin.elastic.chaos import judge, schedule
from resilin.elastic.chaos.schedule import Setup
from resilin.launcher import chaos, chaos_report
from resilin.launcher.chaos_run import Job, run_job

pytestmark = pytest.mark.multiproc
STEPS, WORKERS, LIMIT_S = 40, 2, 90.0
FLAGS = ("--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", "5")
PROGRAM = ("-m", "resilin.testing.chaos_job", "{folder}", "--steps", str(STEPS), "--workers", str(WORKERS))


@pytest.fixture(scope="module")
def undisturbed():
    return chaos.undisturbed(FLAGS, PROGRAM, LIMIT_S)


@pytest.mark.parametrize("seed", range(30))
def test_a_disturbed_job_ends_with_the_same_bits_and_every_sample_counted_once(undisturbed, seed):
    faults = schedule.draw(seed, Setup(workers=WORKERS, steps=STEPS))
    with TemporaryDirectory() as folder:
        run = run_job(Job(command=(*FLAGS, *PROGRAM)), faults, Path(folder), LIMIT_S)
    found = judge.judge(run, undisturbed)
    story = "\n".join((*chaos_report.lines(found), *run.said))
    assert found.ok, story
    assert found.attributed, story
    assert run.fired, story
