"""The figures that benchmarks print."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as run_everything
from benchmarks import harness, recovery
from benchmarks.harness import Options, Report, Row


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1.2345, "1.23"), (12.345, "12.3"), (123.45, "123"), (12345.6, "12,300"), (0.012345, "0.0123")],
)
def test_figures_have_three_significant_digits(value: float, text: str) -> None:
    assert harness.figure(value) == text


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (95, 95), (100, 100), (1, 1), (0, 1)])
def test_percentile_is_the_nearest_rank(percent: float, expected: int) -> None:
    assert harness.percentile(list(range(100, 0, -1)), percent) == expected


def test_ratio_is_the_peer_over_ours() -> None:
    row = harness.timing_row("a call", {"resilin": [1e-3, 2e-3, 3e-3], "torch": [8e-3]})
    text = harness.render(Report(name="x", question="q", method="m", rows=[row]), {}, Options())
    assert "| a call | ms | 2.00 | 1.00 to 3.00 of 3 | 8.00 | 4.00 |" in text


def test_rows_without_a_peer_leave_its_columns_empty() -> None:
    rows = [Row(what="both", unit="ms", ours=1, peer=2), Row(what="ours", unit="ms", ours=1)]
    text = harness.render(Report(name="x", question="q", method="m", rows=rows), {}, Options())
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|") and "machine" not in line}
    assert widths == {7, 3}  # the table of figures, and the machine's


def test_smoke_run_writes_json_but_no_results_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    report = Report(name="x", question="q", method="m", rows=[Row(what="a", unit="s", ours=1)], data={"key": 5})
    harness.finish(report, Options(quick=True, json_path=tmp_path / "x.json"))
    assert json.loads((tmp_path / "x.json").read_text())["key"] == 5
    assert not (tmp_path / "results").exists()
    harness.finish(report, Options())
    assert (tmp_path / "results" / "x.md").read_text().startswith("# x\n")


def never(options: Options) -> Report:
    raise AssertionError("measured although it was clear that the run could not be carried to its end")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--json", "FOLDER/none/x.json"], r"--json \S+/none/x.json: cannot be written: No such file or directory"),
        (["--json", "FOLDER"], r"--json \S+: cannot be written: Is a directory"),
        (["--peer-python", "FOLDER/none"], r"--peer-python \S+/none: cannot be run: No such file or directory"),
        (["--peer-python", "FOLDER"], r"--peer-python \S+: cannot be run: Permission denied"),
        (["--peer-python", "FOLDER/no_torch"], r"cannot import torch: ModuleNotFoundError: No module named 'torch'"),
        (["--peer-python", "/bin/true"], r"--peer-python /bin/true: expected a Python interpreter"),
    ],
)
def test_options_that_cannot_work_are_one_line_before_anything_is_measured(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no_torch").write_text(f"#!{sys.executable}\nraise ModuleNotFoundError(\"No module named 'torch'\")\n")
    (tmp_path / "no_torch").chmod(0o755)
    assert harness.main(never, [flag.replace("FOLDER", str(tmp_path)) for flag in flags]) == harness.USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(says, line)


def test_all_benchmarks_stop_at_the_first_complaint_about_their_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--peer-python", "/no/such/python"])
    assert run_everything.run_all() == harness.USAGE
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_failing_program_is_named_with_the_end_of_its_errors() -> None:
    options = Options()
    with pytest.raises(harness.BenchmarkError, match="no_such_case"):
        harness.run_ranks("resilin", options, "no_such_case", [], ranks=2, timeout_s=30)


def test_recovery_figures_tell_programs_sides_and_parts_apart() -> None:
    in_place, restarted = recovery.IN_PLACE[0], recovery.RESTARTED[0]
    ours = [recovery.Recovery(total_ms=ms, strength_ms=ms * 3, detect_ms=ms / 2) for ms in range(1, 101)]
    theirs = [recovery.Recovery(total_ms=5000, strength_ms=5000)]
    figures = recovery._figures(
        {(in_place, "resilin"): ours, (restarted, "torch"): theirs}, {"resilin": [], "torch": []}
    )
    parts = figures["recovers in place, 2 workers, resilin"]
    assert {key: parts["total_ms"][key] for key in ("p50", "p95", "p100")} == {"p50": 50, "p95": 95, "p100": 100}
    assert set(parts) == {"total_ms", "strength_ms", "detect_ms"}
    assert figures["DistributedDataParallel, 2 workers, torch"]["total_ms"]["samples"] == [5000]
