"""The benchmark of common models: what it runs, what its tables say, and that every model learns."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from benchmarks import harness, models_wide
from benchmarks.cases.models_wide import WIDE
from benchmarks.harness import Options
from benchmarks.parts.programs import BenchmarkError

PEER = Options(peer_python="/peer/python", jax_python="/jax/python")


class Runs:
    """What is run; PyTorch takes twice as long as resilin, half as long where its memory is kept, JAX as long."""

    def __init__(self) -> None:
        self.cases: list[tuple[str, ...]] = []
        self.losses = {"resilin": 2.0, "torch": 2.0}

    def check_output(self, command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> str:
        words = [*command][command.index("-m") + 1 :]
        if words[0] == "benchmarks.peers.jax_step":
            return json.dumps({"samples": [1e-3]})
        side = "torch" if words[0] == "benchmarks.peers.pytorch" else "resilin"
        kept = "MALLOC_MMAP_MAX_" in (env or {})
        self.cases.append((f"{side} tuned" if kept else side, *words[1:-2]))
        took = 1e-3 if side == "resilin" else 5e-4 if kept else 2e-3
        found = {"samples": {"a cell": [took]}, "losses": [self.losses[side]], "outputs": [1.0]}
        return "a line before\n" + json.dumps(found)

    def run_ranks(
        self, side: str, options: Options, case: str, arguments: Sequence[str], *, ranks: int, **place: Any
    ) -> Any:
        self.cases.append((side, case, *arguments[:-2]))
        return {"samples": [1e-3 if side == "resilin" else 3e-3]}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(harness, "check_output", runs.check_output)
    monkeypatch.setattr(harness, "run_ranks", runs.run_ranks)
    monkeypatch.setattr(harness, "machine", lambda python: {"date": "2026-01-02"})
    return runs


def test_every_model_runs_on_each_side_in_turn(runs: Runs) -> None:
    models_wide.benchmark(PEER)
    first = [case for case in runs.cases if case[1] == "models_wide" and "--autocast" not in case]
    sides = ("resilin", "torch", "torch tuned")
    rounds = (sides, sides[:2])  # memory that is kept is measured once: the whole is to end within minutes
    assert first == [
        (side, "models_wide", "--model", model) for in_round in rounds for model in WIDE for side in in_round
    ]


def test_rows_put_pytorch_beside_and_notes_tell_of_kept_memory_and_of_what_is_slower(runs: Runs) -> None:
    report = models_wide.benchmark(PEER)
    rows = {row.what: row for row in report.rows}
    assert (rows["ResNet-18, 64x64, a cell"].ours, rows["ResNet-18, 64x64, a cell"].peer) == (1.0, 2.0)
    assert "ViT, 65 tokens, width 192, bfloat16 autocast, a cell" in rows
    [compiled] = [row for text, row in rows.items() if "torch.compile" in text]
    assert (compiled.ours, compiled.peer) == (1.0, 3.0)
    [jax] = [row for text, row in rows.items() if "JAX" in text]
    assert (jax.ours, jax.peer, jax.baseline) == (1.0, 1.0, "JAX")
    tuned, plain, kept = report.notes
    assert "| ResNet-18, 64x64, a cell | 0.500 | 0.50 |" in tuned.splitlines()
    mean, count = rows[models_wide.ALL], len(rows) - 3  # less this row and the two beside compiled steps
    assert mean.peer is not None
    assert (round(mean.ours, 9), round(mean.peer, 9)) == (1.0, 2.0)
    assert plain.endswith(f"ratios 2.00. Below 1, 0 of {count}: none.")
    assert f"ratios 0.50. Below 0.95, {count} of {count}: " in kept
    assert "ResNet-18, 64x64, a cell 0.50" in kept


def test_a_run_without_peers_has_rows_of_its_own_and_says_what_it_leaves_out(runs: Runs) -> None:
    report = models_wide.benchmark(Options(quick=True))
    assert {side for side, *_ in runs.cases} == {"resilin"}
    assert all(row.peer is None for row in report.rows)
    assert report.notes == ["Left out: the tiny step beside JAX, which needs `--jax-python PATH`."]


def test_sides_that_compute_something_else_are_refused(runs: Runs) -> None:
    runs.losses["torch"] = 2.1
    with pytest.raises(BenchmarkError, match=r"resnet18: losses of the sides differ: resilin \[2.0\], torch \[2.1\]"):
        models_wide.benchmark(PEER)


@pytest.mark.slow
@pytest.mark.parametrize("model", WIDE)
def test_every_model_learns(model: str, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    only = ["--threads", "1", "--seconds", "0", "--samples", "1", "--cell", "training, batch 16"]
    done = run_python("-m", "benchmarks.ours", "models_wide", "--model", model, *only)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)["losses"]
    assert losses[-1] < losses[0] or model == "gan"  # whose two halves work against each other


@pytest.mark.slow
def test_updates_by_hand_are_timed(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python("-m", "benchmarks.ours", "parameter_updates", "--side", "8", "--seconds", "0")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["samples"]) == len(found["outputs"]) == 8
