"""Errors at one line before `@elastic.run`: how they are counted, and that the job ends instead of all its restarts."""

import traceback

import pytest

from resilin.elastic import failure, records
from resilin.elastic.membership.early_failures import counted, judge, passed
from resilin.elastic.membership.view import Config
from resilin.elastic.records import EarlyFailures, Node, Slot

CONFIG = Config(min_nodes=1, max_nodes=3, max_restarts=9)
LINE = "KeyError at train.py:12"


def node(name, known=None, **changes):
    fields = {"host": name, "address": name, "master_port": 1, "slots": (Slot(index=0),), "early": known}
    return Node(id=name, **{**fields, **changes})


def told(*starts, place=LINE):
    """Of `starts`: the slot and the generation of each."""
    known = None
    for slot, generation in starts:
        known = counted(known, place, slot, generation)
    return known


def test_processes_that_were_started_together_count_once_and_a_slot_that_fails_again_was_started_again():
    assert told((0, 1), (1, 1), (2, 1)).starts == ((1, 1),)
    assert told((0, 1), (1, 1), (1, 1), (1, 1)).starts == ((1, 3),)
    assert told((0, 1), (1, 2), (0, 4)).starts == ((1, 1), (2, 1), (4, 1))


def test_another_line_begins_anew_and_so_does_a_slot_that_gets_past_it():
    assert counted(told((0, 1), (0, 2)), "OSError at train.py:3", 0, 3).starts == ((3, 1),)
    assert passed(told((0, 1), (1, 2)), 1) is None
    assert passed(told((0, 1)), 1) == told((0, 1))


def test_starts_of_several_nodes_are_put_together():
    ours, others = told((0, 1), (0, 3)), told((0, 2))
    assert judge([node("a", ours), node("b", others)], CONFIG).verdict.startswith(f"{LINE} has ended workers 3 times")
    assert judge([node("a", ours), node("b", told((0, 3)))], CONFIG) == ("", "", ""), "the third start was one"
    elsewhere = told((0, 2), place="OSError at train.py:3")
    assert judge([node("a", ours), node("b", elsewhere)], CONFIG) == ("", "", "")


def test_one_node_that_others_can_do_without_is_suspect():
    often = told((0, 1), (0, 2), (0, 3))
    assert judge([node("a", often), node("b")], CONFIG).suspect == "a"
    assert judge([node("a", often), node("b", leaving=True)], CONFIG).verdict
    assert judge([node("a", often, excluded="its workers failed"), node("b")], CONFIG) == ("", "", "")
    assert (
        judge([node("a", often)], Config(min_nodes=1, max_nodes=1, max_restarts=9, max_step_failures=0)).verdict == ""
    )


def test_a_record_carries_it():
    record = node("a", told((0, 1), (1, 1)))
    assert records.node("key", records.to_bytes(record)).early == EarlyFailures(
        place=LINE, starts=((1, 1),), slots=(0, 1), latest=(0, 1)
    )


def trace(code):
    try:
        exec(compile(code, "/home/me/train.py", "exec"), {})
    except Exception as error:  # noqa: BLE001 - whatever it raises is looked at
        return "".join(traceback.format_exception(error))
    raise AssertionError("it raises nothing")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("\nraise KeyError('x')", 2),
        ("import json\n\n\njson.loads('{')", 4),
        ("def f():\n    return {}['x']\ntry:\n    f()\nexcept KeyError:\n    raise ValueError('y')", 6),
        ("raise ExceptionGroup('several', [ValueError('a')])", 1),
    ],
    ids=["its own", "in a library", "while another was handled", "a group"],
)
def test_the_line_is_the_innermost_one_of_the_program(code, line):
    assert failure.place_of("Error", trace(code)) == f"Error at /home/me/train.py:{line}"


def test_without_a_line_there_is_no_place():
    assert failure.place_of("SystemError", "") == ""


FAILS_EARLY = """
import pathlib, sys
import resilin
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x")
if len(starts.read_text()) <= int(sys.argv[2]):
    {}["data"]

@resilin.elastic.run
def train():
    pass

train()
"""


@pytest.mark.multiproc
@pytest.mark.parametrize(("failing", "started", "code"), [(99, 3, 1), (2, 3, 0)], ids=["each time", "twice"])
def test_a_line_that_fails_three_times_before_training_ends_the_job(launch, script, tmp_path, failing, started, code):
    starts = tmp_path / "starts"
    starts.write_text("")
    program = script(FAILS_EARLY)
    job = launch("--standalone", "--max-restarts", 20, program, starts, failing)
    assert job.wait() == code
    assert len(starts.read_text()) == started
    verdict = f"KeyError at {program}:7 has ended workers 3 times in a row, before they came to @elastic.run: the fault"
    assert (verdict in job.err) == bool(code), job.err
