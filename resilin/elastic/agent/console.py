"""Write what an agent shows on its standard output and error, so that nobody waits for the terminal.

    agent's loop ── write() ──> bounded queue ── writer thread ──> descriptor
                        └─ full ─> file without a name ──┘

A reader that pauses delays its own stream only, and gets everything when it goes on: the queue takes `LIMIT_BYTES`,
what comes after that waits on disk. Only what does not fit there, either, is dropped, and a line says how much as soon
as there is room again. At the end a reader is waited for while it reads. A terminal that went away (its pipe's reader
ended) is noted once, through `on_trouble`; later output is discarded. Nothing here raises because of a terminal.

A worker's own output is passed on byte by byte: colours are the program's affair. In what the agent says, which holds
texts of other nodes, no character is a command to the terminal.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO, Literal

from resilin._base.clock import Deadline
from resilin._base.text import visible_lines
from resilin._base.threads import OwnedThread

Name = Literal["stdout", "stderr"]
LIMIT_BYTES = 8 << 20  # of one stream, waiting in memory to be shown
SPILL_BYTES = 1 << 30  # and on disk: a terminal that is stopped for good must not fill that
FLUSH_TIMEOUT_S = 2.0  # at the end, for a reader that takes nothing
PATIENT_FLUSH_S = 60.0  # the same of a job that has ended by itself: nothing else is to be done
_CHUNK_BYTES = 4096  # PIPE_BUF: what a pipe that polls as writable takes without blocking
_TAKE_BYTES = 1 << 20  # of what waits on disk
_FDS: dict[Name, int] = {"stdout": 1, "stderr": 2}

Trouble = Callable[[Name, str], None]


class _Spill:
    """Texts that wait on disk, first in, first out. Its caller serializes all calls."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._file: BinaryIO | None = None  # while any wait
        self._start = self._end = 0  # of what waits

    def __len__(self) -> int:
        return self._end - self._start

    def put(self, data: bytes) -> bool:
        """Append `data`; whether there was room."""
        if self._end + len(data) > self._limit:
            return False
        try:
            if self._file is None:
                import tempfile

                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed when all is taken
            rest = memoryview(data)
            while rest:
                rest = rest[os.pwrite(self._file.fileno(), rest, self._end + len(data) - len(rest)) :]
        except OSError:  # the disk is full, or no descriptor is left
            return False
        self._end += len(data)
        return True

    def take(self) -> bytes:
        """Some whole lines of what waits, the oldest."""
        if self._file is None:
            return b""
        data = os.pread(self._file.fileno(), min(len(self), _TAKE_BYTES), self._start)
        data = data[: data.rfind(b"\n") + 1] or data
        self._start += len(data)
        if self._start >= self._end or not data:
            self.clear()
        return data

    def clear(self) -> None:
        """Forget all of it."""
        file, self._file = self._file, None
        self._start = self._end = 0
        if file is not None:
            file.close()


