"""How long restarts wait."""

from types import SimpleNamespace

import pytest
from membership_script import Script

from resilin.elastic.agent.replacement import Replacement
from resilin.elastic.membership import decision
from resilin.elastic.membership.backoff import Backoff, Restarts


def test_the_first_restart_is_at_once_and_each_quick_one_after_it_waits_twice_as_long():
    backoff = Backoff()
    pauses = [backoff.failed(1.0) for _ in range(12)]
    assert pauses == [0, 0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert backoff.failed(11.0) == 0
    assert backoff.failed(1.0) == 0.25


def paused(restarts, script):
    view, config = script.seen()
    situation = decision.assess(view, config, script.now)
    until = restarts.until(view, situation, script.now)
    return None if until is None else until - script.now


def fail(restarts, script, fault, lived_s):
    """Let the running generation fail, and say how long the next one has to wait."""
    script.now += lived_s
    script._die("a/0", fault)
    pause = paused(restarts, script)
    script.settle()
    paused(restarts, script)
    return pause


def test_generations_that_fail_by_themselves_wait_and_killed_or_old_ones_do_not():
    script, restarts = Script(), Restarts()
    script.do("job 1:1 restarts 100")
    script.do("join a")
    paused(restarts, script)
    assert [fail(restarts, script, "own", 1) for _ in range(3)] == [None, 0.25, 0.5]
    assert fail(restarts, script, "external", 1) is None
    assert fail(restarts, script, "own", 1) == 1
    assert fail(restarts, script, "own", 60) is None
    assert fail(restarts, script, "own", 1) == 0.25


class Place:
    """A slot of a node, as a `Replacement` uses it."""

    def __init__(self):
        self.index, self.incarnation, self.rank = 0, 1, 0
        self.started_at = 0.0
        self.running, self.replace = True, False
        self.state, self.fault = "ready", ""

    def start(self, incarnation, rank, generation, variables):
        self.incarnation, self.running, self.state = incarnation, True, "running"

    def fail(self, fault):
        self.running, self.state, self.fault, self.replace = False, "failed", fault, True


@pytest.mark.parametrize(
    ("joined", "lived_s", "fault", "pauses"),
    [
        (False, 1, "own", [None, 0.25, 0.5, 1]),
        (False, 20, "own", [None, 0.25, 0.5, 1]),
        (True, 1, "own", [None, 0.25, 0.5, 1]),
        (True, 20, "own", [None, None, None, None]),
        (True, 1, "external", [None, None, None, None]),
    ],
)
def test_a_replacement_waits_when_those_before_it_failed_soon_by_themselves(joined, lived_s, fault, pauses):
    script = Script()
    for line in ("job 1:2 restarts 100", "join a", "join b", "hello all"):
        script.do(line)
    view, config = script.seen()
    program = SimpleNamespace(early=False)
    slot = Place()
    filler = Replacement(SimpleNamespace(node_id="a", workers=1, program=program), [slot], supervisor=None)
    now, found = 0.0, []
    for _ in pauses:
        slot.started_at = now
        now += lived_s
        slot.fail(fault)
        filler.failed(slot, joined=joined, now=now)
        started, held = filler.fill(view, config, now)
        found.append(None if held is None else held - now)
        assert started is (held is None)
        if held is not None:
            now = held
            assert filler.fill(view, config, now) == (True, None)
    assert found == pauses
