"""What is in the short run, and that all the rest is in the long one."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import extent
import pytest

TESTS = Path(__file__).parents[1]
AXES = [("a", "b", "c"), (1, 2), (None, True, False), ([], {})]


def kept(parameters):
    return [tuple(each.values) for each in parameters if not each.marks]


def pairs(case):
    return set(itertools.combinations([(place, str(value)) for place, value in enumerate(case)], 2))


def item(nodeid="test_a.py::test_b", *, deep=False, marks=(), fixtures=(), hypothesis=False):
    marks = {"deep", *marks} if deep else set(marks)
    return SimpleNamespace(
        nodeid=nodeid, fixturenames=fixtures, obj=SimpleNamespace(is_hypothesis_test=hypothesis),
        get_closest_marker=lambda name: getattr(pytest.mark, name) if name in marks else None,
    )  # fmt: skip


@pytest.mark.parametrize("where", [lambda *case: True, lambda a, b, c, d: (a, b) != ("a", 1) and c is not None])
def test_every_pair_of_values_is_in_a_case_of_the_short_run_and_every_case_in_the_long_one(where):
    cases = [case for case in itertools.product(*AXES) if where(*case)]
    table = extent.pairwise(*AXES, where=where)
    assert [tuple(each.values) for each in table] == cases
    short = kept(table)
    assert set().union(*map(pairs, short)) == set().union(*map(pairs, cases))
    assert len(short) <= 12 < len(cases)


def test_of_two_axes_every_case_is_a_pair():
    assert len(kept(extent.pairwise("abc", range(4)))) == 12


def test_cases_that_are_not_chosen_are_left_to_the_long_run():
    by_value = extent.short(range(5), of=(1, 3))
    assert [each.values for each in by_value] == [(0,), (1,), (2,), (3,), (4,)]
    assert kept(by_value) == [(1,), (3,)]
    assert kept(extent.short([("a", 1), ("a", 2), ("b", 1)], of=lambda name, number: number == 1)) == [
        ("a", 1),
        ("b", 1),
    ]


@pytest.mark.parametrize(("of", "said"), [((1, 7), "7.*no such"), (lambda case: False, "would have no case")])
def test_a_choice_that_means_nothing_is_refused(of, said):
    with pytest.raises(ValueError, match=said):
        extent.short(range(3), of=of)


def test_the_short_run_has_what_is_not_deep(monkeypatch):
    monkeypatch.setattr(extent, "chosen", None)
    assert extent.belongs(item())
    assert extent.belongs(item(fixtures=("turns",)))
    assert not extent.belongs(item(deep=True))
    assert (extent.turns(short=3, full=70), extent.examples(5)) == (3, 5)


@pytest.mark.parametrize("mark", ["slow", "multiproc"])
def test_what_is_slow_takes_turns_in_the_short_run(mark, monkeypatch):
    monkeypatch.setattr(extent, "chosen", None)
    slow = [item(f"test_a.py::test_b[{number}]", marks=[mark]) for number in range(400)]
    shares = []
    for part in range(4):
        monkeypatch.setattr(extent, "share", extent.choose_share(f"{part}/4"))
        shares.append([each.nodeid for each in slow if extent.belongs(each)])
        assert extent.belongs(item())
    assert sorted(itertools.chain(*shares)) == sorted(each.nodeid for each in slow)
    assert min(map(len, shares)) > 50
    monkeypatch.setattr(extent, "share", extent.choose_share("all"))
    assert all(extent.belongs(each) for each in slow)
    monkeypatch.setattr(extent, "chosen", extent.choose("all"))
    assert all(extent.belongs(each) for each in slow)


def test_of_cases_that_begin_alike_the_short_run_has_the_first():
    cases = [("abs", 1), ("abs", 2), ("sum", 0), ("sum", 3)]
    assert [each.values for each in extent.first_of_each(iter(cases))] == cases
    assert kept(extent.first_of_each(cases)) == [("abs", 1), ("sum", 0)]


def test_the_share_of_a_commit_is_told_with_how_to_run_it_again(monkeypatch):
    monkeypatch.setattr(extent, "_commit", lambda: "1" * 39 + "b")
    assert re.search(
        r"of what is slow the part of commit 1{12} \(again: --slow=3/4\)", str(extent.choose_share("commit"))
    )
    assert "long one" in str(extent.choose_share("all"))


def test_the_long_run_has_what_is_deep_and_what_grows(monkeypatch):
    monkeypatch.setattr(extent, "chosen", extent.choose("all"))
    assert extent.belongs(item(deep=True))
    assert extent.belongs(item(fixtures=("tmp_path", "turns")))
    assert extent.belongs(item(hypothesis=True))
    assert not extent.belongs(item(fixtures=("tmp_path",)))
    assert (extent.turns(short=3, full=70), extent.examples(5)) == (70, 50)


def test_each_deep_test_is_in_one_part_and_parts_are_of_one_size():
    names = [f"tests/a/test_b.py::test_c[{number}]" for number in range(1600)]
    parts = [[name for name in names if extent.choose(f"{part}/16").holds(name)] for part in range(16)]
    assert sorted(itertools.chain(*parts)) == sorted(names)
    assert min(map(len, parts)) > 50


@pytest.mark.parametrize(
    ("commit", "told"),
    [("1" * 39 + "a", r"the part of commit 111111111111 \(again: --deep=26/32\)"), ("", r"names none .*0/32")],
)
def test_the_part_of_a_commit_is_told_with_how_to_run_it_again(monkeypatch, commit, told):
    monkeypatch.setattr(extent, "_commit", lambda: commit)
    assert re.search(told, str(extent.choose("commit")))


@pytest.mark.parametrize("word", ["some", "16/16", "-1/16", "3", "/", "a/b"])
def test_a_part_that_is_none_is_refused(word):
    with pytest.raises(pytest.UsageError, match="expected all, commit, or PART/PARTS"):
        extent.choose(word)


def test_no_folder_of_tests_is_left_out_of_the_run(pytestconfig):
    """By default pytest passes by folders called dist, build or venv."""
    patterns = pytestconfig.getini("norecursedirs")
    folders = {part for path in TESTS.rglob("test_*.py") for part in path.relative_to(TESTS).parts[:-1]}
    assert not [folder for folder in folders for pattern in patterns if Path(folder).match(pattern)]
