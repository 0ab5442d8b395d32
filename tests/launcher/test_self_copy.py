"""Workers that descend from the launcher's own process, to save the start of interpreters, are none the wiser."""

import subprocess
import sys
from pathlib import Path

import extent
import own_words
import pytest

from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc
LOOKS = """
import resilin
import atexit, os, signal, sys, threading
assert ("resilin.distributed.group.process_group" in sys.modules) == (sys.argv[1] == "forked"), "not what this is about"
links = [f"/proc/self/fd/{fd}" for fd in range(20)]
files = [os.readlink(link).partition(":")[0] for link in links if os.path.islink(link)]
print(sys.path[0], sys.orig_argv[1:], open("/proc/self/comm").read(), threading.active_count(), sys.stdout, sys.stderr)
print(sys.flags, sys.warnoptions, [os.path.basename(file) for file in files][3:])
print(*(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)))
print(open("/proc/self/cmdline").read().rstrip("\\0").split("\\0")[-2:], os.environ["RANK"])
atexit.register(print, "at the end")
class Late:
    def __del__(self):
        print("torn down")
late = Late()
"""
ENDS = {
    "well": "",
    "a status": "sys.exit(3)",
    "words": "sys.exit('enough')",
    "an exception": "def f():\n    raise ValueError('wrong')\nf()",
    "Ctrl-C": "raise KeyboardInterrupt",
    "no reader": "raise BrokenPipeError('of its own')",
    "a thread": "threading.Timer(0.2, print, ['thread']).start()",
}


@pytest.fixture
def script(tmp_path):
    """`script(text)` writes a Python program and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def run(program: Path, launcher: list[str], *flags: str) -> tuple[int, str]:
    way = "spawned" if flags else "forked"
    command = [*launcher, "--standalone", "-q", *flags, str(program), way, "last"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=program.parent, check=False)
    told = own_words.of(done.stderr).partition("elastic-run: ")[0]  # what it says of the end has process numbers
    return done.returncode, f"{done.stdout}\n{told}".replace(way, "WAY")


@pytest.mark.parametrize("end", extent.short(ENDS, of=["a status", "Ctrl-C", "a thread"]))  # and an exception, below
def test_a_copy_of_the_launcher_is_a_fresh_interpreter_to_the_program_however_that_ends(script, end):
    program = script(f"{LOOKS}\n{ENDS[end]}\n")
    launcher = [sys.executable, "-m", "resilin.launcher.elastic_run"]
    forked, spawned = run(program, launcher), run(program, launcher, "--start-method", "spawn")
    assert forked == spawned
    assert "at the end\n" in forked[1]
    assert "torn down\n" in forked[1]


def test_the_command_that_is_installed_does_the_same(script):
    program = script(f"{LOOKS}\n{ENDS['an exception']}\n")
    launcher = [str(Path(sys.executable).with_name("elastic-run"))]
    forked, spawned = run(program, launcher), run(program, launcher, "--start-method", "spawn")
    assert forked == spawned
    assert forked[0] == 1


def test_a_launcher_that_was_started_in_another_way_starts_interpreters(script):
    program = script(
        "import resilin\nimport sys\n"
        "print(sys.flags.optimize, 'resilin.distributed.group.process_group' in sys.modules)\n"
    )
    command = [sys.executable, "-O", "-m", "resilin.launcher.elastic_run", "--standalone", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "0 True\n"


def test_the_spawner_is_a_process_of_its_own_name(script):
    program = script("import resilin\nimport os\nprint(open(f'/proc/{os.getppid()}/cmdline').read().strip(chr(0)))\n")
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", "--standalone", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "resilin-spawner\n"
