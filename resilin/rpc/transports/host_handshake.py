"""Make two workers of one host known to each other: who they are, and the memory that each receives in.

    dials                                                     listens (abstract Unix socket)
    proof of the job's secret, both ways (_base.auth), bound to the listener's mark
    Greeting, with descriptors [its bells, its rings]  ──────>
                                                    <──────  Answer, with the same of the listener's
    READY                                           ──────>

The connection stays open as long as both live, and carries nothing more than CLOSES: its end is the peer's.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from resilin._base.clock import SYSTEM, Deadline, spell
from resilin._base.framing import recv_exactly
from resilin._base.host import host_id
from resilin.distributed.wire.after_fork import track
from resilin.errors import HandshakeError, UsageError
from resilin.rpc.transports.introduction import read_fields

PURPOSE = b"resilin rpc host"
VERSION = 1  # of the layout of the memory, too
READY, CLOSES = b"R", b"C"
WELCOME, CROSSING, REFUSED = "welcome", "crossing", "refused"
MAX_BYTES = 8 << 10  # of a hello or an answer
DESCRIPTORS = 2
_LENGTH = struct.Struct(">I")
_AGAIN_S = 0.001  # until a listener whose backlog is full is tried again


@dataclass(frozen=True)
class HostAddress:
    """Where a worker listens. `describe()` and `parse()` convert to text."""

    transport: str
    host: str
    """Equal on two workers that can share memory (`_base.host.host_id`)."""
    unix: str
    """Name of its abstract Unix socket, without the leading NUL."""
    mark: str
    """This worker's alone: what is proved to it proves nothing to another one."""

    def describe(self) -> str:
        """One line of text that `parse` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> HostAddress:
        """The card that `describe` wrote. UsageError shows the text when it is none of this transport."""
        with contextlib.suppress(ValueError, TypeError):
            card = read_fields(HostAddress, text)
            if card.transport == "host":
                return card
        raise UsageError(f"expected an address of the RPC transport 'host', got {text[:200]!a}")

    def near(self) -> bool:
        """Return whether this process can share memory with it."""
        return self.host == host_id()


@dataclass(frozen=True)
class Greeting:
    """Who dials, or answers, and whom it means."""

    version: int
    group: str
    source: int
    target: int
    name: str
    host: str
    pid: int
    mark: str
    """Of its card: another one says that it is another process."""
    most: int
    """Bytes of the longest message that it takes."""
    verdict: str = ""
    reason: str = ""


def dial(card: HostAddress, deadline: Deadline) -> socket.socket:
    """A connection to the worker of that card. OSError: nobody is there; TimeoutError."""
    sock = track(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(b"\0" + card.unix.encode())
                return sock
            except BlockingIOError:  # its backlog is full
                if deadline.passed():
                    raise TimeoutError(f"it did not accept within {spell(deadline.seconds)}") from None
                SYSTEM.sleep(_AGAIN_S)
    except BaseException:
        sock.close()
        raise


def tell(sock: socket.socket, hello: Greeting, descriptors: Sequence[int], deadline: Deadline) -> None:
    """Send a hello or an answer."""
    body = json.dumps(asdict(hello), separators=(",", ":")).encode()
    sock.settimeout(deadline.left())
    body = _LENGTH.pack(len(body)) + body
    if rest := body[socket.send_fds(sock, [body], descriptors) :]:  # an empty send fails when it has heard enough
        sock.sendall(rest)


@contextlib.contextmanager
def heard(sock: socket.socket, deadline: Deadline) -> Iterator[tuple[Greeting, list[int]]]:
    """What the peer told, which has proved itself; its descriptors are closed at the end. HandshakeError, OSError."""
    descriptors: list[int] = []
    try:
        sock.settimeout(deadline.left())
        head, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        (length,) = _LENGTH.unpack(head + recv_exactly(sock, _LENGTH.size - len(head), deadline))
        if length > MAX_BYTES:
            raise HandshakeError(f"it introduced itself with {length} bytes, the limit is {MAX_BYTES}")
        try:
            hello = read_fields(Greeting, recv_exactly(sock, length, deadline))
        except (ValueError, TypeError):
            raise HandshakeError("it introduced itself in another way than this version does") from None
        yield hello, descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
