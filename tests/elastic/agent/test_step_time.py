"""How long nobody minds: learned from steps and pauses, and what tells a circle from work."""

import math

import pytest

from resilin.elastic.hangs import busy_loop, step_time
from resilin.elastic.hangs.busy_loop import BusyLoop
from resilin.elastic.hangs.step_time import StepTime


def taught(*steps, fixed=0.0):
    one = StepTime(fixed)
    for seconds in steps:
        one.took(seconds)
    return one.limits(begun=True)


def test_short_steps_are_looked_at_after_five_seconds_and_who_computes_is_borne_for_ten_minutes():
    limits = taught(*[0.1] * 50)
    assert (limits.look, limits.idle, limits.circle, limits.busy) == (5.0, 5.0, 60.0, 600.0)


def test_long_steps_and_a_long_pause_are_no_reason_to_look_sooner_than_they_take():
    assert taught(*[9.0] * 20).look == 90.0
    limits = taught(*[0.1] * 50, 70.0)
    assert (limits.look, limits.circle, limits.busy) == (140.0, 140.0, 600.0)


def test_of_a_program_whose_pauses_are_known_nobody_is_borne_for_longer_than_these_explain():
    steps = [*[0.1] * 60, 40.0] * 3
    assert taught(*steps[:-1]).busy == 600.0, "two are not enough"
    limits = taught(*steps)
    assert (limits.look, limits.circle, limits.busy) == (80.0, 80.0, 160.0)
    assert taught(*[*[0.1] * 60, 300.0] * 3).busy == 600.0
    assert taught(*[*[0.1] * 60, 6.0] * 3).busy == 60.0
    assert taught(*steps, *[0.1] * 1000).busy == 160.0, "they are remembered when the steps around them are not"


def test_a_limit_that_somebody_chose_is_the_limit_and_the_first_step_may_take_what_it_takes():
    limits = taught(*[0.1] * 5, fixed=7.0)
    assert (limits.look, limits.idle, limits.circle, limits.busy) == (7.0, 7.0, 7.0, 7.0)
    first = StepTime().limits(begun=False)
    assert (first.look, first.idle, first.circle, first.busy) == (30.0, 300.0, math.inf, math.inf)


def test_who_has_made_steps_before_has_no_imports_before_its_first_one_in_another_world():
    one = StepTime()
    one.took(0.1)
    limits = one.limits(begun=False, before=True)
    assert (limits.look, limits.idle, limits.circle, limits.busy) == (30.0, 30.0, 60.0, 600.0)
    assert StepTime(7.0).limits(begun=False, before=True).idle == step_time.FIRST_S


def stack(line, function="step", caller=9):
    frames = f'  File "train.py", line {line} in {function}\n  File "train.py", line {caller} in main\n'
    return f"Stack (most recent call first):\n{frames}"


def looked(*looks):
    circle = BusyLoop()
    for samples, quiet in looks:
        circle.seen(samples, quiet=quiet)
    return circle.closed


SAME = ([stack(3)] * busy_loop.SAMPLES, True)


def test_a_circle_is_the_same_stack_whenever_it_is_looked_at():
    assert looked(SAME, SAME, SAME)
    assert not looked(SAME, SAME)
    to_and_fro = ([stack(3 + number % 2) for number in range(busy_loop.SAMPLES)], True)
    assert looked(SAME, to_and_fro, SAME), "a loop has more than one line"


@pytest.mark.parametrize(
    "other",
    [
        ([stack(3 + number % 3) for number in range(busy_loop.SAMPLES)], True),
        ([*SAME[0][1:], stack(3, "other")], True),
        ([*SAME[0][1:], stack(3, caller=8)], True),
        ([stack(3, caller=8)] * busy_loop.SAMPLES, True),
        (SAME[0], False),
        ([*SAME[0][1:], ""], True),
        ([""] * busy_loop.SAMPLES, True),
    ],
    ids=[
        "three lines",
        "calls",
        "is called elsewhere",
        "elsewhere at another look",
        "reads or writes",
        "one look unanswered",
        "tells nothing",
    ],
)
def test_anything_else_is_none_and_it_begins_anew(other):
    assert not looked(SAME, SAME, other)
    assert not looked(SAME, SAME, other, SAME, SAME)
    assert looked(SAME, other, SAME, SAME, SAME)
