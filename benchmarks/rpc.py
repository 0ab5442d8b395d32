"""How fast are remote calls between workers of one machine?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import harness
from benchmarks.harness import Options, Report, Row

MIB = 1 << 20
TIMEOUT_S = 120
ROUNDS = 3
KILLS = 10
SECRET = {"RESILIN_SECRET": "the secret of a benchmark"}
MANY = 64
READERS = 4

METHOD = """Two processes, a worker each; the caller's samples of {rounds} rounds, each round a new pair of processes
per side, the sides in turn; PyTorch uses TensorPipe. An echo is `rpc_sync` of a function that returns its argument, a
float32 tensor of that size; one way, the function returns None. "Both cores busy": two more processes compute all the
time. Over ZeroMQ and gRPC, which is TCP on loopback, tensors travel as bytes; "CURVE" and "TLS": encrypted, with keys
made of the job's secret; PyTorch encrypts nothing. Snapshots: of memory that cannot be lent, and another tensor of that
length comes back; two memcpy: the same bytes copied twice, in the caller alone. A backward: of a tensor of that size
that went to the other worker and came back ten times, in distributed autograd. 3000 outstanding calls are of a
function of two ints, made by one thread with `rpc_async`; "dropped": nobody looks at their futures, and one `rpc_sync`
ends the measurement; a row is the time for each call. A dead callee: from the signal that kills it to the error of each
of three pending calls, {kills} callees. A RemoteModule: `forward` of a linear layer of 16 by 16, with a batch of 1.
Steps of two owners: two threads of one process, each with an optimizer and parameters of its own, on one kernel thread
each. The share of a core that an idle worker uses is over 2 s. Published: from `rpc.publish` of 50 tensors until the
last reader has looked into each; memory that is new, or was published before and all of it written since; how long that
call takes, and a step that writes everything after it."""


@dataclass(frozen=True)
class Question:
    """One run of the case on one side."""

    what: str
    arguments: Sequence[str]
    unit: str = "us"
    p99: bool = False
    peer: bool = True
    """Whether PyTorch is asked, too; else it is compared with what it said to `like`."""
    like: str = ""
    p95: bool = False
    rounds: int = ROUNDS
    ranks: int = 2


SMALL, LARGE = "4,4096", f"{MIB},{16 * MIB},{100 * MIB}"
WAY = LARGE
QUESTIONS = [
    Question("echo", ("--part", "echo", "--sizes", SMALL), p99=True),
    Question("echo, both cores busy", ("--part", "echo", "--sizes", SMALL, "--busy", "2")),
    Question(
        "echo over ZeroMQ", ("--part", "echo", "--sizes", SMALL, "--transport", "zeromq"), peer=False, like="echo"
    ),
    Question("echo, lent", ("--part", "echo", "--sizes", LARGE)),
    Question("snapshots there and back", ("--part", "snapshots", "--sizes", LARGE)),
    Question(
        "one way over ZeroMQ",
        ("--part", "one way", "--sizes", WAY, "--transport", "zeromq", "--channel", "inline"),
        peer=False,
        like="one way",
    ),
    *(
        Question(
            f"one way over {name}",
            ("--part", "one way", "--sizes", WAY, "--transport", transport, "--channel", "inline", "--encrypt"),
            peer=False,
            like="one way",
        )
        for name, transport in (("ZeroMQ, CURVE", "zeromq"), ("gRPC, TLS", "grpc"))
    ),
    Question("one way", ("--part", "one way", "--sizes", WAY)),
    Question("a backward of 20 hops", ("--part", "backward", "--sizes", f"{SMALL},{MIB}"), unit="ms"),
    Question("3000 outstanding calls", ("--part", "outstanding")),
    Question("forward of a RemoteModule", ("--part", "module"), p99=True),
    Question("steps of 10 M parameters of two owners", ("--part", "steps"), unit="ms"),
    Question("a dead callee", ("--part", "dead"), unit="ms", p95=True, rounds=KILLS),
    Question("share of a core, idle", ("--part", "idle"), unit="s"),
    Question(
        f"500 MB published to {READERS} readers",
        ("--part", "published", "--sizes", str(500_000_000)),
        unit="ms",
        peer=False,
        ranks=1 + READERS,
    ),
]


def benchmark(options: Options) -> Report:
    """Every question, both sides in turn; then init_rpc of many workers, of resilin alone."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    notes: list[str] = []
    for question in QUESTIONS:
        samples = found.setdefault(question.what, {})
        rounds = 1 if options.quick else question.rounds
        for number in range(rounds):
            for side in harness.sides(options) if question.peer else ["resilin"]:
                with harness.progress(f"{question.what}, round {number + 1} of {rounds}: {side}"):
                    seconds = ["--seconds", "0.1" if options.quick else "0.5"]
                    said = harness.run_ranks(
                        side,
                        options,
                        "rpc",
                        [*question.arguments, *seconds],
                        ranks=question.ranks,
                        timeout_s=TIMEOUT_S,
                        place=lambda _, secret="--encrypt" in question.arguments: ((), SECRET if secret else {}),
                    )
                for kind, values in said["samples"].items():
                    samples.setdefault(kind, {}).setdefault(side, []).extend(values)
    many = harness.run_ranks("resilin", options, "rpc", ["--part", "init"], ranks=8 if options.quick else MANY)
    rows = [row for question in QUESTIONS for row in _rows(question, found)]
    rows.append(
        Row(what=f"init_rpc of {8 if options.quick else MANY} workers", unit="s", ours=many["samples"]["init"][0])
    )
    return Report(
        name="rpc",
        question="Remote calls between workers on this machine.",
        method=METHOD.format(rounds=1 if options.quick else ROUNDS, kills=KILLS),
        rows=rows,
        notes=notes,
        data={"samples": found, "init_s": many["samples"]["init"]},
    )


def _rows(question: Question, found: dict[str, dict[str, dict[str, list[float]]]]) -> list[Row]:
    rows = []
    for kind, by_side in found[question.what].items():
        compared = dict(by_side)
        if question.like and "torch" in found[question.like].get(kind, {}):
            compared["torch"] = found[question.like][kind]["torch"]
        label = f"{question.what}, {_label(kind)}"
        rows.append(harness.timing_row(label, compared, unit=question.unit))
        for part in (99,) * question.p99 + (95,) * question.p95:
            rows.append(_tail(label, part, question.unit, by_side["resilin"], compared.get("torch")))
    return rows


def _tail(label: str, part: int, unit: str, ours: list[float], peer: list[float] | None) -> Row:
    each = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    return Row(
        what=f"{label}, p{part}",
        unit=unit,
        ours=harness.percentile(ours, part) * each,
        peer=harness.percentile(peer, part) * each if peer else None,
    )


def _label(kind: str) -> str:
    before, _, last = kind.rpartition(" ")
    if before:
        return f"{before} {_label(last)}"
    if not kind.isdigit():
        return kind
    size = int(kind)
    return f"{size // MIB} MiB" if size >= MIB else f"{size} B"


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
