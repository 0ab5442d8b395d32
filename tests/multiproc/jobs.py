"""A program of these tests under `elastic-run`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from resilin._base import env

TIMEOUT_S = 60


def launch(
    worker: Path, folder: Path, workers: int, *arguments: str, restarts: int = 9
) -> subprocess.CompletedProcess[str]:
    """Run `worker FOLDER ARGUMENTS...` with so many workers; they commit to the ledger FOLDER/ledger."""
    return subprocess.run(
        [
            Path(sys.executable).with_name("elastic-run"),
            "--standalone",
            f"--nproc-per-node={workers}",
            f"--max-restarts={restarts}",
            worker,
            folder,
            *arguments,
        ],
        env=env.snapshot({"RESILIN_LEDGER": str(folder / "ledger")}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def alone(worker: Path, folder: Path, *arguments: str) -> None:
    """Run it as one process, without a launcher."""
    subprocess.run([sys.executable, worker, folder, *arguments], check=True, timeout=TIMEOUT_S, capture_output=True)
