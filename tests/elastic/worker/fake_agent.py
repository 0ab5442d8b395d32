"""The agent's end of a control descriptor, played by a test."""

from __future__ import annotations

import socket

from resilin._base.clock import Deadline
from resilin._base.framing import recv_frame
from resilin.elastic import control
from resilin.testing.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S


class FakeAgent:
    """Speaks for an agent: `send` to the worker, `expect` what it says."""

    def __init__(self) -> None:
        self.sock, self.worker_end = socket.socketpair()

    def send(self, message: control.Message) -> None:
        """Say `message` to the worker."""
        self.sock.sendall(control.encode(message))

    def expect(self, kind: type[control.Message]) -> control.Message:
        """The next message; it must be of `kind`."""
        message = control.decode(recv_frame(self.sock, Deadline(TIMEOUT_S)))
        assert isinstance(message, kind), f"expected {kind.kind}, got {message}"
        return message

    def close(self) -> None:
        """Die."""
        self.sock.close()


def world(number: int, endpoints: list[str], rank: int = 0) -> control.World:
    """A world of as many workers as there are endpoints, on one node."""
    size = len(endpoints)
    return control.World(
        number=number,
        rank=rank,
        local_rank=rank,
        world_size=size,
        local_world_size=size,
        node_rank=0,
        node_count=1,
        endpoints=tuple(endpoints),
        members=tuple(control.Member(rank=r, node="n", slot=r, incarnation=0) for r in range(size)),
        reason="a test",
    )
