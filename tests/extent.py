"""How much of what is long by nature is tested: a part in `make test`, all of it in `make test-deep`.

A test leaves the short run in one of three ways, and each runs whole in the long one:

    @pytest.mark.deep                                                     # the test, or one `pytest.param`
    @pytest.mark.parametrize("seed", extent.short(range(30), of=(3, 8)))  # some of its cases: also `pairwise`, ...
    def test_any_damage_is_refused(turns):                                # fewer turns within it
        for seed in range(turns(short=50, full=5_000)):

`--deep=all` chooses the long run, `--deep=3/32` one of thirty-two parts of it, and `--deep=commit` the part whose
turn it is at this commit. Tests of hypothesis are in the long run too, with ten times the examples.

What takes seconds takes turns: of the tests marked `slow`, and of those that start processes (`multiproc`), the short
run has a quarter, the one of this commit (`--slow=commit`, as in `make test`; without it, all of them).
"""

from __future__ import annotations

import itertools
import subprocess
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

PARTS = 32  # of which each takes under a minute on two cores
SHARES = 4  # of what is slow
MORE = 10  # times as many examples of hypothesis


@dataclass(frozen=True)
class Part:
    """One part of the tests, of so many. `why`: how it was chosen."""

    part: int = 0
    parts: int = 1
    why: str = "all of it"

    def holds(self, nodeid: str) -> bool:
        """Whether the test of that name is in this part: by its name alone, so that others may come and go."""
        return zlib.crc32(nodeid.encode()) % self.parts == self.part


@dataclass(frozen=True)
class Deep(Part):
    """A part of the long run."""

    def __str__(self) -> str:
        again = "--deep=all" if self.parts == 1 else f"--deep={self.part}/{self.parts}"
        return f"the long run, {self.why} (again: {again})"


@dataclass(frozen=True)
class Slow(Part):
    """A share of what is slow in the short run."""

    def __str__(self) -> str:
        if self.parts == 1:
            return "the short run (the long one: make test-deep)"
        return f"the short run, of what is slow {self.why} (again: --slow={self.part}/{self.parts})"


chosen: Deep | None = None  # set by tests/conftest.py before any test is read; None: the short run
share = Slow()  # of the short run


def choose(word: str) -> Deep:
    """What `--deep=WORD` means."""
    return Deep(*_part("--deep", word, PARTS))


def choose_share(word: str) -> Slow:
    """What `--slow=WORD` means."""
    return Slow(*_part("--slow", word, SHARES))


def _part(option: str, word: str, parts: int) -> tuple[int, int, str]:
    if word == "all":
        return 0, 1, "all of it"
    if word == "commit":
        commit = _commit()
        why = f"the part of commit {commit[:12]}" if commit else "its first part, as git names none"
        return int(commit or "0", 16) % parts, parts, why
    first, _, second = word.partition("/")
    if not (first.isdecimal() and second.isdecimal() and int(first) < int(second)):
        raise pytest.UsageError(f"{option}={word}: expected all, commit, or PART/PARTS such as 0/{parts}")
    return int(first), int(second), f"part {first} of {second}"


def belongs(item: pytest.Item) -> bool:
    """Whether the run that was chosen has this test."""
    deep = item.get_closest_marker("deep") is not None
    slow = any(item.get_closest_marker(name) is not None for name in ("slow", "multiproc"))
    if chosen is None:
        return not deep and (not slow or share.holds(item.nodeid))
    grows = "turns" in getattr(item, "fixturenames", ()) or getattr(
        getattr(item, "obj", None), "is_hypothesis_test", False
    )
    return (deep or slow or grows) and chosen.holds(item.nodeid)


def _commit() -> str:
    """The commit that is checked out here, or nothing."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def turns(*, short: int, full: int) -> int:
    """`short`, or `full` in the long run. A test asks for the fixture of this name, which makes it part of both."""
    return short if chosen is None else full


def examples(number: int) -> int:
    """So many examples of hypothesis, or ten times as many in the long run."""
    return turns(short=number, full=MORE * number)


def short(cases: Iterable[object], of: Collection[object] | Callable[..., bool]) -> list[object]:
    """`cases` for parametrize, of which the short run has those in `of`, or for which it is true."""
    cases = list(cases)
    each = [case if isinstance(case, tuple) else (case,) for case in cases]
    here = [of(*values) if callable(of) else case in of for case, values in zip(cases, each, strict=True)]
    if not callable(of) and (strangers := [case for case in of if case not in cases]):
        raise ValueError(f"{strangers}: no such cases")
    if not any(here):
        raise ValueError("the short run would have no case")
    return [
        pytest.param(*values, marks=() if one else pytest.mark.deep) for values, one in zip(each, here, strict=True)
    ]


def first_of_each(cases: Iterable[tuple[object, ...]]) -> list[object]:
    """`cases` for parametrize, of which the short run has the first of each that begin alike: of each op, say."""
    cases = list(cases)
    firsts = {case[0]: case for case in reversed(cases)}
    return short(cases, of=lambda *case: firsts[case[0]] == case)


def pairwise(*axes: Sequence[object], where: Callable[..., bool] = lambda *case: True) -> list[object]:
    """Every combination of the axes for parametrize, of which the short run has so many that each pair is in one."""
    axes = tuple(tuple(axis) for axis in axes)
    places = [case for case in itertools.product(*(range(len(axis)) for axis in axes)) if where(*_values(axes, case))]
    here = set(covering(places))
    return [pytest.param(*_values(axes, case), marks=() if case in here else pytest.mark.deep) for case in places]


def covering(cases: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Some of the cases, in which every two numbers that are at two places of a case are so again: few, not fewest."""
    pairs = {case: set(itertools.combinations(enumerate(case), 2)) for case in cases}
    left = set().union(*pairs.values())
    found = set()
    while left:
        best = max(cases, key=lambda case: len(pairs[case] & left))
        found.add(best)
        left -= pairs[best]
    return [case for case in cases if case in found]


def _values(axes: Sequence[Sequence[object]], case: tuple[int, ...]) -> list[object]:
    return [axis[place] for axis, place in zip(axes, case, strict=True)]
