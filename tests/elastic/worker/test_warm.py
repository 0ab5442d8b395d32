"""A warm spare becomes the worker it is told to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_agent import FakeAgent

from resilin._base import env
from resilin.elastic import control

TIMEOUT_S = 30


def start_spare(agent: FakeAgent, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    descriptor = agent.worker_end.fileno()
    spare = subprocess.Popen(
        [sys.executable, "-m", "resilin.elastic.warm"],
        pass_fds=[descriptor],
        cwd=cwd,
        env=env.snapshot({control.ENV_FD: str(descriptor)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    agent.worker_end.close()
    assert agent.expect(control.Ready) == control.Ready(pid=spare.pid)
    return spare


SCRIPT = """
import os, sys, helper
print(__name__, sys.argv[1:], os.environ["FLAVOUR"], os.environ["RESILIN_CONTROL_FD"].isdigit(), helper.NAME)
print("to stderr", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_a_spare_runs_its_program_with_its_arguments_environment_and_log_files(tmp_path: Path, as_module: bool) -> None:
    (tmp_path / "prog.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("NAME = 'imported from beside the script'")
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("before\n")
    agent = FakeAgent()
    spare = start_spare(agent, tmp_path)
    program = "prog" if as_module else str(tmp_path / "prog.py")
    agent.send(
        control.Start(
            argv=(program, "--lr", "0.1"),
            env={"FLAVOUR": "vanilla", "OMP_NUM_THREADS": "1"},
            module=as_module,
            stdout=str(out),
            stderr=str(err),
        )
    )
    assert spare.communicate(timeout=TIMEOUT_S) == (b"", b"")
    assert spare.returncode == 7
    told = "__main__ ['--lr', '0.1'] vanilla True imported from beside the script"
    assert out.read_text() == f"before\n{told}\n"
    assert err.read_text() == "to stderr\n"
    agent.close()


def test_a_spare_that_nobody_needs_ends_quietly() -> None:
    agent = FakeAgent()
    spare = start_spare(agent)
    agent.close()
    assert spare.communicate(timeout=TIMEOUT_S) == (b"", b"")
    assert spare.returncode == 0


def test_a_spare_without_an_agent_says_so() -> None:
    variables = env.snapshot()
    variables.pop(control.ENV_FD, None)
    outcome = subprocess.run(
        [sys.executable, "-m", "resilin.elastic.warm"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert outcome.returncode == 1
    assert "a warm spare is started by an agent: RESILIN_CONTROL_FD is not set" in outcome.stderr
