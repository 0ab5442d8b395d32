"""Ten thousand jobs under faults, in simulated time; a short run plays the first of them.

A failing seed replays: `python -m resilin.testing.simulation`.
"""

import functools
import logging

import extent
import pytest

from resilin.testing import simulation

SCHEDULES, FIRST = 10_000, 200
CHUNK = 25  # a few seconds each, so that they spread over the cores


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("resilin")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@functools.cache
def told(seed):
    """What people are told of a schedule, played once for all tests here."""
    return simulation.run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", extent.short(range(0, SCHEDULES, CHUNK), of=range(0, FIRST, CHUNK)))
def test_every_invariant_holds_in_every_schedule(first):
    broken = {}
    for seed in range(first, first + CHUNK):
        if told(seed).broken:
            broken[seed] = told(seed).broken
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
    results = [told(seed) for seed in range(150)]
    faults = {name for result in results for name in result.faults}
    assert faults == set(simulation.FAULTS)
    assert sum(result.outcome == "all workers are done" for result in results) > 100
    assert any("restarts are used" in result.outcome for result in results)
    assert sum(result.generations for result in results) > 300
    assert sum(result.steps for result in results) > 500


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("any", 7669),  # a node whose workers were all asked to leave kept its place
        ("any", 8744),
        ("any", 1061),  # a worker that was done and had left counted as one that waits for the next world
        ("any", 5382),
        ("any", 7214),
        ("any", 2945),  # a node outside of the world, whose workers had left, was invited instead of one that came
        ("any", 4042),
        ("any", 4428),
        ("any", 9476),
        ("any", 2331),  # a watch that could not be begun again while the store was away was never begun
        ("leavers", 479),  # a worker that was asked to leave once more, when it might already, waited for an answer
        ("halves", 586),  # a world that was formed once more and then trained counted as one that had not helped
        ("halves", 1196),
        ("leavers", 1158),  # a worker that was asked to leave once more, when it was to stay, waited for an answer
        ("leavers", 1710),  # a node was taken out for a while when the other one had no worker that stayed
        ("leavers", 1043),  # who was left out while it formed a world waited for a rank that had skipped that one
        ("links", 399),  # all nodes of the world were gone, and who had the state beyond a cut was started anew
        ("links", 66),  # older state beyond a cut counted as much as the newest
        ("halves", 559),  # a network cut for a moment counted as a world that had been formed once more in vain
        ("any", 4153),  # a world that was put back had ranks of an older one than the last
        ("any", 7463),  # a node that was to take no part stayed until it had handed the state over
        ("any", 353),  # a job had failed, its records gone, and another one of its name was judged in its place
        ("any", 8545),  # a job was done, its records gone, and another one of its name had begun
    ],
)
def test_schedules_that_found_something_hold(kind, seed):
    assert not simulation.run(seed, kind=simulation.KINDS[kind]).broken
