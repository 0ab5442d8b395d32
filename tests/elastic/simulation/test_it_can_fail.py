"""A proof that cannot fail is worth nothing: each deliberate fault in the logic is caught by some seed."""

import logging
from dataclasses import replace

import pytest

from resilin.elastic.agent.agent import Agent
from resilin.elastic.membership import decision, queries, succession
from resilin.elastic.rendezvous import leader, own_record, rendezvous
from resilin.elastic.worker import source_election
from resilin.store.state import StoreState
from resilin.testing import simulation
from resilin.testing.simulation import workers

SEEDS = range(200)  # without a fault they hold: test_schedules plays them


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("resilin")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def caught(first=0):
    """What a schedule that breaks says. `first`: a seed that has caught this fault; others are tried behind it."""
    seeds = (*SEEDS[first:], *SEEDS[:first])
    return next((result.broken for result in map(simulation.run, seeds) if result.broken), "")


@pytest.mark.slow
def test_writing_without_the_compare_on_the_previous_generation_is_caught(monkeypatch):
    monkeypatch.setattr(StoreState, "_holds", lambda self, condition: True)
    assert caught().partition(": ")[2].startswith(("generation ", "the job's end was written twice"))


def test_not_counting_workers_that_failed_before_they_joined_is_caught(monkeypatch):
    monkeypatch.setattr(queries, "restarts_used", lambda view: view.generation.restarts_used if view.generation else 0)
    assert "restarts used, expected" in caught(first=30)


def test_a_leader_that_is_not_replaced_when_it_is_lost_is_caught(monkeypatch):
    stand = leader.Leader.stand

    async def only_before_the_first_generation(self, lease):
        return await stand(self, lease) if self._gathering else None

    monkeypatch.setattr(leader.Leader, "stand", only_before_the_first_generation)
    assert "no end of" in caught(first=20)


def test_hearing_a_member_of_an_old_generation_is_caught(monkeypatch):
    monkeypatch.setattr(workers.SimWorker, "accepts", lambda self, generation: True)
    assert caught()


def test_newcomers_that_overrule_survivors_are_caught(monkeypatch):
    choose = source_election.choose
    flip = lambda reports: choose([replace(report, settled=not report.settled) for report in reports])  # noqa: E731
    monkeypatch.setattr(source_election, "choose", flip)
    assert "starts at" in caught()


@pytest.mark.slow
def test_redoing_a_step_that_a_member_has_applied_is_caught(monkeypatch):
    choose = source_election.choose
    lowest = lambda reports: choose([replace(report, step=-report.step) for report in reports])  # noqa: E731
    monkeypatch.setattr(source_election, "choose", lowest)
    assert "below" in caught(first=113)


def test_ranks_that_move_though_their_place_is_there_are_caught(monkeypatch):
    reshape = decision._reshape

    def sorted_anew(view, situation):
        new = reshape(view, situation)
        members = sorted(new.members, key=lambda member: (member.node, member.slot))
        return replace(new, members=tuple(member._replace(rank=rank) for rank, member in enumerate(members)))

    monkeypatch.setattr(decision, "_reshape", sorted_anew)
    assert "a survivor's rank" in caught()


@pytest.mark.slow
def test_more_workers_than_shards_are_caught(monkeypatch):
    monkeypatch.setattr(queries, "largest_world", lambda view: 0)
    assert "shards" in caught()


def test_a_node_that_does_not_register_again_is_caught(monkeypatch):
    async def look_only(self):
        await self._call(lambda: self._store.get(self.key))

    monkeypatch.setattr(rendezvous.Rendezvous, "_on_lease_lost", lambda self: None)
    monkeypatch.setattr(own_record.OwnRecord, "probe", look_only)  # which would find that the record is gone
    assert caught(first=26)


def test_frozen_workers_that_nobody_kills_are_caught(monkeypatch):
    monkeypatch.setattr(queries, "unresponsive", lambda view: ())
    assert "no end of" in caught(first=131)


@pytest.mark.slow
def test_failed_workers_that_nobody_replaces_are_caught(monkeypatch):
    monkeypatch.setattr(Agent, "_fill", lambda self, view: None)
    assert caught(first=57)


def test_a_world_that_is_put_back_under_a_number_that_others_may_know_is_caught(monkeypatch):
    refill = succession.refill
    next_one = lambda last, mark: replace(refill(last, mark), number=last.number + 1)  # noqa: E731
    monkeypatch.setattr(succession, "refill", next_one)
    assert "is put back, and there was none" in caught(first=2)
