"""The benchmark of the caching allocator: what it runs, what its tables say, and that its two sides are two."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from benchmarks import allocator, harness
from benchmarks.cases.allocator import HELD, SIZES, TRAINED
from benchmarks.harness import Options

STATS = {"peak": 3 << 20, "reserved": 64 << 20, "hits": 3, "misses": 1}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run; with malloc all takes twice as long, with one that keeps memory three times."""
    commands: list[list[str]] = []

    def check_output(command: Sequence[str], *, timeout_s: float, env: Mapping[str, str]) -> str:
        commands.append([*command][command.index("allocator") + 1 :])
        slower = 1
        if "--malloc" in command:
            slower = 3 if "MALLOC_TRIM_THRESHOLD_" in env else 2
        figures: dict[str, Any] = {"samples": [2e-3 * slower], "faults": slower - 1}
        if "--model" not in command:
            return json.dumps({"found": {"tensors": figures}})
        found = {command[command.index("--model") + 1]: {**figures, "peak_bytes": slower << 20}}
        return json.dumps({"found": found, "stats": STATS, "after": {**STATS, "reserved": 0}})

    monkeypatch.setattr(harness, "check_output", check_output)
    return commands


def test_each_side_measures_all(commands: list[list[str]]) -> None:
    allocator.benchmark(Options(quick=True))
    expected = [[*(["--model", model] if model else [])] for model in (*TRAINED, None)]
    assert commands == [
        ["--seconds", "0.01", *one, *side] for one in expected for side in ([], ["--malloc"], ["--malloc"])
    ]  # the sides in turn


def test_rows_put_arenas_beside_malloc_and_tables_say_what_has_no_ratio(commands: list[list[str]]) -> None:
    report = allocator.benchmark(Options(quick=True))
    rows = {row.what: (row.unit, row.ours, row.peer, row.baseline) for row in report.rows}
    assert rows["gpt"] == ("ms", 2.0, 4.0, "malloc")
    assert rows["gpt: memory"] == ("MiB", 1.0, 2.0, "malloc")
    assert rows["tensors"] == ("ms", 2.0, 4.0, "malloc")
    faults, stats = report.notes
    assert "| gpt | 0 | 1.00 | 2.00 | 6,000 | 3.00 |" in faults.splitlines()
    assert "| tensors | 0 | 1.00 | 2.00 | 6,000 |  |" in faults.splitlines()
    assert "| gpt | 3.0 MiB | 64.0 MiB | 75.0% | 0.0 MiB |" in stats.splitlines()
    assert "arenas | 10 to 90 % of samples | malloc | ratio |" in harness.render(report, {}, Options())


@pytest.mark.slow
@pytest.mark.parametrize("side", [[], ["--malloc"]], ids=["arenas", "malloc"])
def test_a_side_has_the_memory_that_it_is_named_for(
    side: list[str], run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_python("-m", "benchmarks.ours", "allocator", "--model", "mlp", "--seconds", "0.01", *side)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (figures,) = result["found"].values()
    assert figures["samples"]
    assert (result["stats"]["reserved"] > 0) is (side == [])
    assert result["after"]["reserved"] == 0


@pytest.mark.slow
def test_tensors_of_every_size_come_and_go(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python("-m", "benchmarks.ours", "allocator", "--seconds", "0.001")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["found"]
    assert [*found] == [f"{size}, {how}" for size in SIZES for how in ("one at a time", f"{HELD} at once")]
