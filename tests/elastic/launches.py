"""Starts real `elastic-run` processes and looks at what is running."""

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import own_words
import pytest

from resilin.launcher import main
from resilin.testing.patience import PATIENCE_S

LOOK_S = 0.01
COMMAND_S = 0.2  # between two looks that each ask an agent, which has other things to do
INPLACE = Path(__file__).parent / "inplace_worker.py"


class Launch:
    """One running `elastic-run`; its output goes to files, so it never blocks."""

    def __init__(
        self,
        folder: Path,
        args: list[str],
        env: dict[str, str],
        within: Sequence[str] = (),
        launcher: Sequence[str] = ("-m", "resilin.launcher.elastic_run"),
    ) -> None:
        self.out_path, self.err_path = folder / "launcher.out", folder / "launcher.err"
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            command = [*within, sys.executable, *launcher, *args]
            env = {**os.environ, "PYTHONUNBUFFERED": "", **env}  # unbuffered a print is two writes: lines would mix
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=env, cwd=folder)

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        """Without what it says of jobs that other tests have killed, which it clears."""
        return own_words.of(self.err_path.read_text())

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"elastic-run did not end within {timeout_s} s\n{self.out}\n{self.err}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def until(self, condition, timeout_s: float = PATIENCE_S, every_s: float = LOOK_S):
        """Wait for `condition()` to be true while the launcher runs."""
        return until(condition, timeout_s, lambda: f"\n{self.out}\n{self.err}", self.process, every_s)


def until(condition, timeout_s: float = PATIENCE_S, story=lambda: "", process=None, every_s: float = LOOK_S):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        if process is not None and process.poll() is not None and not condition():
            pytest.fail(f"elastic-run ended with {process.returncode} before it happened{story()}")
        time.sleep(every_s)  # polls other processes, which cannot tell us
    pytest.fail(f"did not happen within {timeout_s} s{story()}")


def resilin(*args: object) -> subprocess.CompletedProcess[str]:
    """Run a subcommand of `resilin` in this process, which starts in no time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main([str(arg) for arg in args])
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def processes_with(marker: str) -> list[int]:
    """Pids of living processes whose command line or environment holds `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    continue
                text = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
                if marker.encode() in text:
                    found.append(int(entry.name))
    return found
