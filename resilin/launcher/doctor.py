"""`resilin doctor`: what this machine and installation can do, one line each, with what to do about what is missing."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resilin._base import host
from resilin._base import secret as job_secret
from resilin._base.clock import SYSTEM
from resilin.errors import StoreError, UsageError
from resilin.launcher import exit_codes, leftovers, output
from resilin.store.connect import connect, url_of, without_password

PROBE_TIMEOUT_S = 60.0
REACH_TIMEOUT_S = 3.0
_MIN_FILES = 1024  # each peer on the host costs a few descriptors
# PR_SET_PDEATHSIG still ends the workers then, but a process cannot leave that to its children
_KEPT = "no orphan stays behind, unless elastic-run and its resilin-spawner are both killed by SIGKILL"
_EXTRAS = ("cryptography", "cupy", "mpi4py", "s3fs")

# In a process of its own: the launcher must not load numpy.
_PROBE = """
import json, time
begin = time.perf_counter()
import resilin, resilin.core.tensor
took = time.perf_counter() - begin
import numpy
from resilin.core.machine import blas
from resilin.core.kernels import loader
print(json.dumps({
    "import_s": took, "numpy": numpy.__version__, "blas": blas.describe(),
    "kernels": loader.describe(), "native": loader.native is not None,
}))
"""

Level = Literal["ok", "note", "bad"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report. `bad` makes the command fail."""

    name: str
    text: str
    level: Level = "ok"
    code: int = exit_codes.FAILED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin doctor`."""
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="also try this store: embedded://host:port (or just host:port), etcd://host:port or file:///folder",
    )


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 when none is bad."""
    code = exit_codes.OK
    for finding in findings(args.endpoint):
        mark = {"ok": "ok  ", "note": "note", "bad": "BAD "}[finding.level]
        output.show(f"{mark} {finding.name:<12} {finding.text}")
        if finding.level == "bad":
            code = code or finding.code
    return code


def findings(endpoint: str | None) -> Iterator[Finding]:
    """All findings, cheapest first."""
    version = importlib.metadata.version("resilin")
    yield Finding(name="resilin", text=f"{version} at {Path(__file__).parent.parent}")
    yield Finding(name="python", text=f"{platform.python_version()} at {sys.executable}")
    yield Finding(name="machine", text=f"{platform.platform()}, {host.cpu_count()} CPUs for this process")
    yield from _core()
    yield _packages()
    yield _memory_files()
    yield _open_files()
    yield Finding(name="host id", text=f"{host.host_id()} (equal: shared memory; network namespaces count)")
    yield _spawner()
    yield _leftovers()
    if endpoint:
        yield _store(endpoint)


def _core() -> Iterator[Finding]:
    probe = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        yield Finding(name="import", text=f"`import resilin` took more than {PROBE_TIMEOUT_S:g} s", level="bad")
        return
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding(name="import", text=f"`import resilin` failed: {last}", level="bad")
        return
    facts = json.loads(done.stdout.splitlines()[-1])
    yield Finding(name="import", text=f"`import resilin` takes {facts['import_s'] * 1e3:.0f} ms")
    yield Finding(name="numpy", text=f"{facts['numpy']}, {facts['blas']}")
    yield Finding(name="kernels", text=facts["kernels"], level="ok" if facts["native"] else "note")


def _packages() -> Finding:
    here = [f"grpcio {importlib.metadata.version('grpcio')}"]
    here += [name for name in _EXTRAS if importlib.util.find_spec(name) is not None]
    missing = [name for name in _EXTRAS if importlib.util.find_spec(name) is None]
    tail = f"; not installed (optional): {', '.join(missing)}" if missing else ""
    return Finding(name="packages", text=", ".join(here) + tail)


def _memory_files() -> Finding:
    try:
        fd = os.memfd_create("resilin-doctor")
    except (OSError, AttributeError) as error:
        text = f"memfd_create is refused ({error}): ranks of one host will copy through sockets"
        return Finding(name="memory", text=text, level="note")
    os.close(fd)
    free = shutil.disk_usage("/dev/shm").free >> 20 if os.path.isdir("/dev/shm") else 0
    return Finding(name="memory", text=f"memfd works: tensors are shared without /dev/shm (which has {free} MiB free)")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    level: Level = "ok" if soft >= _MIN_FILES else "note"
    tail = "" if soft >= _MIN_FILES else f"; raise it with `ulimit -n {_MIN_FILES}`"
    return Finding(name="files", text=f"{soft} open files allowed (hard limit {hard}){tail}", level=level)


def _spawner() -> Finding:
    path = f"/proc/self/task/{os.getpid()}/children"
    if os.path.exists(path):
        return Finding(name="processes", text=f"subreaper and child lists work: {_KEPT}")
    text = f"{path} is missing: orphans are searched in all of /proc; {_KEPT}"
    return Finding(name="processes", text=text, level="note")


def _leftovers() -> Finding:
    found = leftovers.clear()
    text = leftovers.told(found) if found else "none: no killed process has left a folder or a socket behind"
    return Finding(name="leftovers", text=text)


def _store(endpoint: str) -> Finding:
    begin = SYSTEM.monotonic()
    try:
        connect(url_of(endpoint), job_secret.from_environment(), REACH_TIMEOUT_S).close()
    except (StoreError, UsageError) as error:
        return Finding(name="store", text=str(error), level="bad", code=exit_codes.of(error))
    return Finding(
        name="store",
        text=f"{without_password(endpoint)} answers, {(SYSTEM.monotonic() - begin) * 1e3:.0f} ms to connect",
    )
