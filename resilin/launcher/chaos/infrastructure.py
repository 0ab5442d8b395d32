"""What a job depends on and does not own, made to fail: its store, and the link between its nodes."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
from collections.abc import Sequence
from typing import Protocol

from resilin._base.clock import SYSTEM
from resilin.errors import UsageError

_STORE_START_S = 0.5
_COMMAND_TIMEOUT_S = 10


class Breakable(Protocol):
    """A store or a link that can fail and come back."""

    def fail(self, do: str) -> None:
        """Fail as `do` says: "kill", "stop" or "cut"."""

    def restore(self) -> None:
        """Be well again."""


class ProcessStore(contextlib.AbstractContextManager["ProcessStore"]):
    """A store that is one process of ours: killed and started again, or stopped for a while."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ProcessStore:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait()

    def fail(self, do: str) -> None:
        """See `Breakable`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if do == "stop" else signal.SIGKILL)
        if do == "kill":
            self._process.wait()

    def restore(self) -> None:
        """See `Breakable`."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        else:
            self._begin()

    def _begin(self) -> None:
        try:
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        except OSError as error:
            raise UsageError(f"--store {shlex.join(self._command)}: cannot be run: {error.strerror}") from None
        SYSTEM.sleep(_STORE_START_S)  # nodes wait for it, too; whether it began at all shows by now
        if self._process.poll() is not None:
            raise UsageError(f"--store {shlex.join(self._command)}: ended at once with {self._process.returncode}")


class CommandLink:
    """A link that one command cuts and another one restores."""

    def __init__(self, cut: Sequence[str], restore: Sequence[str]) -> None:
        self._cut, self._restore = cut, restore

    def fail(self, do: str) -> None:
        """See `Breakable`."""
        self._run(self._cut)

    def restore(self) -> None:
        """See `Breakable`."""
        self._run(self._restore)

    def _run(self, command: Sequence[str]) -> None:
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_COMMAND_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise UsageError(f"{shlex.join(command)}: {error}") from None
