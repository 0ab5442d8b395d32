"""Define what carries messages between workers: queues that receive, and transports that send.

    worker 0                                            worker 1
    transport.send(1, parts, queue=0) ──────────────>   queues[0]: its worker threads take requests
    queues[q]: the thread that made the call waits <──  transport.send(0, parts, queue=q): the reply

A worker has one `Queues`, whatever transports it uses: queue 0 is served by its worker threads, each other one belongs
to a thread that waits for a reply, which therefore comes to it without a hand-over between threads. A transport puts
what arrives into the queue that the sender named, and says when a peer is lost.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from resilin._base.clock import Deadline
from resilin.errors import PeerLost, RpcError

Buffer = bytes | bytearray | memoryview
REQUESTS = 0
"""The number of the queue that the worker threads serve."""
MAX_MESSAGE_BYTES = 2 << 30
"""The longest message that is taken where nothing else is said."""


@dataclass(frozen=True, slots=True)
class RpcMessage:
    """What has arrived, whole."""

    source: int
    """The id of the worker that sent it, which has proved the job's secret."""
    parts: Sequence[Buffer]
    """As they were given to `send`; the receiver's own from now on."""


class ReceiveQueue(abc.ABC):
    """Hold messages until a thread of this worker takes them."""

    number: int
    """What peers name it by, in 0..65535; a number is used again once its queue is closed."""

    @abc.abstractmethod
    def take(self, timeout_s: float | None = None, most: int = 64) -> list[RpcMessage]:
        """Wait, without the interpreter's lock, for messages: the oldest ones, at most `most`.

        An empty list: `timeout_s` (seconds; None: for ever) has passed, `wake` was called, or the queue is closed.
        """

    @abc.abstractmethod
    def put(self, message: RpcMessage) -> None:
        """Add what another transport of this worker has received. Any thread; never blocks."""

    @abc.abstractmethod
    def wake(self) -> None:
        """Make every `take` that waits, or the next one, return at once. Any thread."""

    @abc.abstractmethod
    def close(self) -> None:
        """Drop what has not been taken, and what comes later. Idempotent."""

    @property
    def waiting(self) -> int:
        """Return how many messages nobody has taken yet; 0 also for a queue that holds senders back by itself.

        Transports that fill it through `put` have their peers wait while these are many.
        """
        return 0

    @property
    @abc.abstractmethod
    def closed(self) -> bool:
        """Return whether `close` was called."""


class Queues(abc.ABC):
    """Own the receive queues of one worker."""

    most: int = 1 << 16
    """How many may be open at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, ReceiveQueue] = {}  # guarded by _lock for writing
        self._next = 0  # guarded by _lock

    @abc.abstractmethod
    def _make(self, number: int) -> ReceiveQueue:
        """Return a queue of that number, which is nobody's."""

    def open(self) -> ReceiveQueue:
        """Return a new queue; the first is number 0. RpcError when there are too many."""
        with self._lock:
            if len(self._open) == self.most or self._next in self._open:
                self._open = {number: queue for number, queue in self._open.items() if not queue.closed}
            if len(self._open) == self.most:
                raise RpcError(f"{self.most} receive queues are open in this worker; end some threads that call")
            while self._next in self._open:
                self._next = (self._next + 1) % self.most
            queue = self._open[self._next] = self._make(self._next)
            self._next = (self._next + 1) % self.most
            return queue

    def find(self, number: int) -> ReceiveQueue | None:
        """Return the open queue of that number, if there is one."""
        queue = self._open.get(number)
        return None if queue is None or queue.closed else queue

    def close(self) -> None:
        """Close all queues and free what they need. Idempotent."""
        with self._lock:
            for queue in self._open.values():
                queue.close()
            self._open.clear()


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who this worker is to its peers."""

    id: int
    """Unique among the workers of the group, 0..65535."""
    name: str
    group: str
    """The same in all workers of the group; a connection that names another one is refused."""
    secret: str
    """The job's; empty: on loopback the kernel's word on the user is taken instead."""
    host: str = "127.0.0.1"
    """The address at which peers reach this worker; beyond loopback only with a secret (SecretRequired)."""
    max_message_bytes: int = MAX_MESSAGE_BYTES


Lost = Callable[[int, PeerLost], None]
"""Called once for a peer that is gone, with its id, on a thread of the transport; never for a forgotten one."""


class Transport(abc.ABC):
    """Carry messages to peers and put theirs into the queues: each message whole, once, and in order for each queue.

    Nothing of a peer is parsed, and no more than 1 MiB allocated for it, before it has proved the job's secret.
    Messages of more than `max_message_bytes` are refused by the sender (UsageError) and by the receiver (the connection
    ends). Made as `T(identity, queues, lost)`; the maker calls `close`.
    """

    name: ClassVar[str]
    """What users choose it by."""

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """Return text that peers give to `connect`, and from which they see whether they can reach this worker."""

    @abc.abstractmethod
    def reaches(self, address: str) -> bool:
        """Return whether a peer with that address may be connected to: pure, no packet is sent."""

    @abc.abstractmethod
    def connect(self, peer: int, address: str, deadline: Deadline) -> None:
        """Connect to worker `peer`, unless that is done; both ends prove the secret. Either end may send afterwards.

        Raises: PeerLost (nobody is there), HandshakeError (it refused, or is another worker than `peer`), TimeoutError.
        """

    @abc.abstractmethod
    def send(self, peer: int, parts: Sequence[Buffer], queue: int, deadline: Deadline) -> None:
        """Send a message to queue `queue` of `peer`. The parts may be used again once this has returned.

        Blocks while the peer has no room (back-pressure). Any thread. Raises: PeerLost, TimeoutError, UsageError for a
        message that is too long or a peer that was never connected.
        """

    @abc.abstractmethod
    def forget(self, peer: int) -> None:
        """Hang up on `peer`, of which nothing is told any more; one of the same id may connect later. Idempotent."""

    @abc.abstractmethod
    def close(self) -> None:
        """Hang up on everybody and end every thread; what was sent before is delivered. Idempotent."""
