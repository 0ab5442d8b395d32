"""Record this worker's spans into a file for a while, when its agent asks. The program waits for nothing of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from resilin._base.threads import OwnedThread
from resilin.core.machine import standing_recording
from resilin.elastic import control
from resilin.errors import UsageError


class AskedRecording:
    """At most one at a time, in a thread of its own. `answer` takes what the agent is told."""

    def __init__(self, answer: Callable[[control.Recorded], None]) -> None:
        self._answer = answer
        self._over = threading.Event()
        self._thread: OwnedThread | None = None

    def begin(self, asked: control.Record, rank: int, world_size: int) -> None:
        """Do it, or answer why it cannot be done. Returns at once."""
        if self._thread is not None and self._thread.is_alive():
            self._answer(control.Recorded(id=asked.id, error="it records already, for somebody else who has asked"))
            return
        self._over.clear()
        self._thread = OwnedThread("trace-record", lambda: self._record(asked, rank, world_size))

    def _record(self, asked: control.Record, rank: int, world_size: int) -> None:
        try:
            path = str(standing_recording.begin(Path(asked.folder), asked.nbytes, rank, world_size))
        except (OSError, UsageError) as error:
            self._answer(control.Recorded(id=asked.id, error=str(error)))
            return
        try:
            self._answer(control.Recorded(id=asked.id, path=path))
            self._over.wait(asked.seconds)
        finally:
            standing_recording.end()
        self._answer(control.Recorded(id=asked.id, path=path, over=True))

    def close(self) -> None:
        """End what is under way; the file stays."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
