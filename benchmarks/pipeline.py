"""What do pipelines cost: bubbles, a GPT in two stages, one hop, what is kept alive, and the proof of a plan?"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cases.pipeline import HOP_BYTES, MICROBATCHES, SLEEP_S
from benchmarks.harness import Options, Report, Row
from benchmarks.parts import disturbed
from benchmarks.parts.taken import Taken
from resilin.pipeline.plan.bubble import formula
from resilin.pipeline.plan.generate import SCHEDULES, generate
from resilin.pipeline.plan.simulate import simulate
from resilin.pipeline.plan.validate import validate

RANKS, COUNTS = (2, 4), (4, 8, 16)
STAGES = 2  # workers of the job whose stages are killed
KEPT = ("1F1B", "ZBVZeroBubble")  # the schedules whose activations are counted
GPT = "GPT 4 layers, width 256, 128 tokens, batch 8 in 8 micro-batches, 2 stages"
# what is run: library, number of processes
RUNS = {
    "ours": ("resilin", 2),
    "ours alone": ("resilin", 1),
    "torch": ("torch", 2),
    "torch alone": ("torch", 1),
}
METHOD = """Bubble: stages that sleep {sleep:g} ms in each F, I and W (so 20 ms in a B); the share of a step in which a
rank does not sleep, a median of 3 steps; beside it the plan's own, simulated with hops that take none. GPT: AdamW,
zero_grad, 8 micro-batches, 1F1B, a process and a thread for each stage, a core each; the cut that makes the stages most
equal, by the measured times of its parts; {rounds} rounds in turn of about {seconds:g} s. "Alone": the loop over the
same micro-batches in one process on one thread. PyTorch: torch.distributed.pipelining, gloo, cut by its own times.
Hop: half of the way of {hop} MiB there and back, between two processes of one host on a core each, header and all.
Alive: the most bytes that an allocator ever had in use, less what one micro-batch alone computes with (its peak less
what it keeps), divided by what a micro-batch keeps in one stage, and by the stages of a rank. Proof: one call of
`validate` on Schedule1F1B's plan. Killed: `elastic-run --standalone` with a small ElasticPipeline in 2 stages, one of
which a third process kills with SIGKILL, {kills} times at random moments; from just before the `kill` call to the
first action of the survivor in a later world, which has both stages then."""


def benchmark(options: Options) -> Report:
    """All of the table."""
    rounds, seconds, kills = (1, 0.5, 3) if options.quick else (3, 3.0, 20)
    taken = Taken(options, seconds=seconds)
    runs = {name: run for name, run in RUNS.items() if run[0] in harness.sides(options)}
    for number, (run, (side, ranks)) in product(range(rounds), runs.items()):
        with harness.progress(f"round {number + 1} of {rounds}: GPT, {run}"):

            def measure(side: str = side, ranks: int = ranks) -> dict[str, Any]:
                return harness.run_ranks(
                    side, options, "pipeline", ["--what", "gpt", "--seconds", str(seconds)], ranks=ranks
                )

            taken.run(number, f"gpt/{run}", measure, peer=side != "resilin")
    hop = _case(options, "hop", 2)
    pauses = _pauses(options, kills)
    return Report(
        name="pipeline",
        question="Bubbles of schedules, a GPT in two stages, one hop, what a rank keeps alive, the proof of a plan.",
        method=METHOD.format(sleep=SLEEP_S * 1e3, rounds=rounds, seconds=seconds, hop=HOP_BYTES >> 20, kills=kills),
        rows=[
            *taken.rows(GPT, "gpt/ours", {"gpt/torch": ""}),
            *taken.rows("the same micro-batches in one process", "gpt/ours alone", {"gpt/torch alone": ""}),
            harness.timing_row("one hop of 1 MiB", {"resilin": hop["samples"]}, unit="us"),
            *_killed(pauses),
            _proof(options),
            *_bubbles(options),
            *_kept(options),
        ],
        notes=[_speed_up(taken, run) for run in ("ours", "torch") if run in runs] + taken.notes(),
        data={
            "samples_s": {run: taken.samples(f"gpt/{run}") for run in runs},
            "hop_s": hop["samples"],
            "pauses_ms": pauses,
        },
    )


def _case(options: Options, what: str, ranks: int, *more: str) -> dict[str, Any]:
    return harness.run_ranks("resilin", options, "pipeline", ["--what", what, *more], ranks=ranks)


def _speed_up(taken: Taken, run: str) -> str:
    """How much quicker two stages are than one process, and what the balance of the cut allows."""
    pair, alone = taken.samples(f"gpt/{run}"), taken.samples(f"gpt/{run} alone")
    found = [result["balance"] for result in taken.results(f"gpt/{run}")]
    if not pair or not alone or not found:
        return f"{run}: not measured."
    quicker = harness.percentile(alone, 50) / harness.percentile(pair, 50)
    balance = sum(found) / len(found)
    limit = 2 * MICROBATCHES / (MICROBATCHES + 1) * balance
    name = "resilin" if run == "ours" else "PyTorch"
    return (
        f"{name}: two stages are {quicker:.2f} times as fast as one process. The stages are {balance:.1%} balanced, so "
        f"{limit:.2f} is the limit of 1F1B with {MICROBATCHES} micro-batches."
    )


def _proof(options: Options) -> Row:
    plan, samples = generate("1F1B", 16, 64), []
    for _ in range(3 if options.quick else 20):
        begin = time.perf_counter()
        validate(plan)
        samples.append(time.perf_counter() - begin)
    return harness.timing_row("proof of a plan: 16 ranks, 64 micro-batches", {"resilin": samples})


def _pauses(options: Options, kills: int) -> list[float]:
    """Milliseconds from the kill of a stage to the next action, of one job."""
    case = harness.case_command("resilin", options, "recovery", ["--stages"])[2:]
    flags = ["--standalone", "--nproc-per-node", str(STAGES), "--max-restarts", "1000", "-m"]
    moments, found = random.Random(0), []
    with tempfile.TemporaryDirectory(prefix="resilin-pipeline-") as folder:
        node = disturbed.Node("resilin", options, Path(folder), flags, case)
        try:
            for number in range(kills):
                with harness.progress(f"kill {number + 1} of {kills}"):
                    found.append(_pause(node, number % STAGES, moments.uniform(0, 0.1)))
        finally:
            node.close()
    return found


def _pause(node: disturbed.Node, rank: int, delay_s: float) -> float:
    """Kill that rank of a settled world."""
    victim = node.wait("a settled world", lambda: node.settled(STAGES, range(STAGES)))[rank]
    time.sleep(delay_s)  # not a wait for something: it picks the moment within a step
    begin = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)

    def action() -> disturbed.Event | None:
        return node.first("action", victim.generation, lambda event: event.pid != victim.pid)

    return (node.wait("an action of the survivor", action).at - begin) * 1e3


def _killed(pauses: list[float]) -> list[Row]:
    return [
        Row(
            what=f"a stage killed: pause to the next action, {'median' if percent == 50 else f'p{percent}'}",
            unit="ms",
            ours=harness.percentile(pauses, percent),
            spread=harness.spread(pauses),
        )
        for percent in (50, 95)
    ]


def _bubbles(options: Options) -> list[Row]:
    rows = []
    ranks_of, counts = ((2,), (4,)) if options.quick else (RANKS, COUNTS)
    for schedule, ranks, count in product(SCHEDULES.values(), ranks_of, counts):
        if schedule.name == "DualPipeV" and count < 2 * ranks:
            continue  # it takes two micro-batches for each rank
        with harness.progress(f"bubble: {schedule.name}, {ranks} ranks, {count} micro-batches"):
            more = [
                "--schedule",
                schedule.name,
                "--per-rank",
                str(schedule.stages_per_rank),
                "--microbatches",
                str(count),
            ]
            found = _case(options, "bubble", ranks, *more)
        plan = generate(schedule.name, ranks, count)
        length = max(end[-1] for end in simulate(plan).ends if end)
        expected = 1 - 3 * count * schedule.stages_per_rank / length
        by_formula = formula(schedule.name, ranks, count)
        words = (
            f" (plan: {100 * expected:.1f}" + ("" if by_formula is None else f", formula: {100 * by_formula:.1f}") + ")"
        )
        what = f"bubble: {schedule.name}, {ranks} ranks, {count} micro-batches{words}"
        rows.append(Row(what=what, unit="%", ours=100 * found["bubble"]))
    return rows


def _kept(options: Options) -> list[Row]:
    rows = []
    ranks_of, counts = ((2,), (4,)) if options.quick else (RANKS, COUNTS)
    for name, ranks, count in product(KEPT, ranks_of, counts):
        per_rank = SCHEDULES[name].stages_per_rank
        with harness.progress(f"alive: {name}, {ranks} ranks, {count} micro-batches"):
            more = ["--schedule", name, "--per-rank", str(per_rank), "--microbatches", str(count)]
            found = _case(options, "memory", ranks, *more)
        most = max(found["microbatches"]) / per_rank
        rows.append(Row(what=f"alive: {name}, {ranks} ranks, {count} micro-batches", unit="micro-batches", ours=most))
    return rows


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True))
