"""A proof that cannot fail is worth nothing: each deliberate fault in the logic is caught by some seed."""

import logging
from dataclasses import replace

import pytest

from resilin.elastic.agent.agent import Agent
from resilin.elastic.deciding import facts, membership
from resilin.elastic.rendezvous import leading, own_record, rendezvous
from resilin.elastic.worker import roles
from resilin.store.state import StoreState
from resilin.testing import simulation
from resilin.testing.simulation import workers

SEEDS = range(400)  # far fewer than CI plays


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("resilin")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def caught():
    """What the first schedule that breaks says."""
    return next((result.broken for result in map(simulation.run, SEEDS) if result.broken), "")


def test_without_a_fault_these_seeds_hold():
    assert not any(simulation.run(seed).broken for seed in range(80))


def test_writing_without_the_compare_on_the_previous_generation_is_caught(monkeypatch):
    monkeypatch.setattr(StoreState, "_holds", lambda self, condition: True)
    assert caught().partition(": ")[2].startswith(("generation ", "the job's end was written twice"))


def test_not_counting_workers_that_failed_before_they_joined_is_caught(monkeypatch):
    monkeypatch.setattr(facts, "restarts_used", lambda view: view.generation.restarts_used if view.generation else 0)
    assert "restarts used, expected" in caught()


def test_a_leader_that_is_not_replaced_when_it_is_lost_is_caught(monkeypatch):
    stand = leading.Leading.stand

    async def only_before_the_first_generation(self, lease):
        return await stand(self, lease) if self._gathering else None

    monkeypatch.setattr(leading.Leading, "stand", only_before_the_first_generation)
    assert "no end of" in caught()


def test_hearing_a_member_of_an_old_generation_is_caught(monkeypatch):
    monkeypatch.setattr(workers.SimWorker, "accepts", lambda self, generation: True)
    assert caught()


def test_newcomers_that_overrule_survivors_are_caught(monkeypatch):
    choose = roles.choose
    flip = lambda reports: choose([replace(report, settled=not report.settled) for report in reports])  # noqa: E731
    monkeypatch.setattr(roles, "choose", flip)
    assert "starts at" in caught()


def test_redoing_a_step_that_a_member_has_applied_is_caught(monkeypatch):
    choose = roles.choose
    lowest = lambda reports: choose([replace(report, step=-report.step) for report in reports])  # noqa: E731
    monkeypatch.setattr(roles, "choose", lowest)
    assert "below" in caught()


def test_ranks_that_move_though_their_place_is_there_are_caught(monkeypatch):
    reshape = membership._reshape

    def sorted_anew(view, situation):
        new = reshape(view, situation)
        members = sorted(new.members, key=lambda member: (member.node, member.slot))
        return replace(new, members=tuple(member._replace(rank=rank) for rank, member in enumerate(members)))

    monkeypatch.setattr(membership, "_reshape", sorted_anew)
    assert "a survivor's rank" in caught()


def test_more_workers_than_shards_are_caught(monkeypatch):
    monkeypatch.setattr(facts, "largest_world", lambda view: 0)
    assert "shards" in caught()


def test_a_node_that_does_not_register_again_is_caught(monkeypatch):
    async def look_only(self):
        await self._call(lambda: self._store.get(self.key))

    monkeypatch.setattr(rendezvous.Rendezvous, "_on_lease_lost", lambda self: None)
    monkeypatch.setattr(own_record.OwnRecord, "probe", look_only)  # which would find that the record is gone
    assert caught()


def test_frozen_workers_that_nobody_kills_are_caught(monkeypatch):
    monkeypatch.setattr(facts, "unresponsive", lambda view: ())
    assert "no end of" in caught()


def test_failed_workers_that_nobody_replaces_are_caught(monkeypatch):
    monkeypatch.setattr(Agent, "_fill", lambda self, view: None)
    assert caught()
