"""What every benchmark shares: options, the machine's stamp, running one side, medians, the table, the results file."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.parts import programs
from benchmarks.parts.programs import BenchmarkError, Program
from resilin.errors import UsageError
from resilin.launcher import flag_types
from resilin.testing import ports

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
USAGE = 2  # the exit code for options with which nothing can be measured


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line of every benchmark."""

    peer_python: str | None = None
    """Interpreter of an environment with PyTorch; None: measure resilin alone."""
    json_path: Path | None = None
    """Where to write the figures and samples as JSON."""
    quick: bool = False
    """A smoke run: a few samples, and no results file."""
    resume: Path | None = None
    """Where a benchmark of many runs keeps what they found; None: nowhere."""
    jax_python: str | None = None
    """Interpreter of an environment with JAX, for a benchmark that compares with it; None: it is left out."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `ours` and `peer` are in `unit`; less is better."""

    what: str
    unit: str
    ours: float
    peer: float | None = None
    spread: str = ""
    """How the samples of ours scatter, in words."""
    baseline: str = "PyTorch"


@dataclass(kw_only=True)
class Report:
    """What one benchmark found out."""

    name: str
    question: str
    method: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ours: str = "resilin"
    """What the column of our own figures is called."""
    data: dict[str, Any] = field(default_factory=dict)
    """Machine-readable figures: what `--json` writes, beside the stamp."""


# ---------------------------------------------------------------------------------------------- running

Benchmark = Callable[[Options], Report]


def main(benchmark: Benchmark, argv: Sequence[str] | None = None, *, resumable: bool = False, jax: bool = False) -> int:
    """Parse the command line, run `benchmark`, print and write what it found. 1: it failed, 2: wrong usage.

    `resumable`: it keeps what its runs found (see `taken`), so it has --resume. `jax`: it has --jax-python.
    """
    module = sys.modules[benchmark.__module__]
    parser = argparse.ArgumentParser(description=module.__doc__)
    parser.add_argument("--peer-python", metavar="PATH", help="run PyTorch beside resilin, with this interpreter")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write figures and samples to FILE")
    parser.add_argument("--quick", action="store_true", help="a smoke run: few samples, no results file")
    if resumable:
        what = "keep each run's figures in FILE as soon as they are known, and go on from those that are there"
        parser.add_argument("--resume", metavar="FILE", type=Path, help=what)
    if jax:
        parser.add_argument("--jax-python", metavar="PATH", help="run JAX beside resilin, with this interpreter")
    args = parser.parse_args(argv)
    options = Options(
        peer_python=args.peer_python,
        json_path=args.json,
        quick=args.quick,
        resume=args.resume if resumable else None,
        jax_python=args.jax_python if jax else None,
    )
    try:
        _check(options)
        report = benchmark(options)
    except UsageError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return USAGE
    except BenchmarkError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    finish(report, options)
    return 0


def _check(options: Options) -> None:
    """UsageError when the run could not be carried to its end: measuring takes minutes."""
    if options.json_path:
        flag_types.output_file("--json", str(options.json_path))
    if options.peer_python:
        peer_versions(options.peer_python)


@cache
def peer_versions(python: str) -> tuple[str, str]:
    """The versions of interpreter `python` and of its PyTorch. UsageError when it lacks either."""
    code = "import platform, torch; print(platform.python_version(), torch.__version__)"
    try:
        ours, torch = check_output([python, "-c", code], timeout_s=60).split()
    except OSError as error:
        raise UsageError(f"--peer-python {python}: cannot be run: {error.strerror}") from None
    except BenchmarkError as error:
        raise UsageError(f"--peer-python {python}: cannot import torch: {str(error).splitlines()[-1]}") from None
    except ValueError:
        raise UsageError(f"--peer-python {python}: expected a Python interpreter, it does not print versions") from None
    return ours, torch


def finish(report: Report, options: Options) -> None:
    """Write the JSON file if asked for, and the results file unless this was a smoke run; then print the report."""
    stamp = machine(options.peer_python)
    text = render(report, stamp, options)
    if options.json_path:
        options.json_path.write_text(
            json.dumps({"name": report.name, "machine": stamp, **report.data}, indent=1) + "\n"
        )
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{report.name}.md").write_text(text + "\n", encoding="utf-8")
    print(text)  # last: whoever reads may have left


def sides(options: Options) -> list[str]:
    """The libraries to measure, in the order of one round."""
    return ["resilin", "torch"] if options.peer_python else ["resilin"]


def interpreter(side: str, options: Options) -> str:
    """The interpreter that has library `side`."""
    if side == "resilin":
        return sys.executable
    assert options.peer_python is not None
    return options.peer_python


def case_command(side: str, options: Options, case: str, arguments: Sequence[str]) -> list[str]:
    """The command of one process that runs `case` on library `side`."""
    module = "benchmarks.ours" if side == "resilin" else "benchmarks.peers.pytorch"
    return [interpreter(side, options), "-m", module, case, *arguments]


def launcher(side: str, options: Options) -> str:
    """`elastic-run` or `torchrun`, as installed beside the interpreter."""
    name = "elastic-run" if side == "resilin" else "torchrun"
    path = Path(interpreter(side, options)).parent / name
    if not path.exists():
        raise BenchmarkError(f"{path} does not exist: install {side} into that environment")
    return str(path)


