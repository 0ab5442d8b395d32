"""Schedules of faults: from a seed, from a file, and refused when they make no sense."""

import json
from collections import Counter

import pytest

from resilin.elastic.chaos import schedule
from resilin.elastic.chaos.schedule import KINDS, Fault, Schedule, Setup
from resilin.errors import UsageError

SETUP = Setup(workers=3, steps=60)


def test_a_seed_gives_one_schedule_and_others_give_others():
    drawn = [schedule.draw(seed, SETUP) for seed in range(200)]
    assert drawn == [schedule.draw(seed, SETUP) for seed in range(200)]
    assert len({one.faults for one in drawn}) > 190


def test_seeds_in_a_row_go_through_everything_that_can_happen():
    setup = Setup(workers=2, nodes=2, steps=60, store=True, link=True)
    ways = setup.ways()
    count = Counter()
    for seed in range(3 * len(ways)):
        count.update({(fault.do, fault.to) for fault in schedule.draw(seed, setup).faults})
    assert count.keys() == set(ways)
    assert min(count.values()) >= 3
    assert {do for do, _ in ways} == KINDS.keys()


def test_what_needs_a_change_of_the_world_gets_one():
    for seed in range(300):
        faults = schedule.draw(seed, SETUP).faults
        last = faults[-1]
        if last.to == "worker" and last.at in ("state", "rendezvous"):
            assert faults[0].do == "kill"
            assert faults[0].rank != last.rank
            assert faults[0].step <= last.step


def test_some_are_asked_to_leave_at_the_moment_at_which_another_one_is_killed():
    drawn = [schedule.draw(seed, SETUP).faults for seed in range(300)]
    both = [faults for faults in drawn if faults[0].do == "term" and len(faults) == 2]
    same = [faults for faults in both if faults[1].do == "kill" and faults[1].at == faults[0].at]
    assert len(same) >= 10
    for asked, killed in same:
        assert (asked.step, asked.nth) == (killed.step, killed.nth) or asked.rank == killed.rank


def test_some_cuts_are_long_enough_to_be_noticed_before_they_end():
    setup = Setup(workers=2, nodes=2, steps=60, link=True)
    lasting = [fault.for_s for seed in range(300) for fault in schedule.draw(seed, setup, [("cut", "link")]).faults]
    assert min(lasting) < 2 < 15 < max(lasting) <= 30


def test_faults_are_drawn_for_moments_that_the_program_has_and_at_steps_at_which_they_come():
    """It saves at steps 5 and 10 of 60, in two pieces, has no backward, and writes no ledger."""
    moments = {"commit": (57, 58, 59, 60), "collective": (60,) * 4, "saving": (5, 5, 10, 10), "backward": (1,)}
    setup = Setup(workers=2, nodes=2, steps=60, moments=moments)
    drawn = [fault for seed in range(400) for fault in schedule.draw(seed, setup).faults]
    assert {fault.at for fault in drawn} == {"commit", "collective", "saving", "state", "rendezvous"}
    assert max(fault.step for fault in drawn) == 40
    for fault in drawn:
        assert fault.step >= (1 if fault.at == "collective" else 2)
        if fault.at == "saving":
            assert sum(step >= fault.step for step in moments["saving"]) > fault.nth
    assert {fault.at for fault in drawn if fault.do == "disk-full"} == {"saving"}


def test_what_a_program_has_no_moment_for_is_not_among_the_ways():
    setup = Setup(workers=2, steps=60, moments={"commit": (59, 60)})
    assert ("disk-full", "worker") not in setup.ways()
    assert ("disk-full", "worker") in SETUP.ways()
    assert {fault.at for seed in range(99) for fault in schedule.draw(seed, setup).faults} == {
        "commit",
        "state",
        "rendezvous",
    }


@pytest.mark.parametrize("name", ["one.json", "one.toml"])
def test_a_schedule_that_was_written_is_read_back(tmp_path, name):
    path = tmp_path / name
    one = schedule.draw(11, SETUP)
    if name.endswith("json"):
        path.write_text(one.to_json())
        assert schedule.load(path) == one
    else:
        path.write_text('[[faults]]\ndo = "kill"\nto = "agent"\nafter_s = 2\n')
        assert schedule.load(path) == Schedule(faults=(Fault(do="kill", to="agent", after_s=2),))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "expected a list of faults called `faults`"),
        ({"faults": [{"rank": 1}]}, "fault 0: expected a table with `do`"),
        ({"faults": [{"do": "melt"}]}, "fault 0: do = 'melt': expected one of raise, exit"),
        ({"faults": [{"do": "kill", "to": "moon"}]}, "to = 'moon': expected one of worker, agent"),
        ({"faults": [{"do": "raise", "to": "agent"}]}, "'raise' can be done to worker"),
        ({"faults": [{"do": "raise"}]}, "'raise' happens inside a worker: give `at`"),
        ({"faults": [{"do": "kill", "at": "noon"}]}, "at = 'noon': expected one of backward"),
        ({"faults": [{"do": "disk-full", "at": "backward"}]}, "expected at = ledger or saving"),
        ({"faults": [{"do": "kill", "at": "commit", "step": 0}]}, "step of at least 1"),
        ({"faults": [{"do": "kill", "rank": "1"}]}, "rank = '1': expected int"),
        ({"faults": [{"do": "kill", "rank": True}]}, "rank = True: expected int"),
        ({"faults": [{"do": "kill", "when": 1}]}, "no such key 'when'"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_with_the_fault_that_is_wrong(tmp_path, body, said):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(body))
    with pytest.raises(UsageError) as error:
        schedule.load(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", [None, "{"])
def test_a_file_that_holds_no_schedule_is_named(tmp_path, text):
    path = tmp_path / "one.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=r"one\.json"):
        schedule.load(path)
