"""What an agent shows on its standard output and error, written so that nobody waits for the terminal.

    agent's loop ── write() ──> bounded queue ── writer thread ──> descriptor

A reader that pauses delays its own stream only: the queue takes `LIMIT_BYTES`, what comes after that is dropped, and a
line says how much as soon as there is room again. A terminal that went away (its pipe's reader ended) is noted once,
through `on_trouble`; later output is discarded. Nothing here raises because of a terminal.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from resilin._base.clock import Deadline
from resilin._base.threads import OwnedThread

Name = Literal["stdout", "stderr"]
LIMIT_BYTES = 8 << 20  # of one stream, waiting to be shown
FLUSH_TIMEOUT_S = 2.0  # for what is left at the end
_CHUNK_BYTES = 4096  # PIPE_BUF: what a pipe that polls as writable takes without blocking
_FDS: dict[Name, int] = {"stdout": 1, "stderr": 2}

Trouble = Callable[[Name, str], None]


class Sink:
    """One stream of the terminal. `write` is thread-safe and never blocks; the thread starts with the first write.

    on_trouble: called once, in the writer's thread, when the stream cannot be written any more.
    """

    def __init__(self, name: Name, fd: int, on_trouble: Trouble | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        self._name = name
        self._fd = fd
        self._limit = limit_bytes
        self._on_trouble = on_trouble
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()  # guarded by _changed, like the next four
        self._waiting = 0  # bytes in the queue
        self._dropped = 0  # lines
        self._lost = False
        self._end: Deadline | None = None  # set by close()
        self._thread: OwnedThread | None = None
        self._waker = -1  # closed to end a wait for the terminal
        self._woken = -1

    def write(self, data: bytes) -> None:
        """Show `data` (whole lines) when the terminal takes it."""
        with self._changed:
            if self._lost or self._end is not None or not data:
                return
            if self._waiting + len(data) > self._limit:
                self._dropped += max(1, data.count(b"\n"))
                return
            if self._dropped:
                self._note_dropped()
            self._queue.append(data)
            self._waiting += len(data)
            if self._thread is None:
                self._woken, self._waker = os.pipe2(os.O_CLOEXEC)
                self._thread = OwnedThread(f"console-{self._name}", self._run)
            self._changed.notify()

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Write what is left, for `timeout_s` at most, and end the thread."""
        with self._changed:
            if self._end is not None:
                return
            if self._dropped:
                self._note_dropped()
            self._end = Deadline(timeout_s)
            self._changed.notify()
        if self._thread is not None:
            os.close(self._waker)
            # another process may have filled the pipe after it polled as writable: then the thread ends with us
            with contextlib.suppress(TimeoutError):
                self._thread.join(timeout_s + 1.0)
                os.close(self._woken)

    def _note_dropped(self) -> None:
        text = f"elastic-run: {self._dropped} lines were not shown here: the terminal did not take them in time\n"
        self._dropped = 0
        self._queue.append(text.encode())
        self._waiting += len(text)

    # ------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._put(batch)
            except OSError as error:
                self._lose(error)
            if self._lost:
                return

    def _next(self) -> bytes | None:
        """All that waits; None when closed and empty."""
        with self._changed:
            while not self._queue and self._end is None:
                self._changed.wait()
            batch = b"".join(self._queue)
            self._queue.clear()
            return batch or None  # it counts as waiting until it is written

    def _put(self, batch: bytes) -> None:
        place = 0
        while place < len(batch):
            end = place + _CHUNK_BYTES
            if end < len(batch):  # lines of several writers stay whole
                end = batch.rfind(b"\n", place, end) + 1 or end
            if not self._writable():
                self._lost = True  # the deadline of close() passed
                return
            try:
                count = os.write(self._fd, batch[place:end])
            except BlockingIOError:
                continue
            place += count
            with self._changed:
                self._waiting -= count

    def _writable(self) -> bool:
        """Wait until the terminal takes more; False when `close()`'s time is over."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.register(self._woken, select.POLLIN)  # only its hang-up counts
        while True:
            end = self._end
            if end is not None:
                with contextlib.suppress(KeyError):
                    poll.unregister(self._woken)
            left = None if end is None else end.left()
            ready = poll.poll(None if left is None else left * 1e3)
            if any(fd == self._fd for fd, _ in ready):
                return True
            if end is not None and end.passed():
                return False

    def _lose(self, error: OSError) -> None:
        with self._changed:
            self._lost = True
            self._queue.clear()
        if self._on_trouble is not None:
            self._on_trouble(self._name, str(error.strerror or error))


class _Raw(io.RawIOBase):
    """A sink as a binary stream."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sink.write(bytes(data))
        return len(data)


class Console:
    """Standard output and error of this process. Owned by the launcher: `close()` writes what is left and ends it."""

    def __init__(self, on_trouble: Trouble | None = None) -> None:
        self.stdout = Sink("stdout", _FDS["stdout"], on_trouble)
        self.stderr = Sink("stderr", _FDS["stderr"], on_trouble)
        raw: Any = _Raw(self.stderr)
        self.text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        """Standard error as a text stream, for `print` and `logging`."""

    def sink(self, name: Name) -> Sink:
        """The stream called `name`."""
        return self.stdout if name == "stdout" else self.stderr

    def close(self) -> None:
        """Give both streams the time that is due to them at the end."""
        self.stdout.close()
        self.stderr.close()


def reserve() -> None:
    """Open what a caller closed of the descriptors 0 to 2, so that no socket or file of ours becomes one of them."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one


def say(text: str) -> None:
    """One line on standard error, at once, from a process that is about to end; a lost terminal is ignored."""
    try:
        if sys.stderr is not None:  # None: the descriptor was closed when we started
            print(text, file=sys.stderr, flush=True)
    except OSError:  # the interpreter flushes what is left when it ends: let that go nowhere
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, _FDS["stderr"])
        os.close(null)