def environment(**extra: str) -> dict[str, str]:
    """What every measured process gets: this repository on its path and one thread per library of its own."""
    ours = ("RESILIN_", "PET_", "TORCHELASTIC_", "PYTHONDONTWRITEBYTECODE")  # the last slows every import of a checkout
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **extra}


def check_output(command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> str:
    """The standard output of `command`; BenchmarkError with the end of its errors when it fails."""
    try:
        done = subprocess.run(
            command, env=env or environment(), cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{' '.join(command)}: not done after {timeout_s:.0f} s") from None
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise BenchmarkError(f"{' '.join(command)}: exit code {done.returncode}\n{tail}")
    return done.stdout


Place = tuple[Sequence[str], Mapping[str, str]]  # words before a rank's command, variables beside those of all


def run_ranks(
    side: str,
    options: Options,
    case: str,
    arguments: Sequence[str],
    *,
    ranks: int,
    timeout_s: float = 300,
    master: str = "127.0.0.1",
    place: Callable[[int], Place] = lambda rank: ((), {}),
) -> dict[str, Any]:
    """Start `ranks` processes of `case` without a launcher; the JSON that rank 0 printed.

    Both libraries read the same variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). `place` puts a rank on another
    host, whose way to rank 0 is `master`.
    """
    command = case_command(side, options, case, arguments)
    with ports.held() as (port,):
        started = []
        for rank in range(ranks):
            prefix, more = place(rank)
            env = environment(
                RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                MASTER_ADDR=master, MASTER_PORT=str(port), **more,
            )  # fmt: skip
            started.append(Program([*prefix, *command], env))
        output = programs.run_together(started, cwd=ROOT, timeout_s=timeout_s)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Says on the terminal what is being measured; silent when the output goes to a file."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------- figures


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest sample that at least `percent` % of all samples do not exceed."""
    return sorted(samples)[max(0, math.ceil(len(samples) * percent / 100) - 1)]


def spread(samples: Sequence[float], scale: float = 1.0) -> str:
    """Tenth and ninetieth percentile and the number of samples."""
    low, high = percentile(samples, 10) * scale, percentile(samples, 90) * scale
    return f"{figure(low)} to {figure(high)} of {len(samples)}"


def figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = 2 - int(f"{abs(value):e}".partition("e")[2])
    return f"{value:,.{max(0, digits)}f}" if digits >= 0 else f"{round(value, digits):,.0f}"


def timing_row(what: str, samples: Mapping[str, Sequence[float]], *, unit: str = "ms") -> Row:
    """A row of medians from samples in seconds per side."""
    scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
    peer = samples.get("torch")
    return Row(
        what=what,
        unit=unit,
        ours=statistics.median(samples["resilin"]) * scale,
        peer=statistics.median(peer) * scale if peer else None,
        spread=spread(samples["resilin"], scale),
    )


# ---------------------------------------------------------------------------------------------- the report


def render(report: Report, stamp: Mapping[str, str], options: Options) -> str:
    """The report as Markdown."""
    peer = any(row.peer is not None for row in report.rows)
    other = next((row.baseline for row in report.rows if row.peer is not None), "PyTorch")
    head = f"| what | unit | {report.ours} | 10 to 90 % of samples |{f' {other} | ratio |' if peer else ''}"
    lines = [f"# {report.name}", "", report.question, "", head, "|---" * (head.count("|") - 1) + "|"]
    for row in report.rows:
        cells = [row.what, row.unit, figure(row.ours), row.spread]
        if peer:
            cells += [figure(row.peer), f"{row.peer / row.ours:.2f}"] if row.peer is not None else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    if peer:
        lines += ["", f"Ratio: {other} divided by {report.ours}; above 1, {report.ours} is faster or smaller."]
    lines += ["", report.method, *[f"\n{note}" for note in report.notes]]
    command = f"python -m benchmarks.{report.name}" + (" --peer-python PATH" if options.peer_python else "")
    lines += ["", f"Command: `{command}`", "", "| machine | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in stamp.items()]
    return "\n".join(lines)


def machine(peer_python: str | None) -> dict[str, str]:
    """What the figures depend on: date, processor, cores, memory, kernel, versions, and how busy the machine was."""
    memory_kib = int(_first(r"MemTotal:\s*(\d+)", "/proc/meminfo") or 0)
    stamp = {
        "date": date.today().isoformat(),
        "processor": _first(r"model name\s*:\s*(.+)", "/proc/cpuinfo") or platform.processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory_kib / 2**20:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "resilin": f"{metadata.version('resilin')} {commit()}".strip(),
        "numpy": metadata.version("numpy"),
        **{name: value for name, value in sorted(os.environ.items()) if name.startswith("OPENBLAS_")},
        "load average": "{:.2f}, {:.2f}, {:.2f}".format(*os.getloadavg()),
    }
    if peer_python:
        python, torch = peer_versions(peer_python)
        stamp["PyTorch"] = f"{torch} on Python {python}"
    return stamp


def _first(pattern: str, path: str) -> str:
    match = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    return match.group(1).strip() if match else ""


def commit() -> str:
    """The commit measured, marked when the working tree differs from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return f"({done.stdout.strip()})" if done.returncode == 0 else ""
