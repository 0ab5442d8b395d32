"""`Hasher`: hashes of blocks, computed beside what is done with the blocks."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from types import TracebackType

from resilin._base.threads import OwnedThread
from resilin.checkpoint.manifest import hash_of

_INLINE_BYTES = 64 << 10  # smaller ones are hashed in less time than a thread needs to wake


class Hasher:
    """Hashes blocks in a thread of its own, beside what its owner does with them meanwhile; as a context manager.

    nice: the least niceness of that thread.
    """

    def __init__(self, nice: int = 0) -> None:
        self._nice = nice
        self._blocks: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._hashes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: OwnedThread | None = None
        self._begun = 0  # and their results not yet taken

    def begin(self, block: memoryview) -> None:
        """Hash `block`, which stays as it is until its result is taken."""
        self._begun += 1
        if len(block) <= _INLINE_BYTES and (self._thread is None or self._begun == 1):  # else it would overtake others
            self._hashes.put(hash_of(block))
            return
        if self._thread is None:
            self._thread = OwnedThread("checkpoint-hash", self._run)
        self._blocks.put(block)

    def result(self) -> str:
        """The hash of the oldest block begun."""
        self._begun -= 1
        return self._hashes.get()

    def results(self) -> list[str]:
        """The hashes of all blocks begun whose results have not been taken, oldest first."""
        return [self.result() for _ in range(self._begun)]

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # not allowed: then it competes with its owner
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), self._nice))
        while (block := self._blocks.get()) is not None:
            self._hashes.put(hash_of(block))
            del block

    def __enter__(self) -> Hasher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._thread is not None:
            with contextlib.suppress(queue.Empty):
                while kind is not None:  # nobody wants the hashes any more
                    self._blocks.get_nowait()
            self._blocks.put(None)
            self._thread.join(None)
