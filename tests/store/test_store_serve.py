"""`resilin store serve` as a program."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from resilin import store
from resilin.errors import UsageError
from resilin.store.memory import MemoryStore
from resilin.store.server import StoreServer
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S

PROGRAM = (
    "import argparse, sys\n"
    "from resilin.launcher import store\n"
    "parser = argparse.ArgumentParser()\n"
    "store.add_arguments(parser)\n"
    "sys.exit(store.run(parser.parse_args(sys.argv[1:])))\n"
)

DEAF_MAIN_THREAD = (
    "import signal, threading\n"
    "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"  # the only one that takes signals
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
)


@pytest.fixture
def serve():
    started = []

    def start(*arguments: str, program: str = PROGRAM) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", program, "serve", "--port", "0", *arguments]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        started.append(process)
        line = process.stdout.readline()
        return process, re.search(r"embedded://\S+", line)[0]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal(serve, number):
    process, url = serve()
    with store.connect(url) as client:
        client.watch("", lambda events: None)
        client.put("a", b"1")
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_another_thread_gets_ends_it(serve, number):
    process, url = serve(program=DEAF_MAIN_THREAD + PROGRAM)
    with store.connect(url) as client:
        client.put("a", b"1")  # by now the main thread waits
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == 0


def test_several_signals_at_once_are_one_end(serve):
    process, _ = serve()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
    assert process.wait(PATIENCE_S) == 0


def test_the_secret_comes_from_a_file(serve, tmp_path):
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    _, url = serve("--secret-file", str(tmp_path / "secret"))
    with store.connect(url, secret=SECRET) as client:
        assert client.put("a", b"") == 2


def test_an_unreadable_or_empty_secret_file_is_one_clear_error(tmp_path):
    (tmp_path / "empty").write_text("\n")
    for name, complaint in (("missing", "cannot be read"), ("empty", "the file is empty")):
        command = [sys.executable, "-c", PROGRAM, "serve", "--secret-file", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
        assert complaint in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("192.0.2.1", "Cannot assign requested address; .*: serve the store on the host that has it"),
        ("h" * 70, "label .*; choose another address"),  # a part of a name has at most 63 characters
    ],
)
def test_the_advice_follows_why_it_cannot_listen(host, says):
    with MemoryStore() as state, pytest.raises(UsageError, match=f"cannot listen on {host}:4: .*{says}"):
        StoreServer(state, host, 4, SECRET)


def test_the_advice_for_a_port_in_use_is_about_the_port():
    in_use = pytest.raises(UsageError, match="Address already in use; stop what uses the port")
    with MemoryStore() as state, StoreServer(state) as server, in_use:
        StoreServer(state, port=server.port)
