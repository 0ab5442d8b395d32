"""The store is one process's memory and is lost with it: who was in the job goes on, in simulated time.

The job is one of nodes that do the same thing at the same time, save what each test breaks.
"""

import logging

import pytest

from resilin.elastic.agent.slots import BEGUN_S
from resilin.elastic.membership import succession
from resilin.elastic.membership.view import Config
from resilin.elastic.rendezvous import rendezvous
from resilin.elastic.rendezvous.rendezvous import LEAVE_S
from resilin.testing import simulation
from resilin.testing.simulation import schedule
from resilin.testing.simulation.invariants import Invariants
from resilin.testing.simulation.nodes import Setting
from resilin.testing.simulation.workers import InPlace, Training

LOST_S = 3.0  # several steps are committed by then
OUTAGE_S = 30.0  # what agents of the simulation bear


@pytest.fixture(autouse=True)
def silence():
    logger = logging.getLogger("resilin")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


class Job(schedule._Play):
    """Nodes n0, n1, ... and a program of 40 steps, of 0.2 s each."""

    def __init__(self, seed=1, count=2, low=1, high=3, steps=40):
        self._count, self._limits, self._steps = count, (low, high), steps
        super().__init__(seed, None, schedule.FaultSet(faults=()))

    def _make_job(self):
        low, high = self._limits
        self.job = Config(min_nodes=low, max_nodes=high, max_restarts=3)
        training = Training(steps=self._steps, samples=10, batch=4, shards=4, step_s=0.2, timeout_s=2.0)
        self.network.loss = 0.0
        self.invariants = Invariants(self.universe, self.job, training, True)
        self.server.subscribe("\0", "\0", None, self.invariants.changed)
        self.setting = Setting(
            self.universe, self.network, self.server, training, self.job, self.invariants,
            program=InPlace, warm=True, lease_ttl_s=2.0, slots=1,
        )  # fmt: skip
        for _ in range(self._count):
            self.universe.at(0.0, self._join)

    def at(self, seconds, call):
        self.universe.at(seconds, call)

    def lose_store(self, away_s):
        self.server.down = True
        self.universe.after(away_s, self.empty)

    def empty(self):
        self.server.down = False
        self.server.lose()
        self.invariants.store_lost()

    def play(self, until=120.0):
        try:
            self.universe.run(until, lambda: all(node.ended for node in self.nodes) and self.universe.now > LOST_S + 5)
            if self.invariants.closed is not None and self.invariants.closed.outcome == "succeeded":
                self.invariants.finished()
            return {node.name: node.outcome for node in self.nodes}
        finally:
            self.close()

    @property
    def committed(self):
        return max((entry.step for entry in self.invariants.entries), default=0)


@pytest.mark.parametrize("seed", range(10))
def test_nodes_that_live_put_their_world_back_and_train_on_in_it(seed):
    job = Job(seed, count=3)
    job.at(LOST_S, lambda: job.lose_store(1.0))
    ends = job.play()
    assert [outcome.code for outcome in ends.values()] == [0, 0, 0], ends
    back = [one for one in job.invariants.generations if one.reason == succession.REFILLED]
    assert len(back) == 1, "one node does it, and the others go on from that"
    assert {node for one in job.invariants.generations for node in one.nodes} == {"n0", "n1", "n2"}
    (last,) = [one for one in job.invariants.generations if one.number == 1]
    assert back[0].members == last.members
    assert job.invariants.generations[-1] == back[0], "nobody was lost, and no process was started"


def lose_the_host(seed):
    """The job of two nodes whose first is lost with the store, what became of it, and how far it had come."""
    job, before = Job(seed), []

    def lose():
        job.nodes[0].crash(silently=False)
        job.lose_store(0.5)
        before.append(job.committed)

    job.at(LOST_S, lose)
    job.at(LOST_S + 0.5, job._join)
    return job, job.play(), before[0]


@pytest.mark.parametrize("seed", range(10))
def test_the_host_of_the_store_is_lost_with_it_and_the_survivors_state_outranks_the_new_hosts_start(seed):
    job, ends, before = lose_the_host(seed)
    assert [outcome and outcome.code for outcome in ends.values()] == [None, 0, 0], ends
    assert before > 3
    origins = {one.origin for one in job.invariants.generations if one.refills}
    assert origins == {job.invariants.generations[0].origin}
    assert "n2" in job.invariants.generations[-1].nodes, "the new node takes part"
    steps = {entry.step for entry in job.invariants.entries}
    assert steps == set(range(40))
    assert worlds_of_the_beginning(job) == {1}, "no step of the beginning was done again"


def worlds_of_the_beginning(job):
    return {entry.generation for entry in job.invariants.entries if entry.step <= 3}


def test_a_new_host_that_does_not_look_who_came_with_the_world_that_was_put_back_is_caught(monkeypatch):
    monkeypatch.setattr(rendezvous.Rendezvous, "_look_around_if_refilled", lambda self: None)
    assert any(worlds_of_the_beginning(lose_the_host(seed)[0]) != {1} for seed in range(10))


def test_a_start_that_has_trained_for_a_while_is_not_ended_by_who_comes_back_later():
    job = Job(steps=150)

    def lose_host():
        job.nodes[0].crash(silently=False)
        job.lose_store(0.5)
        job.network.cut("n1", schedule.STORE)
        job.network.cut(schedule.STORE, "n1")
        job.universe.after(BEGUN_S + 5.0, job.network.heal_all)

    job.at(LOST_S, lose_host)
    job.at(LOST_S + 0.5, job._join)
    ends = job.play()
    assert ends["n2"].code == 0
    assert ends["n1"].code == 4
    assert ", of another beginning: " in ends["n1"].reason


def test_a_job_that_has_ended_is_not_begun_again_by_a_node_that_was_cut_off():
    """Its records are gone, and the store is the same one: that is no loss."""
    job = Job(count=2)

    def cut():
        job.network.cut("n1", schedule.STORE)
        job.network.cut(schedule.STORE, "n1")

    job.at(8.2, cut)  # all have done their last step, or nearly
    job.at(30.0, job.network.heal_all)
    ends = job.play()
    assert not any(one.refills for one in job.invariants.generations)
    assert all(outcome.code in (0, 3, 4) for outcome in ends.values())


def test_a_survivor_of_the_stores_host_gives_up_one_limit_after_the_loss_and_not_five():
    job = Job(low=2, high=2)

    def lose_host():
        job.nodes[0].crash(silently=False)
        job.server.down = True

    job.at(LOST_S, lose_host)
    ends = job.play(until=LOST_S + 5 * OUTAGE_S)
    assert ends["n1"] is not None, "it still waits"
    assert ends["n1"].code == 3
    assert "lost its world" in ends["n1"].reason
    assert LOST_S + OUTAGE_S <= job.universe.now <= LOST_S + OUTAGE_S + LEAVE_S + 1.0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_nobody_is_ended_where_nothing_but_stores_are_lost(first):
    for seed in range(first, first + 20):
        result = simulation.run(seed, kind=simulation.FaultSet(faults=("lose_store",)))
        assert not result.broken, f"seed {seed}: {result.broken}"
        assert result.outcome == "all workers are done", f"seed {seed}: {result.outcome}"