class Sink:
    """One stream of the terminal. `write` is thread-safe and never blocks; the thread starts with the first write.

    on_trouble: called once, in the writer's thread, when the stream cannot be written any more.
    """

    def __init__(
        self,
        name: Name,
        fd: int,
        on_trouble: Trouble | None = None,
        limit_bytes: int = LIMIT_BYTES,
        spill_bytes: int = SPILL_BYTES,
    ) -> None:
        self._name = name
        self._fd = fd
        self._limit = limit_bytes
        self._on_trouble = on_trouble
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()  # guarded by _changed, like the next six
        self._waiting = 0  # bytes in the queue
        self._spill = _Spill(spill_bytes)  # what came after that
        self._dropped = 0  # lines
        self._lost = False
        self._end: Deadline | None = None  # set by close(), and moved on while the terminal takes something
        self._grace_s = 0.0
        self._thread: OwnedThread | None = None
        # closed to end a wait for the terminal; made here, as what says that no descriptor is left must find some
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC)

    def write(self, data: bytes) -> None:
        """Show `data` (whole lines) when the terminal takes it."""
        with self._changed:
            if self._lost or self._end is not None or not data:
                return
            if self._dropped and not self._note_dropped():
                self._dropped += max(1, data.count(b"\n"))
            elif not self._keep(data):
                self._dropped = max(1, data.count(b"\n"))
            if self._thread is None:
                self._thread = OwnedThread(f"console-{self._name}", self._run)
            self._changed.notify()

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Write what is left, while the terminal takes something every `timeout_s`, and end the thread."""
        with self._changed:
            if self._end is not None:
                return
            if self._dropped and not self._note_dropped():
                self._queue.append(self._dropped_text())
                self._waiting += len(self._queue[-1])
            self._grace_s, self._end = timeout_s, Deadline(timeout_s)
            self._changed.notify()
        os.close(self._waker)
        if self._thread is None or self._joined(self._thread, timeout_s + 1.0):
            os.close(self._woken)
        with self._changed:
            self._spill.clear()

    def _joined(self, thread: OwnedThread, patience_s: float) -> bool:
        """Whether it has ended. It is given up on only when it does nothing any more.

        Another process may have filled the pipe after it polled as writable: then the thread ends with this process.
        """
        while True:
            left = self._waiting + len(self._spill)
            try:
                thread.join(patience_s)
            except TimeoutError:
                if self._waiting + len(self._spill) == left:
                    return False
            else:
                return True

    def _keep(self, data: bytes) -> bool:
        """Let `data` wait; whether there is room."""
        if len(self._spill) or self._waiting + len(data) > self._limit:
            return self._spill.put(data)
        self._queue.append(data)
        self._waiting += len(data)
        return True

    def _note_dropped(self) -> bool:
        if not self._keep(self._dropped_text()):
            return False
        self._dropped = 0
        return True

    def _dropped_text(self) -> bytes:
        text = f"elastic-run: {self._dropped} lines were not shown here: the terminal did not take them in time\n"
        return text.encode()

    # ------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._put(batch)
            except OSError as error:
                self._lose(str(error.strerror or error))
            if self._lost:
                return

    def _next(self) -> bytes | None:
        """All that waits in memory, or some of what waits on disk; None when closed and empty."""
        with self._changed:
            while not self._queue and not len(self._spill) and self._end is None:
                self._changed.wait()
            batch = b"".join(self._queue)  # it counts as waiting until it is written
            self._queue.clear()
            if not batch:
                batch = self._spill.take()
                self._waiting += len(batch)
            return batch or None

    def _put(self, batch: bytes) -> None:
        place = 0
        while place < len(batch):
            end = place + _CHUNK_BYTES
            if end < len(batch):  # lines of several writers stay whole
                end = batch.rfind(b"\n", place, end) + 1 or end
            if not self._writable():  # the deadline of close() passed
                self._lose(f"nobody read it at the end: {self._waiting + len(self._spill)} bytes were not shown")
                return
            try:
                count = os.write(self._fd, batch[place:end])
            except BlockingIOError:
                continue
            place += count
            with self._changed:
                self._waiting -= count
                if self._end is not None:
                    self._end = Deadline(self._grace_s)

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

    def _lose(self, why: str) -> None:
        with self._changed:
            self._lost = True
            self._queue.clear()
            self._spill.clear()
        if self._on_trouble is not None:
            self._on_trouble(self._name, why)


class _Raw(io.RawIOBase):
    """A sink as a binary stream."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sink.write(bytes(data))
        return len(data)


class _Text(io.TextIOWrapper):
    """What the agent itself says, which has names, reasons and messages of other nodes in it."""

    def write(self, text: str) -> int:
        super().write(visible_lines(text))
        return len(text)


class Console:
    """Standard output and error of this process. Owned by the launcher: `close()` writes what is left and ends it."""

    def __init__(self, on_trouble: Trouble | None = None) -> None:
        self.stdout = Sink("stdout", _FDS["stdout"], on_trouble)
        self.stderr = Sink("stderr", _FDS["stderr"], on_trouble)
        raw: Any = _Raw(self.stderr)
        self.text = _Text(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        """Standard error as a text stream, for `print` and `logging`. What is no visible character is written out."""
        self.flush_timeout_s = FLUSH_TIMEOUT_S
        """How long `close` stays while a reader takes nothing."""

    def sink(self, name: Name) -> Sink:
        """The stream called `name`."""
        return self.stdout if name == "stdout" else self.stderr

    def close(self) -> None:
        """Give both streams the time that is due to them at the end."""
        self.stdout.close(self.flush_timeout_s)
        self.stderr.close(self.flush_timeout_s)


def reserve() -> None:
    """Open what a caller closed of the descriptors 0 to 2, so that no socket or file of ours becomes one of them."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
