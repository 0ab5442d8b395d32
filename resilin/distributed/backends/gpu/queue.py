"""Run a GPU's communication: one thread that calls the library, one stream, and a wait that always ends.

Calls of NCCL may block while a peer is missing, so they are made on the lane's thread; the caller asks whether the GPU
has done the work, and looks at the abort flag, at the clock and at the library's own errors in between. The work comes
after everything that the device's blocking streams hold (CuPy's default kind); tensors that are computed on streams
made with `non_blocking=True` must be ready before they are passed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from resilin._base.clock import Deadline
from resilin._base.threads import OwnedThread
from resilin.core.backends.cupy import CupyBackend
from resilin.distributed.backends.polling import SPIN_S, poll


class _Job:
    """One piece of work: done when the GPU has done it, or it failed."""

    def __init__(self, work: Callable[[Any], None]) -> None:
        self.work = work
        self.error: BaseException | None = None
        self._launched = threading.Event()
        self._event: Any = None

    def launch(self, device: CupyBackend, stream: Any) -> None:
        try:
            before = device.cupy.cuda.Event(disable_timing=True)
            before.record(device.cupy.cuda.Stream.null)
            stream.wait_event(before)
            self.work(stream)
            event = device.cupy.cuda.Event(disable_timing=True)
            event.record(stream)
            self._event = event
        except BaseException as error:  # noqa: BLE001 - a thread's top: raised by GpuQueue.run
            self.error = error
        self._launched.set()

    def launched(self) -> bool:
        return self._launched.is_set()

    def done(self) -> bool:
        return self._launched.is_set() and (self.error is not None or bool(self._event.done))


class GpuQueue:
    """`stop` ends every wait. Owned by one backend."""

    def __init__(self, device: CupyBackend, index: int, name: str) -> None:
        self.stop = threading.Event()
        self._device = device
        self._name = name
        self._index = index
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: OwnedThread | None = None
        self._last: _Job | None = None

    def run(self, work: Callable[[Any], None], deadline: Deadline, check: Callable[[], None]) -> bool:
        """Do `work(stream)` and wait until the GPU has done it; False at the deadline, the work may then go on.

        Raises: Aborted once `stop` is set; what `work` raised; what `check()` raises while this waits.
        """
        if self._thread is None:
            self._thread = OwnedThread(f"dist-{self._name}", self._serve)
        self._last = job = _Job(work)
        self._jobs.put(job)

        def done() -> bool:
            if job.done():
                return True
            check()
            return False

        if not poll(done, self.stop, deadline, SPIN_S):
            return False
        if job.error is not None:
            raise job.error
        return True

    def close(self) -> None:
        """End the thread. One that is stuck in the library is left behind: it ends with the process."""
        self.stop.set()
        self._jobs.put(None)
        if self._thread is not None and (self._last is None or self._last.launched()):
            self._thread.join()

    def _serve(self) -> None:
        self._device.choose(self._index)
        stream = self._device.cupy.cuda.Stream(non_blocking=True)
        while (job := self._jobs.get()) is not None:
            job.launch(self._device, stream)
