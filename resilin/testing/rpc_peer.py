"""A worker with one transport and nothing else, in this process or in one of its own that a test may kill.

    python -m resilin.testing.rpc_peer SPEC       prints its address, then echoes what comes into its queue 0

SPEC is JSON: see `spec`. A message whose first part is `queue number` (2 bytes, little-endian) is sent back to that
queue without it; b"?" and then the number: one byte is sent there; b"hold": it takes nothing any more.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

from resilin._base.clock import Deadline
from resilin.errors import PeerLost
from resilin.rpc.transports.base import REQUESTS, Buffer, Queues, RpcMessage, Transport, WorkerIdentity
from resilin.testing.patience import PATIENCE_S

HOLD = b"hold"
SHORT = b"?"


class Worker:
    """One transport, its queues, and what it was told of lost peers."""

    def __init__(
        self, identity: WorkerIdentity, transport: type[Transport], queues: type[Queues], options: dict[str, Any]
    ) -> None:
        self.identity = identity
        self.queues = queues()
        self.requests = self.queues.open()
        self._lost = threading.Condition()
        self.losses: list[tuple[int, PeerLost]] = []  # guarded by _lost
        self.transport = transport(identity, self.queues, self._note, **options)  # type: ignore[call-arg]

    def _note(self, peer: int, error: PeerLost) -> None:
        with self._lost:
            self.losses.append((peer, error))
            self._lost.notify_all()

    def connect(self, other: Worker) -> None:
        """Connect to a worker of this process."""
        self.transport.connect(other.identity.id, other.transport.address, Deadline(PATIENCE_S))

    def send(self, peer: int, *parts: Buffer, queue: int = REQUESTS, within_s: float = PATIENCE_S) -> None:
        """Send a message."""
        self.transport.send(peer, parts, queue, Deadline(within_s))

    def take(self, count: int, queue: int = REQUESTS, within_s: float = PATIENCE_S) -> list[RpcMessage]:
        """So many messages; fewer where no more come in time."""
        found: list[RpcMessage] = []
        deadline = Deadline(within_s)
        taken = self.queues.find(queue)
        assert taken is not None
        while len(found) < count and not deadline.passed():
            found += taken.take(deadline.left(), count - len(found))
        return found

    def wait_for_losses(self, count: int, within_s: float = PATIENCE_S) -> list[tuple[int, PeerLost]]:
        """What was told, once it is so much."""
        with self._lost:
            self._lost.wait_for(lambda: len(self.losses) >= count, within_s)
            return list(self.losses)

    def close(self) -> None:
        """End it."""
        self.transport.close()
        self.queues.close()


def spec(
    identity: WorkerIdentity, transport: type[Transport], queues: type[Queues], options: dict[str, Any]
) -> dict[str, Any]:
    """What a process needs to make the same worker."""
    return {
        "identity": dataclasses.asdict(identity),
        "transport": ":".join((transport.__module__, transport.__qualname__)),
        "queues": ":".join((queues.__module__, queues.__qualname__)),
        "options": options,
    }


class PeerProcess:
    """A worker in a process of its own. A context manager: killed at its end. enter: words before its command."""

    def __init__(self, spec: dict[str, Any], enter: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*enter, sys.executable, "-m", "resilin.testing.rpc_peer", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def kill(self) -> None:
        """End it as the kernel does where memory is short. Idempotent."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def echo(worker: Worker, message: RpcMessage) -> None:
    """Send a message back to the queue that its first part names."""
    first, *rest = message.parts
    if bytes(first) == SHORT:
        first, rest = rest[0], [b"!"]
    worker.transport.send(message.source, rest, int.from_bytes(first, "little"), Deadline(PATIENCE_S))


def main(argv: Sequence[str]) -> None:
    """Serve until standard input ends."""
    told = json.loads(argv[0])
    worker = Worker(
        WorkerIdentity(**told["identity"]),
        resolve_name(told["transport"]),
        resolve_name(told["queues"]),
        told["options"],
    )
    print(worker.transport.address, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        for message in worker.requests.take():
            if message.parts and bytes(message.parts[0]) == HOLD:
                threading.Event().wait()
            echo(worker, message)


if __name__ == "__main__":
    main(sys.argv[1:])
