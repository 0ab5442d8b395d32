"""The table of single operations: which cases it runs, in which order, and what its rows and notes say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks import harness, op_table
from benchmarks.harness import Options
from benchmarks.parts.programs import BenchmarkError

PEER = Options(peer_python="/peer/python")


class Runs:
    """What is run. PyTorch takes twice as long for `x + y`, a quarter as long for `x.sum()`; it lacks the third."""

    def __init__(self) -> None:
        self.cases: list[tuple[str, str, str, str]] = []
        self.ends = ""

    def check_output(self, command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> str:
        words = [*command][command.index("-m") + 1 :]
        side = "torch" if words[0] == "benchmarks.peers.pytorch" else "resilin"
        options = dict(zip(words[2::2], words[3::2], strict=True))
        group, size, dtype = options["--group"], options["--size"], options["--dtype"]
        self.cases.append((side, dtype, size, group))
        if side == "torch" and size == self.ends:
            raise BenchmarkError("torch: it was ended")
        slower, faster = (2e-6, 2.5e-7) if side == "torch" else (1e-6, 1e-6)
        third = "TypeError: unknown" if side == "torch" else [1e-6]
        return json.dumps({"samples": {"x + y": [slower, 2 * slower], "x.sum()": [faster], "x.new()": third}})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(harness, "check_output", runs.check_output)
    monkeypatch.setattr(harness, "machine", lambda python: {"date": "2026-01-02"})
    return runs


def test_sides_take_turns_and_the_largest_tensors_of_float32_come_after_the_smaller_ones(runs: Runs) -> None:
    op_table.benchmark(PEER)
    assert [side for side, *_ in runs.cases] == ["resilin", "torch"] * (len(runs.cases) // 2)
    one_round = runs.cases[: len(runs.cases) // op_table.ROUNDS]
    assert runs.cases == one_round * op_table.ROUNDS
    sizes = [int(size) for _, dtype, size, _ in one_round if dtype == "float32"]
    assert sizes == sorted(sizes)
    assert {dtype for _, dtype, *_ in runs.cases} == {"float32", "int64", "float64", "float16", "bfloat16"}


def test_means_are_of_what_both_sides_have_and_slow_ones_are_named(runs: Runs) -> None:
    report = op_table.benchmark(PEER)
    for row in report.rows:
        assert row.peer is not None
        assert (round(row.ours, 6), round(row.peer, 6)) == (1.0, round(0.5**0.5, 6))
    assert report.rows[1].what == "float32 1000 flat: 2 expressions"
    shares, slow = report.notes[:2]
    assert "| float32 1000 flat | 1.12 | 50% | 50% | 50% |" in shares.splitlines()
    assert slow.startswith("0.25: ")
    assert slow.endswith("`x.sum()`")
    assert "torch refuses float32 1000 flat: x.new(): TypeError: unknown" in report.notes


def test_a_peer_that_ends_leaves_its_case_without_a_figure_beside(runs: Runs) -> None:
    runs.ends = "1000"
    report = op_table.benchmark(PEER)
    rows = {row.what: row for row in report.rows}
    assert rows["float32 1000 flat: 3 expressions"].peer is None
    assert rows["float32 100000 flat: 2 expressions"].peer is not None
    assert any(note.startswith("Without a figure: float32 1000 flat, torch") for note in report.notes)


def test_it_goes_on_where_it_was_ended(runs: Runs, tmp_path: Path) -> None:
    options = Options(peer_python="/peer/python", resume=tmp_path / "kept.json")
    first = op_table.benchmark(options)
    count = len(runs.cases)
    assert op_table.benchmark(options).rows == first.rows
    assert len(runs.cases) == count
