"""Workers that fail at one and the same step: because of the step, or of the node they are on. Simulated."""

import re

import pytest

from resilin.elastic.membership import repeated_failures
from resilin.elastic.membership.view import Config
from resilin.testing.simulation.invariants import Invariants
from resilin.testing.simulation.network import Network
from resilin.testing.simulation.nodes import Setting, SimNode
from resilin.testing.simulation.store import Server
from resilin.testing.simulation.universe import Broken, Universe
from resilin.testing.simulation.workers import InPlace, Training

STEPS, STEP_S, LIMIT_S = 6, 1.5, 60.0
LOOK_S = 0.25
AT = 3  # the step at which workers fail


class Play:
    """A job of some nodes, in which each worker ends with code 1 that `fails(node, generation)` says of, at step AT."""

    def __init__(self, nodes, fails, min_nodes=1, max_restarts=10):
        self.universe = Universe(1)
        network, server = Network(self.universe, loss=0.0), Server(self.universe)
        job = Config(min_nodes=min_nodes, max_nodes=nodes, max_restarts=max_restarts)
        training = Training(steps=STEPS, samples=10, batch=4, shards=4, step_s=STEP_S, timeout_s=2.0)
        self.seen = Invariants(self.universe, job, training, True)
        server.subscribe("\0", "\0", None, self.seen.changed)
        setting = Setting(
            self.universe, network, server, training, job, self.seen,
            program=InPlace, warm=True, lease_ttl_s=2.0, slots=1,
        )  # fmt: skip
        self.nodes = [SimNode(setting, f"n{number}") for number in range(nodes)]
        self.fails = fails

    def run(self):
        self.look()
        self.universe.run(LIMIT_S, lambda: all(node.ended for node in self.nodes))

    def look(self):
        for node in self.nodes:
            for worker in list(node.spawner.running):
                at_work = worker.sim is not None and worker.sim.group is not None and worker.sim.group.formed
                if at_work and worker.step == AT and self.fails(node.name, self.seen.generations[-1]):
                    worker.end(1, silently=False)
        self.universe.after(LOOK_S, self.look)

    @property
    def end(self):
        assert self.seen.closed is not None, "the job has not ended"
        return self.seen.closed

    def close(self):
        for node in self.nodes:
            node.crash(silently=True)


@pytest.fixture
def play():
    plays = []

    def make(*args, **options):
        plays.append(Play(*args, **options))
        plays[-1].run()
        return plays[-1]

    yield make
    for each in plays:
        each.close()


@pytest.mark.parametrize("broken", ["n0", "n1", "n2"])
def test_a_node_on_which_a_step_fails_again_and_again_goes_and_the_job_succeeds(play, broken):
    job = play(3, lambda node, _: node == broken)
    assert job.end.outcome == "succeeded"
    job.seen.finished()
    assert job.seen.generations[-1].restarts_used == 3


def test_a_step_that_fails_on_every_node_ends_the_job_when_it_has_failed_on_a_second_one(play):
    job = play(3, lambda node, _: True)
    assert re.match(r"step 3 has failed [345] times in a row: .* \(it failed on n\d and n\d\)", job.end.reason)


@pytest.mark.parametrize(("nodes", "min_nodes"), [(1, 1), (2, 2)])
def test_where_no_other_node_can_take_over_the_step_is_blamed(play, nodes, min_nodes):
    job = play(nodes, lambda node, _: node == "n0", min_nodes=min_nodes)
    assert "step 3 has failed 3 times in a row" in job.end.reason


def test_data_that_strike_one_rank_at_a_time_end_the_job_when_they_have_struck_two_nodes(play):
    job = play(3, lambda node, generation: node == generation.nodes[-1])
    assert "step 3 has failed" in job.end.reason
    assert "it failed on n" in job.end.reason


def test_blaming_the_step_where_a_node_is_broken_is_caught(play, monkeypatch):
    blame = repeated_failures.Judgement(verdict="step 3 has failed 3 times in a row")
    honest = repeated_failures.judge
    monkeypatch.setattr(
        repeated_failures, "judge", lambda *args: blame if honest(*args).suspect else repeated_failures.Judgement()
    )
    with pytest.raises(Broken, match="step 3 is blamed, which failed on n1 alone, while there are n"):
        play(3, lambda node, _: node == "n1")
