"""Serve a queue with several threads, of which one at a time is at work: others do not fight it for the interpreter.

One thread of a pool leads: it takes messages in batches and handles them one after the other. Where it is stuck in one
(it waits for somebody, or computes for long) another leads in its place: at once where it says that it will wait
(`step_down`), else when the agent's watch has seen the same message twice. A thread that comes back finds that another
leads, and is kept for the next time.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from resilin._base.clock import SYSTEM, Deadline
from resilin._base.threads import OwnedThread
from resilin.rpc.transports.base import ReceiveQueue, RpcMessage


class _Hand:
    """One thread of a pool."""

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread: OwnedThread | None = None
        self.turn = 0  # changes with each message
        self.busy = False  # it handles one
        self.fresh = False  # and nobody can see yet that it has been taken
        self.taking = False  # it takes messages, or waits for some
        self.takes = 0  # how often it has


class _Here(threading.local):
    pool: ThreadPool | None = None
    hand: _Hand | None = None


_here = _Here()


def step_down() -> None:
    """Say that this thread will wait: where it leads a pool, another leads from now on."""
    pool = _here.pool
    if pool is not None and pool.leader is _here.hand:
        pool.replace()


def claimed() -> None:
    """Say that the message which this thread handles is taken note of."""
    hand = _here.hand
    if hand is not None:
        hand.fresh = False


class ThreadPool:
    """The threads of one queue. `handle` raises nothing; `begun` is called when a batch has come."""

    def __init__(
        self, name: str, queue: ReceiveQueue, handle: Callable[[RpcMessage], None], most: int, begun: Callable[[], None]
    ) -> None:
        self._name, self._queue, self._handle, self._most, self._begun = name, queue, handle, most, begun
        self._backlog: deque[RpcMessage] = deque()
        self._lock = threading.Lock()
        self._hands: list[_Hand] = []  # guarded by _lock
        self._kept: list[_Hand] = []  # guarded by _lock: threads that wait to lead
        self._wanted = False  # guarded by _lock: nobody was there to lead
        self._closed = False
        self.leader: _Hand | None = None  # guarded by _lock for writing
        self._seen: tuple[_Hand, int] | None = None  # the message that was under way at the last look
        self.replace()

    def replace(self) -> None:
        """Let another thread lead."""
        with self._lock:
            if self._closed:
                return
            if self._kept:
                self.leader = self._kept.pop()
                self.leader.wake.release()
            elif len(self._hands) < self._most:
                self.leader = hand = _Hand()
                self._hands.append(hand)
                hand.thread = OwnedThread(f"{self._name}-{len(self._hands)}", lambda: self._run(hand))
            else:
                self._wanted = True

    def look(self) -> bool:
        """Let another thread lead where the same message was under way at the last look; return whether one is."""
        leader = self.leader
        if leader is None or not leader.busy:
            self._seen = None
            return False
        now = leader, leader.turn
        if self._seen == now and not self._wanted:
            self.replace()
        self._seen = now
        return True

    def catch_up(self, limit_s: float) -> None:
        """Return when all that was in the queue has been handled, or `claimed`: on a thread of the pool, or another."""
        others = [hand for hand in list(self._hands) if hand is not _here.hand]
        taking = [(hand, hand.takes) for hand in others if hand.taking]
        deadline = Deadline(limit_s)
        while any(hand.takes == before for hand, before in taking) and not self._closed and not deadline.passed():
            self._queue.wake()
            SYSTEM.sleep(0.0005)
        while rest := self._queue.take(0.0):
            self._backlog.extend(rest)
        while self._backlog:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._handle(self._backlog.popleft())
        while any(hand.fresh for hand in others) and not self._closed and not deadline.passed():
            SYSTEM.sleep(0.0005)

    def _run(self, me: _Hand) -> None:
        _here.pool, _here.hand = self, me
        backlog = self._backlog
        while not self._closed:
            if self.leader is me:
                try:
                    message = backlog.popleft()
                except IndexError:
                    self._wanted = False
                    me.taking = True
                    backlog.extend(self._queue.take())
                    me.taking = False
                    me.takes += 1
                    if self.leader is not me:  # replaced between its last message and these
                        self._queue.wake()
                    self._begun()
                    continue
                me.turn += 1
                me.busy = me.fresh = True
                self._handle(message)
                me.busy = me.fresh = False
            else:
                self._wait_to_lead(me)

    def _wait_to_lead(self, me: _Hand) -> None:
        with self._lock:
            if self._closed:
                return
            if self._wanted:
                self._wanted, self.leader = False, me
                return
            self._kept.append(me)
        me.wake.acquire()

    def close(self, timeout_s: float) -> None:
        """End all threads, once what they handle is done. TimeoutError names one that does not end. Idempotent."""
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, []
        for hand in kept:
            hand.wake.release()
        self._queue.close()
        for hand in self._hands:
            if hand.thread is not None:
                hand.thread.join(timeout_s)
