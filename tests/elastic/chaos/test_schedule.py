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
