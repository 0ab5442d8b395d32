"""Real `elastic-run` processes on this machine, ended with the test that started them."""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from launches import Launch

from resilin.testing import ports


@pytest.fixture
def launch(tmp_path):
    """`launch(*args, **env)` starts an elastic-run in its own folder. within: the command that runs it.

    hasty: lines of Python that change its limits before it begins.
    """
    started: list[Launch] = []

    def start(*args: object, within: Sequence[str] = (), hasty: str = "", **env: str) -> Launch:
        folder = tmp_path / f"launch{len(started)}"
        folder.mkdir()
        code = (
            f"import sys\n{hasty}\nfrom resilin.launcher import elastic_run\nsys.exit(elastic_run.main(sys.argv[1:]))"
        )
        launcher = {"launcher": ("-c", code)} if hasty else {}
        started.append(Launch(folder, [str(arg) for arg in args], env, within, **launcher))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.signal(signal.SIGKILL)
            one.process.wait()


@pytest.fixture
def script(tmp_path):
    """`script(text)` writes a Python program and returns its path."""

    def write(text: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def steps(tmp_path):
    """A folder for `inplace_worker.py`."""
    folder = tmp_path / "steps"
    folder.mkdir()
    return folder


@pytest.fixture
def free_port():
    """A port of loopback that nobody else gets while the test runs."""
    with ports.held() as (port,):
        yield port
