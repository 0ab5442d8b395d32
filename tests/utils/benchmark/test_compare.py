"""Measurements merge, travel and stand in tables; what PyTorch's tables fail at has a place, too."""

import pickle

import pytest

from resilin.errors import UsageError
from resilin.utils.benchmark import Compare, Measurement, TaskSpec, ordered_unique, trim_sigfig, unit_to_english


def measure(times, **task):
    return Measurement(1, list(times), TaskSpec(**{"stmt": "f(x)", "setup": "pass", **task}))


def test_replicates_merge_into_times_of_one_run():
    first = Measurement(10, [10.0, 20.0], TaskSpec("f", "pass"), metadata={"host": "a"})
    other = Measurement(2, [2.0], TaskSpec("f", "pass", env="branch"))
    again = Measurement(100, [300.0], TaskSpec("f", "pass"))
    merged = Measurement.merge([first, other, again])
    assert [(one.raw_times, one.number_per_run, one.env) for one in merged] == [
        ([1.0, 2.0, 3.0], 1, None),
        ([1.0], 1, "branch"),
    ]
    assert [one.metadata for one in merged] == [None, None]


def test_a_measurement_comes_back_from_a_pickle_with_its_task():
    one = measure([1e-3, 2e-3, 3e-3], label="sum", num_threads=2)
    assert one.median == 2e-3
    back = pickle.loads(pickle.dumps(one))
    assert back == one
    assert (back.label, back.num_threads, back.median) == ("sum", 2, 2e-3)


def test_fields_of_the_task_are_those_of_the_measurement_and_others_are_none():
    one = measure([1.0], description="d", env="e")
    assert (one.stmt, one.setup, one.description, one.env, one.sub_label) == ("f(x)", "pass", "d", "e", None)
    with pytest.raises(AttributeError, match="'Measurement' object has no attribute 'medain'"):
        one.medain  # noqa: B018


def test_rows_of_no_environment_stand_beside_those_of_one():
    table = Compare([measure([1e-3], env="branch", sub_label="a"), measure([2e-3], sub_label="a", description="n=1")])
    lines = [line.strip() for line in str(table).splitlines()]
    assert lines[1] == "|       |  n=1"
    assert lines[3:5] == ["(Unspecified env)  a  |       |  2.0", "(branch)           a  |  1.0  |"]


def test_results_are_added_together_or_not_at_all():
    table = Compare([measure([1.0], label="a")])
    with pytest.raises(UsageError, match="expected instances of Measurement, got <class 'float'>"):
        table.extend_results([measure([2.0], label="b"), 2.0])
    assert "- b -" not in str(table)
    table.extend_results([measure([2.0], label="b")])
    assert str(table).count("Times are in seconds (s).") == 2


def test_a_table_is_printed(capsys):
    table = Compare([measure([1.0], label="a")])
    table.print()
    assert capsys.readouterr().out == f"{table}\n"


def test_nothing_is_an_empty_text():
    assert str(Compare([])) == ""


def test_figures_are_whole_numbers():
    with pytest.raises(UsageError, match=r"whole number of figures, got 1\.5"):
        trim_sigfig(3.14, 1.5)
    assert trim_sigfig(0.0, 2) == 0.0


def test_small_helpers():
    assert [unit_to_english(unit) for unit in ("ns", "us", "ms", "s")] == [
        "nanosecond",
        "microsecond",
        "millisecond",
        "second",
    ]
    assert ordered_unique("abracadabra") == ["a", "b", "r", "c", "d"]
