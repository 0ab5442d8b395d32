"""How fast are sixteen common models in training and inference, and what programs do to parameters by hand?"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.cases.models_wide import WIDE
from benchmarks.harness import Options, Report, Row
from benchmarks.parts.programs import BenchmarkError
from benchmarks.parts.taken import Taken

TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(32 << 30)}  # glibc gives no page back
ALONE = (), {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # compile in the process: a pool of others may never start
CAST = ("resnet18", "encoder", "vit")
QUICK = ("mlp", "graph")
UPDATES, COMPILED, JAX = "updates", "compiled", "tiny step"
ALL = "16 models, their training and inference, and updates by hand: geometric mean"
AGREE, AGREE_CAST = 2e-3, 5e-2  # how far, relatively, losses and outputs of both sides may lie apart
PROFILES = {  # of rows that two designs have not brought to their aim, taken with a clock around each part
    JAX: """The tiny step beside JAX: the products take an eighth of it and AdamW's pass a twentieth; the rest is what
Python does between native calls, a quarter of the step in the layers, a fifth in the loss, a third in backward, whose
walk is native, and a quarter in the optimizer. JAX runs one compiled function.""",
}
METHOD = """The same model texts, parameters and batches on both sides, whose first losses and outputs are compared;
AdamW; no_grad and eval in inference. Medians of {rounds} rounds of about {seconds:g} s for each figure, at least 3
samples of each; a process for each round, model and side, the sides in turn. PyTorch as it is, and (below the table, in
the first round) with {tuned}: glibc then keeps what is freed, as other allocators do. PyTorch's compiled step is taken
in the first round only: compiling takes longer than all else."""


def benchmark(options: Options) -> Report:
    """All models on each side, then those with autocast, updates by hand and the steps beside compiled ones."""
    rounds, seconds = (1, 0.0) if options.quick else (2, 0.15)
    taken = Taken(options, seconds=seconds)
    for number in range(rounds):
        for name, case, arguments in _runs(options.quick):
            for variant in _variants(options, number):
                with harness.progress(f"round {number + 1} of {rounds}: {name}, {variant}"):
                    measure = partial(_run, variant, options, case, [*arguments, "--seconds", str(seconds)])
                    taken.run(number, f"{name}/{variant}", measure, peer=variant != "resilin")
        _run_steps(options, taken, number, seconds)
    _check(taken)
    rows = _rows(taken, options, "torch")
    tuned = _rows(taken, options, "torch tuned")
    steps = _step_rows(taken)
    return Report(
        name="models_wide",
        question="Training and inference of common models, beside PyTorch with its defaults and with its memory kept.",
        method=METHOD.format(rounds=rounds, seconds=seconds, tuned=" ".join(f"`{k}={v}`" for k, v in TUNED.items())),
        rows=[*_mean(rows), *rows, *steps],
        notes=[*_tuned_table(tuned), *_summary(rows, tuned), *_profiles(steps), *_left_out(options), *taken.notes()],
        data={"samples_s": {name: [found["samples"] for found in taken.results(name)] for name in taken.names()}},
    )


def _variants(options: Options, number: int = 0) -> list[str]:
    """What is run in round `number`."""
    if not options.peer_python:
        return ["resilin"]
    return ["resilin", "torch"] if options.quick or number else ["resilin", "torch", "torch tuned"]


def _runs(quick: bool) -> Iterator[tuple[str, str, list[str]]]:
    """Name, case and arguments of what is measured on each side."""
    for model in QUICK if quick else WIDE:
        yield model, "models_wide", ["--model", model]
    for model in QUICK[:1] if quick else CAST:
        yield f"{model} bfloat16", "models_wide", ["--model", model, "--autocast"]
    yield UPDATES, "parameter_updates", ["--side", "64"] if quick else []


def _text(name: str) -> str:
    """What a row says of a run of that name."""
    model, _, cast = name.partition(" ")
    return "" if name == UPDATES else f"{WIDE[model].text}, {'bfloat16 autocast, ' if cast else ''}"


def _run(variant: str, options: Options, case: str, arguments: list[str]) -> dict[str, Any]:
    command = harness.case_command(variant.split()[0], options, case, arguments)
    environment = harness.environment(**(TUNED if variant == "torch tuned" else {}))
    output = harness.check_output(command, timeout_s=300, env=environment)
    return dict(json.loads(output.splitlines()[-1]))


def _run_steps(options: Options, taken: Taken, number: int, seconds: float) -> None:
    """The MLP's step beside PyTorch's compiler, the tiny one beside JAX."""
    length = ["--seconds", str(seconds * 3)]

    def ours(model: str) -> dict[str, Any]:
        return harness.run_ranks("resilin", options, "train_step", ["--model", model, *length], ranks=1)

    if options.peer_python and not options.quick and not number:
        more = ["--model", "mlp", "--fused", "--compile", *length]
        compiled = partial(harness.run_ranks, "torch", options, "train_step", more, ranks=1, place=lambda rank: ALONE)
        taken.run(number, f"{COMPILED}/resilin", partial(ours, "mlp"))
        taken.run(number, f"{COMPILED}/torch", compiled, peer=True)
    if options.jax_python:
        command = [options.jax_python, "-m", "benchmarks.peers.jax_step", *length]
        taken.run(number, f"{JAX}/resilin", partial(ours, "tiny"))
        taken.run(number, f"{JAX}/jax", lambda: _last_line(harness.check_output(command, timeout_s=300)), peer=True)


def _last_line(output: str) -> dict[str, Any]:
    return dict(json.loads(output.splitlines()[-1]))


def _check(taken: Taken) -> None:
    """BenchmarkError where the sides do not compute the same."""
    for name in taken.names():
        run, _, variant = name.rpartition("/")
        if not variant.startswith("torch") or run == COMPILED:
            continue
        within = AGREE_CAST if run.endswith("bfloat16") else AGREE
        for what in ("losses", "outputs"):
            ours, theirs = (taken.results(f"{run}/{side}")[0][what] for side in ("resilin", variant))
            if not all(math.isclose(a, b, rel_tol=within) for a, b in zip(ours, theirs, strict=True)):
                raise BenchmarkError(f"{run}: {what} of the sides differ: resilin {ours}, {variant} {theirs}")


def _rows(taken: Taken, options: Options, peer: str) -> list[Row]:
    rows = []
    for run, _, _ in _runs(options.quick):
        sides = {
            "resilin": taken.results(f"{run}/resilin"),
            "torch": taken.results(f"{run}/{peer}") if peer in _variants(options) else [],
        }
        for cell in sides["resilin"][0]["samples"]:
            samples = {side: [each for one in of for each in one["samples"][cell]] for side, of in sides.items() if of}
            rows.append(harness.timing_row(f"{_text(run)}{cell}", samples))
    return rows


def _step_rows(taken: Taken) -> list[Row]:
    rows = []
    for run, side, text, baseline in (
        (COMPILED, "torch", f"step of the {MODELS['mlp'].text}; PyTorch's by torch.compile, fused=True", "PyTorch"),
        (JAX, "jax", f"step of the {MODELS['tiny'].text}; beside JAX, compiled", "JAX"),
    ):
        samples = {"resilin": taken.samples(f"{run}/resilin"), "torch": taken.samples(f"{run}/{side}")}
        if all(samples.values()):
            row = harness.timing_row(text, samples)
            rows.append(Row(what=row.what, unit=row.unit, ours=row.ours, peer=row.peer, spread=row.spread,
                            baseline=baseline))  # fmt: skip
    return rows


def _ratio(row: Row) -> float:
    assert row.peer is not None
    return row.peer / row.ours


def _tuned_table(rows: list[Row]) -> list[str]:
    if not any(row.peer for row in rows):
        return []
    lines = ["Beside PyTorch that keeps its memory:", "", "| what | PyTorch, ms | ratio |", "|---|---|---|"]
    lines += [f"| {row.what} | {harness.figure(row.peer)} | {_ratio(row):.2f} |" for row in rows if row.peer]
    return ["\n".join(lines)]


def _summary(rows: list[Row], tuned: list[Row]) -> list[str]:
    """Geometric means, and the rows in which PyTorch is faster, the slowest first."""
    notes = []
    for name, of, least in (("PyTorch", rows, 1.0), ("PyTorch that keeps its memory", tuned, 0.95)):
        ratios = [(_ratio(row), row.what) for row in of if row.peer]
        if not ratios:
            continue
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in ratios))
        slower = [f"{what} {ratio:.2f}" for ratio, what in sorted(ratios) if ratio < least]
        below = f"Below {least:g}, {len(slower)} of {len(ratios)}: {', '.join(slower) or 'none'}."
        notes.append(f"Beside {name}: geometric mean of the ratios {mean:.2f}. {below}")
    return notes


def _mean(rows: list[Row]) -> list[Row]:
    """One row for all that are of models, autocast and updates: geometric means of the times on both sides."""
    if not rows or any(row.peer is None for row in rows):
        return []
    ours, peer = (
        math.exp(statistics.fmean(math.log(time) for time in times))
        for times in ([row.ours for row in rows], [row.peer for row in rows if row.peer is not None])
    )
    return [Row(what=ALL, unit=rows[0].unit, ours=ours, peer=peer)]


def _profiles(steps: list[Row]) -> list[str]:
    """Where the time of slower steps goes."""
    return [PROFILES[JAX] for row in steps if row.baseline == "JAX" and _ratio(row) < 1]


def _left_out(options: Options) -> list[str]:
    return [] if options.jax_python else ["Left out: the tiny step beside JAX, which needs `--jax-python PATH`."]


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True, jax=True))
