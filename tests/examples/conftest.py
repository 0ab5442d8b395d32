"""Runs programs of the repository as its users do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs this interpreter with the given arguments from the repository's root."""

    def run(*arguments: str, timeout_s: float = 60, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RESILIN_", "PET_", "TORCHELASTIC_"))}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**kept, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture
def elastic_run(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Runs `elastic-run --standalone` with the given arguments, which must succeed; its standard output."""
    launcher = str(Path(sys.executable).parent / "elastic-run")

    def run(*arguments: str, workers: int = 2) -> str:
        done = run_python(launcher, "--standalone", "--nproc-per-node", str(workers), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
