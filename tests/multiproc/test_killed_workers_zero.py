"""SIGKILL where the optimizer's state is divided among the workers: no step and no file is needed to go on.

The result is that of one undisturbed worker with the plain optimizer.
"""

from __future__ import annotations

import random
from pathlib import Path

import extent
import pytest
from test_killed_workers import STEPS, check, histories, launch

pytestmark = pytest.mark.multiproc


@pytest.mark.parametrize("workers", extent.short([1, 3], of=[3]))
def test_without_a_fault_the_bits_are_those_of_one_worker_with_the_plain_optimizer(
    tmp_path: Path, workers: int
) -> None:
    check(tmp_path, launch(tmp_path, workers, "zero"))


@pytest.mark.parametrize(
    "kill",
    extent.short(
        [
            "start:1:0",
            "at-optimizer:1:6",  # the own range is about to be written
            "at-buddy:0:7",  # it is written, and about to go to the buddy
            "in-moved:1:8",  # a message or a collective has done its part
            "at-gather:0:9",  # the buddy has it
            "applied:1:10",
            "at-commit:0:11",
            "done:1:24",
        ],
        of=["at-optimizer:1:6", "at-commit:0:11"],  # some more are in one job, below
    ),
)
def test_a_killed_worker_is_replaced_wherever_it_was_and_the_survivor_keeps_its_process(
    tmp_path: Path, kill: str
) -> None:
    outcome = launch(tmp_path, 2, "zero", kill)
    check(tmp_path, outcome)
    assert (tmp_path / f"killed-{kill.replace(':', '-')}").exists(), "the fault was never reached"
    survivor = max(histories(tmp_path).values(), key=len)
    assert [step for _, _, step in survivor] == list(range(1, STEPS + 1)), "every step once, in one process"


def test_several_kills_of_different_ranks_and_one_in_the_recovery(tmp_path: Path) -> None:
    kills = ["at-gather:2:3", "applied:0:6", "at-state:1:6", "committed:1:11", "at-buddy:1:14", "reduced:0:17"]
    outcome = launch(tmp_path, 4, "zero", "after:4", *kills)
    check(tmp_path, outcome)


def test_fewer_and_fewer_workers_and_none_of_them_replaced(tmp_path: Path) -> None:
    outcome = launch(tmp_path, 4, "zero", "after:4", "at-gather:3:5", "at-buddy:1:9", "applied:0:15", restarts=0)
    check(tmp_path, outcome)
    assert len(list(tmp_path.glob("digest-*"))) == 1


def test_a_worker_that_leaves_hands_its_range_over(tmp_path: Path) -> None:
    outcome = launch(tmp_path, 3, "zero", "term:1:9", restarts=0)
    check(tmp_path, outcome)
    assert "rank 1 left (SIGTERM)" in outcome.stderr


def test_a_worker_and_its_buddy_that_leave_together_hand_over_before_they_go(tmp_path: Path) -> None:
    outcome = launch(tmp_path, 4, "zero", "after:4", "term:1:9", "term:3:9", restarts=0)
    check(tmp_path, outcome)
    assert outcome.stderr.count("left (SIGTERM)") == 2


@pytest.mark.deep
def test_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    moments = random.Random(5)
    kills = [f"timer:{rank}:{moments.randrange(1, 100)}" for rank in (0, 1, 2)]
    outcome = launch(tmp_path, 3, "zero", *kills, restarts=20, steps=150)
    check(tmp_path, outcome, steps=150)
    assert len(list(tmp_path.glob("killed-*"))) >= 1, "a fast machine may be done before the last ones"


def test_a_worker_and_its_buddy_lost_at_once_end_the_job_and_the_report_names_them(tmp_path: Path) -> None:
    outcome = launch(tmp_path, 4, "zero", "after:4", "reduced:1:5", "reduced:3:5", restarts=0)
    assert outcome.returncode == 1, outcome.stderr
    assert "ranks [1, 3] of the world of 4 went at once, and with them both copies of what rank" in outcome.stderr
    assert "Load the last checkpoint" in outcome.stderr
