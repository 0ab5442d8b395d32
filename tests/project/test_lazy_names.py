"""Names of resilin load on first use, from whichever threads come first."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import resilin

THREADS = """
import threading
import resilin as torch

errors = []
def use(name):
    try:
        eval(name, {"torch": torch})
    except BaseException as error:
        errors.append(f"{name}: {error!r}")

names = ["torch.nn.Linear(2, 2)", "torch.randn(3)", "torch.optim.SGD", "torch.data.DataLoader", "torch.ddp"]
threads = [threading.Thread(target=use, args=(name,)) for name in names]
for thread in threads:
    thread.start()
use("torch.data.Dataset")
for thread in threads:
    thread.join()
assert not errors, errors
"""

FORK = """
import os, threading, time
import resilin as torch

thread = threading.Thread(target=lambda: torch.nn)
thread.start()
time.sleep(0.02)  # amid the load
child = os.fork()
if child == 0:
    torch.nn.Linear(2, 2)
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
"""


def test_no_module_loads_another_by_attribute_which_would_wait_for_the_lock():
    source = Path(resilin.__file__).parent
    found = [path.name for path in source.rglob("*.py") if re.search(r"^from resilin import ", path.read_text(), re.M)]
    assert found == []


def check(program):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_threads_may_be_the_first_to_use_resilin_all_at_once():
    for _ in range(3):
        check(THREADS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_process_forked_while_another_thread_loads_a_package_can_load_it_too():
    check(FORK)
