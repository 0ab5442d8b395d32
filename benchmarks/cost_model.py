"""Does the model by which ranks choose a schedule predict what calls take?"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from resilin.distributed.wire.cost_model import Link

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1 KiB": KIB, "64 KiB": 64 * KIB, "1 MiB": MIB, "25 MiB": 25 * MIB}
RANKS = (2, 3, 4, 8)
FITTED = (2, 4)  # numbers of ranks that the constants are fitted to; the others are predicted
COSTS = ("latency", "message", "byte", "combine")
CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")

METHOD = """Median over {rounds} rounds of the rank that a call takes longest, new processes for each round, one thread
per process, a barrier before each call. The constants of each model are fitted (least squares of relative errors) to
the rows of 2 and 4 ranks; rows of 3 and 8 ranks are predictions. Ranks beyond the number of cores take turns: what the
model says is multiplied by ranks / cores. Bytes cost more where all ranks' buffers do not fit the last cache. TCP:
loopback, whose bytes are copied by the same cores; the rows are the data phase of one schedule, and "agreement" is a
barrier. Shared memory: bytes read and written per rank, and two barriers; where ranks outnumber the cores they sleep in
them, and each rank has to be woken once a call."""

Place = tuple[int, str, int]  # ranks, schedule or collective, bytes
Measured = dict[Place, list[float]]


def benchmark(options: Options) -> Report:
    """Every schedule over TCP and four collectives in shared memory, four sizes, 2 to 8 ranks."""
    rounds, seconds = (1, 0.02) if options.quick else (3, 0.15)
    rows: list[Row] = []
    notes: list[str] = []
    for transport in ("tcp", "shm"):
        measured: Measured = {}
        for number in range(rounds):
            for ranks in RANKS:
                with harness.progress(f"{transport}, round {number + 1} of {rounds}: {ranks} ranks"):
                    _collect(measured, _run(options, transport, ranks, seconds), ranks)
        of_costs = _tcp_costs if transport == "tcp" else _shm_costs
        predicted, constants = _fit({place: statistics.median(taken) for place, taken in measured.items()}, of_costs)
        rows += [_row(transport, place, taken, predicted[place]) for place, taken in measured.items()]
        notes.append(f"{transport}: {constants}. {_errors(measured, predicted)}")
    return Report(
        name="cost_model",
        question="What calls take between processes on this machine, beside what the cost model says.",
        method=METHOD.format(rounds=rounds),
        rows=rows,
        notes=notes,
    )


def _run(options: Options, transport: str, ranks: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    with tempfile.TemporaryDirectory() as folder:
        sizes = ",".join(map(str, SIZES.values()))
        arguments = ["--transport", transport, "--meet", f"{folder}/meet", "--sizes", sizes, "--seconds", str(seconds)]
        found = harness.run_ranks("resilin", options, "cost_model", arguments, ranks=ranks)
    samples: dict[str, dict[str, list[float]]] = found["samples"]
    return samples


def _collect(measured: Measured, samples: dict[str, dict[str, list[float]]], ranks: int) -> None:
    for name, by_size in samples.items():
        for size, taken in by_size.items():
            measured.setdefault((ranks, name, int(size)), []).extend(taken)


def _tcp_costs(ranks: int, name: str, size: int) -> dict[str, float]:
    """How often each constant counts: the formulas are linear in them."""
    counts = {}
    for cost in COSTS:
        link = Link(**{other: float(other == cost) for other in COSTS})
        counts[cost] = link.agreement(ranks) if name == "barrier" else getattr(link, name)(ranks, size)
    return counts


def _shm_costs(ranks: int, name: str, size: int) -> dict[str, float]:
    """A rank's bytes, read and written, and its barriers."""
    if name == "barrier":
        return {"barrier": 1.0, "byte": 0.0}
    others = (ranks - 1) / ranks
    touched = {
        "all_reduce": 2.0,  # a slice of 1/P of all buffers, and its sum to all
        "broadcast": 2.0,
        "all_gather": 2.0,
        "reduce_scatter": 1.0 + 1 / ranks,
    }
    return {"barrier": 2.0, "byte": size * touched[name] * (others if name == "broadcast" else 1.0)}


def _fit(
    taken: Mapping[Place, float], of_costs: Callable[[int, str, int], dict[str, float]]
) -> tuple[dict[Place, float], str]:
    """Predictions for every place, and the constants in words. Constants below zero are taken for nothing."""
    counts = {place: _weighed(place, of_costs(*place)) for place in taken}
    fitted = [place for place in taken if place[0] in FITTED]
    names = sorted({name for place in fitted for name in counts[place]})
    while True:
        matrix = np.array([[counts[place].get(name, 0.0) / taken[place] for name in names] for place in fitted])
        solution = np.linalg.lstsq(matrix, np.ones(len(fitted)), rcond=None)[0]
        if (solution >= 0).all():
            break
        names.pop(int(solution.argmin()))
    constants = dict(zip(names, map(float, solution), strict=True))
    predicted = {place: sum(constants.get(k, 0.0) * v for k, v in counts[place].items()) for place in taken}
    return predicted, ", ".join(_spelled(name, constant) for name, constant in constants.items())


def _weighed(place: Place, counts: dict[str, float]) -> dict[str, float]:
    """The counts as this machine feels them: ranks that take turns, bytes that come from memory."""
    ranks, _, size = place
    turns = max(1.0, ranks / len(os.sched_getaffinity(0)))
    far = CACHE.exists() and ranks * size > int(CACHE.read_text().strip().removesuffix("K")) * KIB
    felt = {f"{k} from memory" if far and k in ("byte", "combine") else k: v * turns for k, v in counts.items()}
    if turns > 1 and felt.pop("barrier", 0.0):
        felt["wake"] = float(ranks)
    return felt


def _spelled(name: str, constant: float) -> str:
    per_byte = name.startswith(("byte", "combine"))
    return f"{name} {constant * 1e9:.3g} ns" if per_byte else f"{name} {constant * 1e6:.3g} us"


def _errors(measured: Measured, predicted: Mapping[Place, float]) -> str:
    off = {place: abs(predicted[place] / statistics.median(taken) - 1) for place, taken in measured.items()}
    fitted = [error for place, error in off.items() if place[0] in FITTED]
    new = [error for place, error in off.items() if place[0] not in FITTED]
    return (
        f"Median error of the rows fitted {100 * statistics.median(fitted):.0f} %, "
        f"of those predicted {100 * statistics.median(new):.0f} % (largest {100 * max(new):.0f} %)"
    )


def _row(transport: str, place: Place, taken: list[float], predicted: float) -> Row:
    ranks, name, size = place
    label = next((label for label, nbytes in SIZES.items() if nbytes == size), "")
    what = f"{transport}, {ranks} ranks, {'agreement' if name == 'barrier' else name} {label}".rstrip()
    scale, unit = (1e3, "ms") if size > MIB else (1e6, "us")
    return Row(
        what=what,
        unit=unit,
        ours=statistics.median(taken) * scale,
        peer=predicted * scale,
        spread=harness.spread(taken, scale),
        baseline="model",
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
