"""Lose and delay chosen messages between RPC workers.

    with rpc_faults.planned(drop={"RREF_FORK_REQUEST": 3}, delay_s={"PYTHON_CALL": 0.5}) as plan:
        rpc.init_rpc(...)                # the transports that it makes obey the plan
        ...
    assert plan.all_fired()

The names are those of `resilin.rpc.serialization.messages.MessageKind`; "*" stands for the messages that references
are counted by, which workers tell again until they are answered. What a worker sends itself is not touched.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resilin._base.clock import Deadline
from resilin.errors import PeerLost, UsageError
from resilin.rpc.group import start
from resilin.rpc.serialization.messages import MessageKind
from resilin.rpc.transports.base import Buffer, Transport

RETRIED = ("RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE")
"""What "*" stands for."""


def _by_kind(given: Mapping[str, Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for name, value in given.items():
        for each in RETRIED if name == "*" else (name,):
            if each not in MessageKind.__members__:
                raise UsageError(
                    f"rpc_faults: there is no message {each!r}; there are {', '.join(MessageKind.__members__)}"
                )
            found[int(MessageKind[each])] = value
    return found


class RpcFaultPlan:
    """What is to happen to messages of one worker. drop: how many of each kind are lost; delay_s: by kind."""

    def __init__(self, drop: Mapping[str, int], delay_s: Mapping[str, float]) -> None:
        self._lock = threading.Lock()
        self._drop, self._delay = _by_kind(drop), _by_kind(delay_s)
        self.dropped: dict[str, int] = {}
        """How many of each kind were lost so far."""
        self.delayed: dict[str, int] = {}
        """How many of each kind came late so far."""

    def drops(self, kind: int) -> bool:
        """Return whether a message of `kind` is lost now."""
        with self._lock:
            left = self._drop.get(kind, 0)
            if left:
                self._drop[kind] = left - 1
                self.dropped[MessageKind(kind).name] = self.dropped.get(MessageKind(kind).name, 0) + 1
            return bool(left)

    def delay(self, kind: int) -> float:
        """Return the seconds by which a message of `kind` comes late; 0: it does not."""
        seconds: float = self._delay.get(kind, 0.0)
        if seconds:
            with self._lock:
                self.delayed[MessageKind(kind).name] = self.delayed.get(MessageKind(kind).name, 0) + 1
        return seconds

    def all_fired(self) -> bool:
        """Return whether every message that was to be lost has been, and one of each delayed kind has been late."""
        return not any(self._drop.values()) and len(self.delayed) == len(self._delay)


class FaultyTransport(Transport):
    """Sends through another transport, by plan."""

    def __init__(self, inner: Transport, plan: RpcFaultPlan) -> None:
        self._inner, self._plan = inner, plan
        self.name = inner.name  # type: ignore[misc]
        self._late: set[threading.Timer] = set()

    @property
    def address(self) -> str:
        """See Transport."""
        return self._inner.address

    def reaches(self, address: str) -> bool:
        """See Transport."""
        return self._inner.reaches(address)

    def connect(self, peer: int, address: str, deadline: Deadline) -> None:
        """See Transport."""
        self._inner.connect(peer, address, deadline)

    def send(self, peer: int, parts: Sequence[Buffer], queue: int, deadline: Deadline) -> None:
        """See Transport: but the message may be lost, or be sent later by another thread."""
        kind = parts[0][0]
        if self._plan.drops(kind):
            return
        seconds = self._plan.delay(kind)
        if not seconds:
            self._inner.send(peer, parts, queue, deadline)
            return
        own = [bytes(part) for part in parts]
        timer = threading.Timer(seconds, self._send_late, (peer, own, queue))
        self._late.add(timer)
        timer.start()

    def _send_late(self, peer: int, parts: Sequence[Buffer], queue: int) -> None:
        with contextlib.suppress(PeerLost, TimeoutError, UsageError):  # the peer, or this worker, has ended since
            self._inner.send(peer, parts, queue, Deadline(5.0))

    def forget(self, peer: int) -> None:
        """See Transport."""
        self._inner.forget(peer)

    def close(self) -> None:
        """See Transport: what is late is not sent any more."""
        for timer in self._late:
            timer.cancel()
        for timer in self._late:
            timer.join()
        self._inner.close()


@contextlib.contextmanager
def planned(
    drop: Mapping[str, int] | None = None, delay_s: Mapping[str, float] | None = None
) -> Iterator[RpcFaultPlan]:
    """Have transports of workers that begin in the block obey a plan."""
    plan = RpcFaultPlan(drop or {}, delay_s or {})

    def wrap(transport: Transport) -> Transport:
        return FaultyTransport(transport, plan)

    start.wrappers.append(wrap)
    try:
        yield plan
    finally:
        start.wrappers.remove(wrap)
