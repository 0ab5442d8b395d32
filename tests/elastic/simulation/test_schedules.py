"""Ten thousand jobs under faults, in simulated time. A failing seed replays: `python -m resilin.testing.simulation`."""

import logging

import pytest

from resilin.testing import simulation

SCHEDULES = 10_000
CHUNK = 250  # a few seconds each, so that they spread over the cores


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("resilin")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_every_invariant_holds_in_every_schedule(first):
    broken = {}
    for seed in range(first, first + CHUNK):
        result = simulation.run(seed)
        if result.broken:
            broken[seed] = result.broken
    assert not broken, "replay with: python -m resilin.testing.simulation --trace --seed N"


def test_a_seed_replays_exactly():
    first, again = simulation.run(60616, trace=True), simulation.run(60616, trace=True)
    assert first == again
    assert first.generations > 1
    assert len(first.story) > 20


def test_a_trace_changes_nothing():
    told, silent = simulation.run(60616, trace=True), simulation.run(60616)
    assert (told.events, told.seconds, told.outcome) == (silent.events, silent.seconds, silent.outcome)


def test_schedules_see_faults_of_every_kind_and_jobs_of_every_end():
    results = [simulation.run(seed) for seed in range(150)]
    faults = {name for result in results for name in result.faults}
    assert faults == set(simulation.FAULTS)
    assert sum(result.outcome == "all workers are done" for result in results) > 100
    assert any("restarts are used" in result.outcome for result in results)
    assert sum(result.generations for result in results) > 300
    assert sum(result.steps for result in results) > 500
