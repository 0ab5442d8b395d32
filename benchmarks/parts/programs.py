"""Runs the processes of one measurement: whatever becomes of them, they are gone afterwards, and it is told why."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from resilin._base.clock import SYSTEM

FOLLOW_S = 10.0  # once one has failed, the others have so long to say what they saw of it
STACKS_S = 5.0  # how long writing stacks may take
TOLD_LINES = 60


class BenchmarkError(RuntimeError):
    """A measured program failed; the message carries the end of what it printed."""


@dataclass(frozen=True)
class Program:
    """One process: its command, and all of its environment."""

    command: Sequence[str]
    env: Mapping[str, str]


def run_together(programs: Sequence[Program], *, cwd: Path, timeout_s: float) -> str:
    """Run `programs` at once, each with a number, its rank; what rank 0 printed.

    BenchmarkError when one ends with another exit code than 0 (the others are not waited for much longer), and when
    one has not ended after `timeout_s`: it writes the stacks of its threads and is ended. Either error says which
    ranks, and carries the end of what all of them wrote.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        children: list[subprocess.Popen[bytes]] = []
        with _ended(children):
            for rank, program in enumerate(programs):
                children.append(
                    subprocess.Popen(
                        program.command,
                        env={**program.env, "PYTHONFAULTHANDLER": "1"},  # stacks of what must be ended
                        cwd=cwd,
                        stdout=output if rank == 0 else errors,
                        stderr=errors,
                    )
                )
            late = _wait(children, timeout_s)
            if late:
                _ask_for_stacks(children, late)
        codes = [child.returncode for child in children]
        if late or any(codes):
            what = f"ranks {late} not done after {timeout_s:.0f} s" if late else f"exit codes {codes}"
            errors.seek(0)
            tail = "\n".join(errors.read().splitlines()[-TOLD_LINES:])
            raise BenchmarkError(f"{' '.join(programs[0].command)}: {what}\n{tail}")
        output.seek(0)
        return output.read()


@contextmanager
def _ended(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


def _wait(children: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> list[int]:
    """Wait until all have ended, or one has failed. The ranks that had not ended in time."""
    poll, running = select.poll(), {}
    for rank, child in enumerate(children):
        handle = os.pidfd_open(child.pid)
        poll.register(handle, select.POLLIN)
        running[handle] = rank
    try:
        until, failed = SYSTEM.monotonic() + timeout_s, False
        while running:
            left_s = until - SYSTEM.monotonic()
            if left_s <= 0:
                return [] if failed else sorted(running.values())
            for handle, _ in poll.poll(left_s * 1e3):
                poll.unregister(handle)
                os.close(handle)
                if children[running.pop(handle)].wait() and not failed:
                    failed, until = True, min(until, SYSTEM.monotonic() + FOLLOW_S)
        return []
    finally:
        for handle in running:
            os.close(handle)


def _ask_for_stacks(children: Sequence[subprocess.Popen[bytes]], ranks: Sequence[int]) -> None:
    for rank in ranks:
        children[rank].send_signal(signal.SIGABRT)
    _wait([children[rank] for rank in ranks], STACKS_S)
