"""What does each communication hook send, what does it cost, and how well does training go on with it?"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.cases import comm_hooks as case
from benchmarks.harness import Options, Report, Row
from benchmarks.parts.taken import Taken

RANKS, STEPS = 2, 300
PLAIN = next(iter(case.WAYS))
POWER_SGD = [PLAIN, *(way for way in case.WAYS if way.startswith("PowerSGD"))]


@dataclass(frozen=True)
class Setting:
    """What is trained, and in which ways."""

    model: str
    optimizer: str
    ways: Sequence[str]
    schedule: str = "constant"
    warmup: int = 30
    peer: bool = False
    """Whether PyTorch's PowerSGD is run beside ours."""

    @property
    def text(self) -> str:
        """What its rows begin with."""
        model = {"gpt": "GPT"}.get(self.model, self.model)
        rate = "" if self.schedule == "constant" else f" with a {self.schedule}, plain for {self.warmup} steps"
        return f"{model}, {self.optimizer}{rate}"


SETTINGS = [
    Setting("gpt", "SGD", POWER_SGD, peer=True),
    Setting("gpt", "AdamW", list(case.WAYS), peer=True),
    Setting("gpt", "AdamW", POWER_SGD, "cosine", warmup=100),
    Setting("gpt", "AdamW", POWER_SGD, "cosine", warmup=150, peer=True),
    Setting("digits", "AdamW", list(case.WAYS)),
]
BOTH = [setting for setting in SETTINGS if setting.peer]

METHOD = """Two processes with one thread each over shared memory; SGD at {rate} with momentum 0.9 or AdamW at 2e-3;
{steps} steps from the same start on the same batches, of which the first 30 average plainly (DiLoCo: none of them).
With a cosine: the learning rate rises for {rise} steps and falls to a tenth of 2e-3, and the first 100 or 150 steps
average plainly. Bytes: what a rank sends in a step over a ring, after warm-up, as counted by `stats()["traffic"]`.
Time: median of a step on rank 0 after warm-up; over shared memory nothing is saved by sending less, so it shows what
compression computes. Loss: of held-out data after the last step, the mean of the ranks. GPT: {layers} layers, width
{width}, {context} characters, batch {gpt} per rank; digits: an MLP 64-256-128-10, batch {digits} per rank."""


def benchmark(options: Options) -> Report:
    """Every way of communicating with AdamW, on both models; PowerSGD with SGD and a schedule, also PyTorch's."""
    steps = 24 if options.quick else STEPS
    taken = Taken(options, steps=steps)
    for side in harness.sides(options):
        for setting in SETTINGS if side == "resilin" else BOTH:
            for way in setting.ways if side == "resilin" else POWER_SGD:
                with harness.progress(f"{setting.text}: {way}, {side}"):
                    measure = partial(_measure, side, options, setting, way, steps)
                    taken.run(0, _name(side, setting, way), measure, peer=side != "resilin")
    sizes = {setting.model: taken.results(_name("resilin", setting, PLAIN))[0]["parameters"] for setting in SETTINGS}
    return Report(
        name="comm_hooks",
        question="Communication hooks and averagers: bytes, time and loss beside plain averaging.",
        method=METHOD.format(
            steps=steps,
            rise=case.RATE_WARMUP,
            rate=case.SGD_RATE,
            layers=case.LAYERS,
            width=case.WIDTH,
            context=case.CONTEXT,
            **case.BATCH,
        ),
        rows=[row for setting in SETTINGS for row in _rows(taken, setting)],
        notes=[
            f"Parameters: GPT {sizes['gpt']:,}, digits {sizes['digits']:,}.",
            *(["\n".join([_HEAD, *_beside_peer(taken)])] if options.peer_python else []),
            *taken.notes(),
        ],
        data={"results": {name: taken.results(name) for name in taken.names()}},
    )


def _name(side: str, setting: Setting, way: str) -> str:
    return f"{side}: {setting.text}: {way}"


def _measure(side: str, options: Options, setting: Setting, way: str, steps: int) -> dict[str, Any]:
    warmup = max(2, setting.warmup * steps // STEPS)
    arguments = ["--model", setting.model, "--way", way, "--optimizer", setting.optimizer.lower()]
    arguments += ["--schedule", setting.schedule, "--steps", str(steps), "--warmup", str(warmup)]
    return harness.run_ranks(side, options, "comm_hooks", arguments, ranks=RANKS)


_HEAD = """| held-out loss, nats | resilin | beside plain | PyTorch | beside plain |
|---|---|---|---|---|"""


def _beside_peer(taken: Taken) -> Iterator[str]:
    """PowerSGD's loss beside that of plain averaging, in both libraries."""
    for setting in BOTH:
        losses = {
            (side, way): [result["loss"] for result in taken.results(_name(side, setting, way))]
            for side in ("resilin", "torch")
            for way in POWER_SGD
        }
        for way in POWER_SGD:
            cells = []
            for side in ("resilin", "torch"):
                plain, loss = losses[side, PLAIN], losses[side, way]
                cells.append(f"{loss[0]:.3f}" if loss else "")
                cells.append(f"{100 * (loss[0] / plain[0] - 1):+.1f} %" if loss and plain and way != PLAIN else "")
            yield f"| {' | '.join([f'{setting.text}: {way}', *cells])} |"


def _rows(taken: Taken, setting: Setting) -> list[Row]:
    """Bytes, loss and time of each way; the peer is plain averaging."""
    rows = []
    for what, unit, figure in (
        ("bytes per step", "KiB", lambda result: result["wire_bytes"] / 1024),
        ("held-out loss", "nats", lambda result: result["loss"]),
        ("step", "ms", lambda result: statistics.median(result["samples"]) * 1e3),
    ):
        found = {way: taken.results(_name("resilin", setting, way))[0] for way in setting.ways}
        rows += [
            Row(
                what=f"{setting.text}, {what}: {way}",
                unit=unit,
                ours=figure(found[way]),
                peer=figure(found[PLAIN]),
                spread=harness.spread(found[way]["samples"], 1e3) if what == "step" else "",
                baseline=PLAIN,
            )
            for way in setting.ways
            if way != PLAIN
        ]
    return rows


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True))
