"""Real `elastic-run` processes on this machine, ended with the test that started them."""

import signal
import socket
from pathlib import Path

import pytest
from launches import Launch


@pytest.fixture
def launch(tmp_path):
    """`launch(*args, **env)` starts an elastic-run in its own folder."""
    started: list[Launch] = []

    def start(*args: object, **env: str) -> Launch:
        folder = tmp_path / f"launch{len(started)}"
        folder.mkdir()
        started.append(Launch(folder, [str(arg) for arg in args], env))
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
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
