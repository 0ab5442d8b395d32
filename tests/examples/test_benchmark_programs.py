"""The processes of a measurement, and what is kept of those that were run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.harness import Options
from benchmarks.parts.programs import BenchmarkError, Program, run_together
from benchmarks.parts.taken import Taken
from resilin.errors import UsageError

FOR_EVER = "import threading; threading.Event().wait()"


def together(*codes: str, timeout_s: float = 60) -> str:
    programs = [Program([sys.executable, "-c", code], harness.environment()) for code in codes]
    return run_together(programs, cwd=harness.ROOT, timeout_s=timeout_s)


def test_what_rank_0_printed_is_the_result() -> None:
    assert together("print('mine')", "print('other')") == "mine\n"


def test_a_rank_that_fails_is_told_though_another_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.parts.programs.FOLLOW_S", 0.2)
    with pytest.raises(BenchmarkError, match=r"exit codes \[-9, 3\]\nlost my way"):
        together(FOR_EVER, "import sys; print('lost my way', file=sys.stderr); sys.exit(3)")


def test_ranks_that_do_not_end_are_named_with_their_stacks_and_ended() -> None:
    with pytest.raises(BenchmarkError) as caught:
        together("pass", FOR_EVER, timeout_s=3)
    assert "ranks [1] not done after 3 s" in str(caught.value)
    assert "in wait" in str(caught.value)  # the stack of the rank that waited


@pytest.fixture
def stamp(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    of = {"processor": "x", "load average": "1"}
    monkeypatch.setattr(harness, "machine", lambda _: of)
    return of


def found(*samples: float) -> Callable[[], dict[str, Any]]:
    return lambda: {"samples": list(samples)}


def never() -> dict[str, Any]:
    raise AssertionError("run again although it is known")


def fails() -> dict[str, Any]:
    raise BenchmarkError("python -m case: ranks [0] not done after 300 s\nmore")


def test_runs_that_are_kept_are_not_run_again(tmp_path: Path, stamp: dict[str, str]) -> None:
    options = Options(resume=tmp_path / "kept.json")
    Taken(options).run(0, "ours", found(1, 2))
    stamp["load average"] = "2"
    again = Taken(options)
    again.run(0, "ours", never)
    again.run(1, "ours", found(3))
    assert again.samples("ours") == [1, 2, 3]
    assert len(json.loads((tmp_path / "kept.json").read_text())["results"]) == 2


def test_a_peer_that_fails_is_noted_and_the_others_go_on(tmp_path: Path, stamp: dict[str, str]) -> None:
    options = Options(resume=tmp_path / "kept.json")
    some = Taken(options)
    some.run(0, "ours", found(0.002))
    some.run(0, "theirs", fails, peer=True)
    some.run(1, "theirs", found(0.004), peer=True)
    assert [row.peer for row in some.rows("a step", "ours", {"theirs": ""})] == [4]
    assert some.notes() == ["Without a figure: theirs, round 1: ranks [0] not done after 300 s."]
    again = Taken(options)
    again.run(0, "theirs", never, peer=True)
    assert again.notes() == some.notes()
    assert [row.peer for row in some.rows("a step", "ours", {"none": ""})] == [None]


def test_our_own_failure_ends_the_benchmark(stamp: dict[str, str]) -> None:
    with pytest.raises(BenchmarkError, match="not done"):
        Taken(Options()).run(0, "ours", fails)


def test_kept_figures_of_something_else_are_refused(tmp_path: Path, stamp: dict[str, str]) -> None:
    options = Options(resume=tmp_path / "kept.json")
    Taken(options, seconds=1).run(0, "ours", found(1))
    with pytest.raises(UsageError, match=r"--resume \S+kept.json: .* seconds 1, now 2"):
        Taken(options, seconds=2)
    stamp["processor"] = "y"
    with pytest.raises(UsageError, match="processor x, now y"):
        Taken(options, seconds=1)


def test_only_benchmarks_that_keep_their_runs_have_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        harness.main(lambda _: pytest.fail("measured"), ["--resume", "x"])
    assert "--resume" in capsys.readouterr().err
