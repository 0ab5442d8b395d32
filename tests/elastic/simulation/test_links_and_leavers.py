"""Jobs in which nothing is ever wrong with a worker: links are cut, also where state is divided, or workers and nodes
are asked to leave, while others die. None that is well is killed, and no state that one has is lost.

A failing seed replays: `python -m resilin.testing.simulation --kind links` (or `halves`, `leavers`).
"""

import logging

import extent
import pytest

from resilin.elastic.agent.departures import Departures
from resilin.elastic.membership import queries, reachability
from resilin.testing import simulation
from resilin.testing.simulation import HALVES, LEAVERS, LINKS

SCHEDULES, HALVED, FIRST = 2_000, 600, 40
CHUNK = 20


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("resilin")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.slow
@pytest.mark.parametrize("first", extent.short(range(0, SCHEDULES, CHUNK), of=range(0, FIRST, CHUNK)))
@pytest.mark.parametrize("kind", [LINKS, LEAVERS], ids=["links", "leavers"])
def test_nobody_who_is_well_is_killed_and_no_state_is_lost(kind, first):
    found = {seed: simulation.run(seed, kind=kind).broken for seed in range(first, first + CHUNK)}
    assert not {seed: broken for seed, broken in found.items() if broken}


@pytest.mark.slow
@pytest.mark.parametrize("first", extent.short(range(0, HALVED, CHUNK), of=(0,)))
def test_who_goes_on_has_all_of_divided_state(first):
    found = {seed: simulation.run(seed, kind=HALVES).broken for seed in range(first, first + CHUNK)}
    assert not {seed: broken for seed, broken in found.items() if broken}


def caught(kind, first=0):
    return next((r.broken for seed in range(first, first + 40) if (r := simulation.run(seed, kind=kind)).broken), "")


def test_not_keeping_nodes_apart_that_cannot_connect_is_caught(monkeypatch):
    monkeypatch.setattr(reachability, "apart", lambda view: {})
    assert "was well, and was killed by its agent" in caught(LINKS)


def test_choosing_who_goes_on_without_a_look_at_who_has_which_part_is_caught(monkeypatch):
    monkeypatch.setattr(reachability, "_division", lambda there: reachability._Division())
    assert "lack parts of the state that others have" in caught(HALVES, first=20)


@pytest.mark.slow
def test_letting_the_last_one_with_the_state_go_is_caught(monkeypatch):
    monkeypatch.setattr(Departures, "_is_needed", lambda self, slot, view, config: False)
    assert "left with the state that others need" in caught(LEAVERS)


def test_dropping_the_last_one_with_the_state_from_the_world_is_caught(monkeypatch):
    monkeypatch.setattr(queries, "keepers", lambda view, config: frozenset())
    assert "though workers live that have done more" in caught(LEAVERS, first=188)
