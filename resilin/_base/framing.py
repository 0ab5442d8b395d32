"""Length-prefixed frames on a byte stream. `FrameDecoder` does no I/O; the two helpers below it do.

Wire format: 4 bytes big-endian payload length, then the payload. Lengths above the cap are refused before a byte
is allocated.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from resilin._base.clock import Deadline, spell
from resilin.errors import DistNetworkError

_HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = 64 << 20  # control messages only: tensors never travel in frames


class FrameError(DistNetworkError):
    """The stream does not hold a valid frame."""


def encode(payload: bytes) -> bytes:
    """One frame holding `payload`."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(payload)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return _HEADER.pack(len(payload)) + payload


class FrameDecoder:
    """Cuts a byte stream into frames: feed it what arrives, iterate over what is complete."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add `data`; yield each payload that is now complete. Raises FrameError on an oversized length."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > self._max_bytes:
                raise FrameError(f"peer announced a frame of {length} bytes, the limit is {self._max_bytes}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield payload


def send_frame(sock: socket.socket, payload: bytes) -> None:
    """Send one frame on a blocking socket (the socket's own timeout applies)."""
    sock.sendall(encode(payload))


def recv_frame(sock: socket.socket, deadline: Deadline, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Receive one frame; FrameError when the peer closes early or announces too much, TimeoutError when late."""
    header = recv_exactly(sock, _HEADER.size, deadline)
    (length,) = _HEADER.unpack(header)
    if length > max_bytes:
        raise FrameError(f"peer announced a frame of {length} bytes, the limit is {max_bytes}")
    return recv_exactly(sock, length, deadline)


def recv_exactly(sock: socket.socket, count: int, deadline: Deadline) -> bytes:
    """Exactly `count` bytes from a socket."""
    parts = bytearray()
    while len(parts) < count:
        left = deadline.left()
        if left == 0.0:
            raise TimeoutError(f"received {len(parts)} of {count} bytes within {spell(deadline.seconds)}")
        sock.settimeout(left)
        chunk = sock.recv(count - len(parts))
        if not chunk:
            raise FrameError(f"peer closed the connection after {len(parts)} of {count} bytes")
        parts += chunk
    return bytes(parts)
