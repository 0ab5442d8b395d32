"""How much disk does the library take, with everything it requires?"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Options, Report, Row

CLOSURE = Path(__file__).parent / "cases" / "closure.py"

METHOD = """Sum of the sizes of all files that pip recorded for the distribution and for every distribution that it
requires, directly or not, extras and pip, setuptools and wheel left out; compiled bytecode included. resilin: `pip
install .` into a fresh virtual environment. PyTorch: as installed in the peer's environment."""


def benchmark(options: Options) -> Report:
    """`pip install .` into a fresh environment, then the bytes of the distribution and all it requires."""
    with tempfile.TemporaryDirectory(prefix="resilin-size-") as folder:
        python = _install(Path(folder) / "env")
        sizes = {"resilin": _closure(python, "resilin")}
        if options.peer_python:
            sizes["torch"] = _closure(options.peer_python, "torch")
    ours, peer = sizes["resilin"], sizes.get("torch")
    rows = [
        Row(
            what="with everything it requires",
            unit="MB",
            ours=sum(ours.values()),
            peer=sum(peer.values()) if peer else None,
        ),
        Row(what="itself alone", unit="MB", ours=ours["resilin"], peer=peer["torch"] if peer else None),
    ]
    return Report(
        name="install_size",
        question="Bytes on disk after installation, in MB (10^6 bytes).",
        method=METHOD,
        rows=rows,
        notes=[
            f"{side}: "
            + ", ".join(f"{name} {harness.figure(size)}" for name, size in sorted(parts.items(), key=_by_size))
            for side, parts in sizes.items()
        ],
        data={"megabytes": sizes},
    )


def _by_size(item: tuple[str, float]) -> float:
    return -item[1]


def _install(env: Path) -> str:
    """A fresh virtual environment with this repository installed; its interpreter."""
    with harness.progress("installing into a fresh environment"):
        harness.check_output([sys.executable, "-m", "venv", str(env)], timeout_s=120)
        python = str(env / "bin" / "python")
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(harness.ROOT)]
        harness.check_output(command, timeout_s=600)
    return python


def _closure(python: str, distribution: str) -> dict[str, float]:
    done = subprocess.run(
        [python, str(CLOSURE), distribution], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise harness.BenchmarkError(f"{python}: {done.stderr.strip()}")
    return {name: size / 1e6 for name, size in json.loads(done.stdout).items()}


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
