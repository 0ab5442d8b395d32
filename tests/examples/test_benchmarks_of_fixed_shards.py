"""The benchmarks that put a step in fixed shards beside one without."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from benchmarks import harness, shard_mode, zero_shards
from benchmarks.harness import Options

Run = dict[str, str]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """What is run; a step takes 10 ms, and 1 ms more for each shard."""
    runs: list[Run] = []

    def run_ranks(side: str, options: Options, case: str, arguments: Sequence[str], *, ranks: int) -> Any:
        flags = dict(zip(arguments[::2], arguments[1::2], strict=True))
        runs.append({"side": side, "case": case, "ranks": str(ranks), **flags})
        return {"samples": [0.010 + 0.001 * int(flags["--shards"])]}

    monkeypatch.setattr(harness, "run_ranks", run_ranks)
    return runs


@pytest.mark.parametrize(
    ("module", "ways", "first"),
    [
        (shard_mode, 4 * 4, {"--model": "cnn", "--shards": "0"}),
        (zero_shards, 2 * 2 * 3, {"--model": "gpt", "--shards": "0", "--stage": "2"}),
    ],
)
def test_every_way_is_run_with_its_flags(module: ModuleType, ways: int, first: Run, runs: list[Run]) -> None:
    module.benchmark(Options(quick=True))
    assert runs[0] == {"side": "resilin", "case": "train_step", "ranks": "2", "--seconds": "0.5", **first}
    assert len(runs) == len({tuple(sorted(run.items())) for run in runs}) == ways


@pytest.mark.parametrize(("module", "baseline"), [(shard_mode, "plain mode"), (zero_shards, "without shards")])
def test_rows_put_each_number_of_shards_beside_none(module: ModuleType, baseline: str, runs: list[Run]) -> None:
    report = module.benchmark(Options(quick=True))
    assert report.name == module.__name__.rpartition(".")[2]
    assert len(report.data["samples_s"]) == len(runs)
    assert len(report.rows) == len(runs) - sum(run["--shards"] == "0" for run in runs)
    for row in report.rows:
        shards = int(row.what.split()[-2])
        assert (row.unit, row.baseline) == ("ms", baseline)
        assert row.ours == pytest.approx(10 + shards)
        assert row.peer == pytest.approx(10)
