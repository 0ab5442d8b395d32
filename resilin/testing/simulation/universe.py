"""Simulated time: every process has an asyncio loop of its own, all on one clock that jumps from event to event.

A schedule is a pure function of its seed: events are ordered by time and then by number, and chance has one source.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

MAX_GHOST_CALLS = 1_000  # a killed process that does not come to its end is a bug of the simulation


class Broken(AssertionError):
    """An invariant does not hold."""


class Universe:
    """Time, chance, and what is to happen. `trace`: takes one line per event worth telling."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.trace = trace
        self.events = 0
        self.broken = ""  # the first thing that went wrong
        self._heap: list[tuple[float, int, Process | None, asyncio.Handle | Callable[[], object]]] = []
        self._count = 0

    def say(self, who: str, text: str) -> None:
        """Tell the trace."""
        if self.trace is not None:
            self.trace(f"{self.now:9.4f}  {who:<10} {text}")

    def fail(self, text: str) -> None:
        """An invariant does not hold: whoever handles the error, `run` raises it."""
        self.broken = self.broken or text
        raise Broken(text)

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call `call` at time `when`, outside of every process."""
        self.push(when, None, call)

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Call `call` in `seconds`."""
        self.push(self.now + seconds, None, call)

    def push(self, when: float, process: Process | None, what: asyncio.Handle | Callable[[], object]) -> None:
        """Put an event on the heap."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, process, what))

    def steps_of(self, process: Process) -> list[asyncio.Handle]:
        """What is due or to come of the tasks of `process`, in order."""
        found = sorted(event for event in self._heap if event[2] is process)
        return [what for *_, what in found if isinstance(what, asyncio.Handle) and _is_step(what)]

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Let things happen until time `until`, or until `over()` or nothing is left."""
        heap = self._heap
        while heap and heap[0][0] <= until and not over():
            when, _, process, what = heapq.heappop(heap)
            self.now = max(self.now, when)
            self.events += 1
            if process is not None:
                assert isinstance(what, asyncio.Handle)
                process.run(what)
            else:
                what()  # type: ignore[operator]
            if self.broken:
                raise Broken(self.broken)
        if not over():
            self.now = max(self.now, until)


class Process(asyncio.AbstractEventLoop):
    """One simulated process: an event loop that can be paused (SIGSTOP) and killed."""

    def __init__(self, universe: Universe, name: str) -> None:
        self.universe = universe
        self.name = name
        self.dead = False
        self._held: list[asyncio.Handle] | None = None  # while paused: what has become due
        self._ghost: deque[asyncio.Handle] = deque()  # while being killed: what is left to run
        self._ghost_timers: list[tuple[float, int, asyncio.Handle]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return f"<Process {self.name}{' dead' if self.dead else ' paused' if self._held is not None else ''}>"

    # ----------------------------------------------------------------------------- life and death

    @property
    def paused(self) -> bool:
        """Whether it is stopped for now."""
        return self._held is not None

    def pause(self) -> None:
        """Nothing of it runs until `resume`."""
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """What has become due meanwhile runs now, in its order."""
        held, self._held = self._held or [], None
        for handle in held:
            self.universe.push(self.universe.now, self, handle)

    def kill(self) -> None:
        """End it at once. Its coroutines are unwound; whatever they do on the way reaches nobody."""
        if self.dead:
            return
        held, self._held = self._held or (), None
        self.dead = True
        self._ghost.extend(handle for handle in held if _is_step(handle))
        self._ghost.extend(self.universe.steps_of(self))  # a task that is about to run cannot be unwound otherwise
        for task in self._tasks:
            task.cancel()
        for _ in range(MAX_GHOST_CALLS):
            if self._ghost:
                self._run(self._ghost.popleft())
            elif self._ghost_timers and not all(task.done() for task in self._tasks):
                self._run(heapq.heappop(self._ghost_timers)[2])
            else:
                return
        raise Broken(f"{self.name} does not end: {[task for task in self._tasks if not task.done()]}")

    def run(self, handle: asyncio.Handle) -> None:
        """Run one event of this process, or keep it."""
        if self.dead:
            return
        if self._held is not None:
            self._held.append(handle)
        else:
            self._run(handle)

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(outer)

    # ------------------------------------------------------------------------------ asyncio's side

    def time(self) -> float:
        """Simulated seconds."""
        return self.universe.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio."""
        handle = asyncio.Handle(callback, args, self, context)
        if self.dead:
            self._ghost.append(handle)
        else:
            self.universe.push(self.universe.now, self, handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self.dead:
            heapq.heappush(self._ghost_timers, (when, len(self._ghost_timers), handle))
        else:
            self.universe.push(when, self, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio."""
        return self.call_at(self.universe.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """As asyncio."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """As asyncio."""
        task = asyncio.Task(coro, loop=self, name=self.name, context=context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody handles breaks the schedule."""
        if not self.dead:
            raise Broken(f"{self.name}: {context.get('message')}") from context.get("exception")

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_closed(self) -> bool:
        """Never: a dead process runs nothing."""
        return False

    def is_running(self) -> bool:
        """Whether it is alive."""
        return not self.dead

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when they come up."""


def _is_step(handle: asyncio.Handle) -> bool:
    """Whether it lets a task go on."""
    callback = getattr(handle, "_callback", None)
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


class HostClock:
    """The clocks of one host: each starts somewhere else. `wall_offset`: skew in seconds."""

    def __init__(self, universe: Universe, offset: float = 0.0, wall_offset: float = 0.0) -> None:
        self._universe = universe
        self._offset = offset
        self._wall_offset = wall_offset

    def monotonic(self) -> float:
        """Seconds since this host was started."""
        return self._universe.now + self._offset

    def wall(self) -> float:
        """What this host takes for the time of day."""
        return self._universe.now + self._wall_offset

    def sleep(self, seconds: float) -> None:
        """Nothing that is simulated may block."""
        raise Broken(f"slept for {seconds} s in a simulated process")

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        """Nothing that is simulated may block."""
        raise Broken("waited for a thread in a simulated process")
