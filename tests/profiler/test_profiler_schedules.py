"""Schedules and steps are PyTorch's: which steps are recorded, and when `on_trace_ready` hears of it."""

from __future__ import annotations

import warnings

import pytest

from resilin import profiler
from resilin.profiler import ProfilerAction, profile, schedule

LETTERS = dict(zip("nwrs", list(ProfilerAction), strict=False))


def letters_of(scheduled, steps):
    return "".join("nwrs"[scheduled(step).value] for step in range(steps))


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_schedules_say_of_each_step_what_pytorchs_say(pytorch):
    assert len(pytorch["schedules"]) > 100
    for case in pytorch["schedules"]:
        assert letters_of(schedule(**case["args"]), 20) == case["actions"], case["args"]


def run(scheduled, case):
    """What PyTorch was asked: see make_torch_profiler.py."""
    fired = []

    def ready(prof):
        names = {event.trace_name for event in prof.events() if (event.trace_name or "").startswith("ProfilerStep")}
        fired.append([prof.step_num, sorted(names)])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with profile(schedule=scheduled, on_trace_ready=ready, acc_events=case["acc_events"]) as prof:
            for _ in range(case["steps"]):
                prof.step()
    said = [str(one.message) for one in caught if "Incorrect" in str(one.message)]
    return {"fired": fired, "step_num": prof.step_num, "warnings": said}


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_steps_are_recorded_and_told_of_as_by_pytorch(pytorch):
    for case in pytorch["runs"]:
        found = run(schedule(**case["schedule"]), case)
        assert found == {key: case[key] for key in found}, (case["schedule"], case["acc_events"])


def test_schedules_of_ones_own_give_pytorchs_steps_and_warnings(pytorch):
    for case in pytorch["own_schedules"]:
        letters = case["letters"]
        found = run(lambda step, of=letters: LETTERS[of[step] if step < len(of) else "n"], case)
        assert found == {key: case[key] for key in found}, letters


def test_the_program_of_the_announcement_records_steps_2_3_6_and_7():
    case = {"acc_events": False, "steps": 8}
    found = run(schedule(wait=1, warmup=1, active=2), case)
    assert found["fired"] == [[4, ["ProfilerStep#2", "ProfilerStep#3"]], [8, ["ProfilerStep#6", "ProfilerStep#7"]]]


def test_a_schedule_that_warms_up_in_the_middle_goes_on():
    found = run(lambda step: LETTERS["nrwrsn"[min(step, 5)]], {"acc_events": False, "steps": 6})
    assert found["fired"] == [[5, ["ProfilerStep#3", "ProfilerStep#4"]]]
    assert found["warnings"] == ["Incorrect schedule: RECORD followed by WARMUP"]


@pytest.mark.parametrize(
    "wrong", [{"active": 0}, {"wait": -1}, {"warmup": -1}, {"repeat": -1}, {"skip_first": -1}], ids=str
)
def test_numbers_that_make_no_schedule_are_refused(wrong):
    with pytest.raises(AssertionError, match="Invalid profiler schedule arguments"):
        schedule(**{"wait": 1, "warmup": 1, "active": 1, **wrong})


def test_a_schedule_without_warm_up_warns():
    with pytest.warns(UserWarning, match="won't be using warmup"):
        schedule(wait=1, warmup=0, active=1)


def test_a_step_before_the_first_is_refused():
    with pytest.raises(AssertionError, match="Step must be non-negative"):
        schedule(wait=1, warmup=1, active=1)(-1)


def test_an_action_of_the_profilers_own_is_refused_and_the_profile_stays_as_it_is():
    with pytest.raises(ValueError, match="set internally"):
        profile(schedule=lambda step: ProfilerAction.DEVICE_STOPPED)
    answers = {0: ProfilerAction.RECORD, 1: ProfilerAction.DEVICE_STOPPED}
    with profile(schedule=lambda step: answers.get(step, ProfilerAction.RECORD)) as prof:
        with pytest.raises(ValueError, match="set internally"):
            prof.step()
        assert (prof.step_num, prof.current_action) == (0, ProfilerAction.RECORD)


def test_without_a_schedule_everything_is_recorded_and_steps_are_not_marked():
    ready = []
    with profile(on_trace_ready=ready.append) as prof:
        with profiler.record_function("all of it"):
            prof.step()
        prof.step()
    assert ready == [prof]
    assert [event.name for event in prof.events()] == ["all of it"]
    assert prof.step_num == 2


def test_a_profile_can_be_started_and_stopped_by_hand_again_and_again():
    prof = profile(acc_events=True)
    for name in ("first", "second"):
        prof.start()
        with profiler.record_function(name):
            pass
        prof.stop()
        with profiler.record_function("outside"):
            pass
    assert sorted(event.name for event in prof.events()) == ["first", "second"]
