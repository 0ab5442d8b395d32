"""Another user of this machine, who attacks: what he tries runs as him, with nothing of the rights of these tests.

Becoming another user needs root. There it is the user `resilin-stranger`, whom `.ci/run` makes for the time it runs;
where nobody has made one it is `nobody`. Elsewhere the tests that ask for him are skipped.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from resilin.testing.patience import PATIENCE_S

NAME = "resilin-stranger"  # as in .ci/run
WHY_NOT = f"becoming another user needs root: .ci/run, run by root, plays the attacks of the user {NAME}"

# He may not enter the folders where Python or resilin lie, so what his program needs is loaded before it becomes his.
_PROGRAM = """
import codecs, contextlib, fcntl, json, os, pathlib, select, signal, socket, stat, subprocess, sys, tempfile, traceback
[codecs.lookup(name) for name in ("ascii", "utf-8", "idna", "latin-1")]
{loads}
os.setgroups([]); os.setgid({gid}); os.setuid({uid}); os.umask(0)
os.chdir("/")
for name in [name for name in os.environ if name.startswith("RESILIN_") or name in ("XDG_RUNTIME_DIR", "TMPDIR")]:
    del os.environ[name]
os.environ["HOME"] = "/nonexistent"
{program}
"""


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(NAME)
    except KeyError:
        return pwd.getpwuid(65534)


UID = _account().pw_uid
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason=WHY_NOT)


class OtherUser:
    """Runs programs as user `uid`."""

    def __init__(self) -> None:
        found = _account()
        self.uid, self.gid, self.name = found.pw_uid, found.pw_gid, found.pw_name

    def command(self, program: str, *arguments: object, loads: str = "") -> list[str]:
        """What runs `program`, Python with some modules of the library, as him. loads: imports what else it needs."""
        text = _PROGRAM.format(loads=loads, uid=self.uid, gid=self.gid, program=program)
        return [sys.executable, "-c", text, *map(str, arguments)]

    def run(self, program: str, *arguments: object, loads: str = "") -> list[str]:
        """The lines that `program` prints; it must end with 0."""
        command = self.command(program, *arguments, loads=loads)
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()

    @contextmanager
    def running(self, program: str, *arguments: object, loads: str = "") -> Iterator[subprocess.Popen[str]]:
        """`program`, from when it has printed its first line until the block ends; then its standard input ends."""
        command = self.command(program, *arguments, loads=loads)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline(), f"it ended with {process.wait()}"
            yield process
            process.communicate(timeout=PATIENCE_S)

    def own(self, path: str | os.PathLike[str]) -> None:
        """Give him the file or link at `path`, as if he had made it."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)
