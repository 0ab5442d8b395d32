"""How long restarts wait."""

from membership_script import Script

from resilin.elastic import membership
from resilin.elastic.backoff import Backoff, Restarts


def test_the_first_restart_is_at_once_and_each_quick_one_after_it_waits_twice_as_long():
    backoff = Backoff()
    pauses = [backoff.failed(1.0) for _ in range(12)]
    assert pauses == [0, 0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert backoff.failed(11.0) == 0
    assert backoff.failed(1.0) == 0.25
    backoff.succeeded()
    assert backoff.failed(1.0) == 0


def paused(restarts, script):
    view, config = script.seen()
    situation = membership.assess(view, config, script.now)
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
