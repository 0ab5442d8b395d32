"""What does a GPU that is there for minutes say? Everything worth knowing, the most valuable first, in eight minutes.

    python -m benchmarks.gpu_report --prepare cubins                   # before, without a GPU: compiles the kernels
    python -m benchmarks.gpu_report --out figures.jsonl --cubins cubins --peer-python /path/to/env/bin/python
    python -m benchmarks.gpu_report --out figures.jsonl --stand-in     # what it does on the host, in miniature

Each figure is a line of JSON in the file as soon as it is known, with its stage, library and second; a stage that fails
or passes its time ends with a line that says so, and the next begins. Exit code 1 when one did.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Options
from resilin.core.kernels import check

MINUTES = 8.0  # that a run may take
LEAST_S = 3.0  # below, a stage is not begun


@dataclass(frozen=True, kw_only=True)
class Step:
    """A part of the run: a case for each side, or tests."""

    name: str
    limit_s: float
    """It is ended after this time; the libraries share it."""
    case: str = ""
    """A stage of cases/gpu_figures.py."""
    tests: tuple[str, ...] = ()
    """What pytest is given, in place of a case."""
    small: tuple[str, ...] = ()
    """The tests on the stand-in."""


PLAN = (
    Step(name="machine", limit_s=30, case="machine"),
    Step(
        name="correct",
        limit_s=110,
        tests=("tests/gpu", "--deselect", "tests/gpu/test_groups_on_device.py", "-n", "4"),
        small=("tests/gpu/test_device_draws.py", "-k", "dropout_are_the_cpus"),
    ),
    Step(name="kernels", limit_s=70, case="kernels"),
    Step(name="steps", limit_s=110, case="steps"),
    Step(name="gpt2", limit_s=70, case="gpt2"),
    Step(
        name="ranks on one GPU",
        limit_s=60,
        tests=("tests/gpu/test_groups_on_device.py",),
        small=("tests/gpu/test_groups_on_device.py", "--collect-only"),
    ),
)
"""The most valuable first, so that a machine that is taken away loses the rest only."""


class Figures:
    """The file that figures go to, a line each, written through at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._begin = time.monotonic()

    def __enter__(self) -> Figures:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._begin

    def add(self, **fields: Any) -> None:
        """Write a line."""
        line = json.dumps({"at_s": round(self.elapsed_s, 1), **fields})
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def commands(step: Step, args: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """(library, command) of each process of a step, one after the other."""
    if step.tests:
        words = step.small if args.stand_in else (*step.tests, "-m", "gpu")
        yield "resilin", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        return
    options = Options(peer_python=args.peer_python)
    flags = [*(["--stand-in"] if args.stand_in else []), *(["--cubins", str(args.cubins)] if args.cubins else [])]
    for side in harness.sides(options):
        yield side, harness.case_command(side, options, "gpu_figures", [step.case, *flags])


def run_step(step: Step, args: argparse.Namespace, figures: Figures, limit_s: float) -> bool:
    """Whether all processes of a step ended well within the time."""
    good = True
    every = list(commands(step, args))
    for number, (library, command) in enumerate(every):
        share_s = max(limit_s / (len(every) - number), 0.1)
        begin = figures.elapsed_s
        ended = _run(step, library, command, figures, share_s)
        limit_s -= figures.elapsed_s - begin
        good = good and ended == "done"
        figures.add(stage=step.name, library=library, ended=ended, seconds=round(figures.elapsed_s - begin, 1))
    return good


def _run(step: Step, library: str, command: Sequence[str], figures: Figures, limit_s: float) -> str:
    """Pass the figures of one process on; gives "done", or how else it ended, with its last words."""
    env = harness.environment()
    out = subprocess.PIPE
    late = threading.Event()
    last: list[str] = []
    with subprocess.Popen(
        command, stdout=out, stderr=subprocess.STDOUT, text=True, cwd=harness.ROOT, env=env
    ) as process:

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            for line in process.stdout or ():
                figure = _figure_in(line)
                if figure is None:
                    last = [*last[-11:], line.rstrip()]
                else:
                    figures.add(stage=step.name, **figure)
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
    if step.tests and last:
        figures.add(stage=step.name, library=library, tests=last[-1])
    if late.is_set():
        return f"not done after {limit_s:.0f} s"
    return "done" if code == 0 else "\n".join([f"exit code {code}", *last])


def _figure_in(line: str) -> dict[str, Any] | None:
    if not line.startswith('{"figure"'):
        return None
    found: dict[str, Any] = json.loads(line)
    return found


def report(args: argparse.Namespace, plan: Sequence[Step] = PLAN) -> int:
    """Run the plan; 1 if a step failed, was late or found no time."""
    failed = 0
    with Figures(args.out) as figures:
        figures.add(stage="begin", commit=harness.commit(), minutes=args.minutes, stand_in=args.stand_in)
        for step in plan:
            if args.stages and step.name not in args.stages:
                continue
            left_s = args.minutes * 60 - figures.elapsed_s
            if left_s < LEAST_S:
                figures.add(stage=step.name, ended="no time was left")
                failed = 1
            elif not run_step(step, args, figures, min(step.limit_s, left_s)):
                failed = 1
        figures.add(stage="end", failed=bool(failed))
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_report", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_report.jsonl"), help="the file that figures are added to")
    parser.add_argument("--peer-python", metavar="PATH", help="run PyTorch beside resilin, with this interpreter")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="that the whole may take")
    parser.add_argument("--stages", nargs="*", metavar="NAME", help=f"of {', '.join(step.name for step in PLAN)}")
    parser.add_argument("--stand-in", action="store_true", help="in miniature, without a GPU")
    parser.add_argument("--cubins", type=Path, metavar="FOLDER", help="kernels from --prepare")
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="compile the kernels into FOLDER, and end")
    parser.add_argument("--architecture", default="sm_90", help="what --prepare compiles for")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.stages or ()) - {step.name for step in PLAN}):
        parser.error(f"--stages: there is no {', '.join(unknown)}")
    if args.prepare:
        print(f"{check.prepare(args.prepare, args.architecture)} kernels in {args.prepare}")
        return 0
    return report(args)


if __name__ == "__main__":
    sys.exit(main())
