"""A process that is asked where it is says so, and lives on."""

import os
import subprocess
import sys
import time

import pytest

from resilin._base import stacks
from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc
LOOKS = 1000
PROGRAM = """
import sys, threading
from pathlib import Path
from resilin._base import stacks


def live():
    while True:
        Path("/dev/null").write_text("alive")


def wait():
    lock = threading.Lock()
    lock.acquire()
    print("ready", flush=True)
    lock.acquire()


stacks.watch(Path(sys.argv[1]))
threading.Thread(target=live, daemon=True).start()
wait()
"""


def test_looks_harm_no_process_whose_other_threads_run_meanwhile(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    told = tmp_path / stacks.FILE
    with subprocess.Popen([sys.executable, program, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            assert stacks.answers(process.pid)
            for _ in range(LOOKS):
                os.kill(process.pid, stacks.SIGNAL)
                time.sleep(0.001)
            assert process.poll() is None
            end = time.monotonic() + PATIENCE_S
            while not (text := told.read_text()).endswith("in <module>\n") and time.monotonic() < end:
                time.sleep(0.01)
        finally:
            process.kill()
    assert stacks.place(text) == f"{program}:16 in wait"


def written(*files):
    """As faulthandler writes a stack, the innermost frame first."""
    return "Stack (most recent call first):\n" + "".join(f'  File "{file}", line 3 in f\n' for file in files)


OURS = "/x/resilin"
CALL = (
    f"{OURS}/distributed/backends/shm/collectives.py",
    f"{OURS}/distributed/api/collectives.py",
    f"{OURS}/distributed/group/collective_queue.py",
    "/home/train.py",
)


@pytest.mark.parametrize(
    ("files", "strays"),
    [
        (CALL, False),
        ((f"{OURS}/_base/clock.py", *CALL), False),
        (("/usr/lib/python3.11/threading.py", f"{OURS}/distributed/work/work.py", *CALL), False),
        (("/home/train.py", *CALL), True),
        (
            ("/usr/lib/python3.11/threading.py", "/home/hooks.py", f"{OURS}/distributed/wire/call_phases.py", *CALL),
            True,
        ),
        (("/home/hooks.py", f"{OURS}/distributed/group/p2p_transport.py", "/home/train.py"), True),
        (("/home/train.py",), False),
        ((f"{OURS}/nn/modules/linear.py", "/home/train.py"), False),
        ((), False),
    ],
)
def test_who_is_in_a_call_and_from_there_in_other_code_strays(files, strays):
    assert stacks.strays(written(*files)) == strays
