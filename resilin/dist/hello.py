"""What a connection between two ranks starts with, after the proof of the secret: which group, ranks and channel."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

from resilin.errors import HandshakeError

PURPOSE = b"resilin dist group"  # of the handshake
MAX_BYTES = 1024  # of a hello's body and of a refusal's reason
HEADER = struct.Struct(">H")  # of a hello: bytes that follow
ANSWER = struct.Struct(">BH")  # READY, or REFUSED and the length of the reason that follows
READY, REFUSED = 1, 0


@dataclass(frozen=True)
class Hello:
    """What a client asks for."""

    group: str
    generation: int
    source: int
    target: int
    channel: int

    def pack(self) -> bytes:
        """Header and body. HandshakeError when the group's name is too long for the wire."""
        body = json.dumps(asdict(self), separators=(",", ":")).encode()
        if len(body) > MAX_BYTES:
            raise HandshakeError(f"the group's name is too long: its hello has {len(body)} bytes, at most {MAX_BYTES}")
        return HEADER.pack(len(body)) + body

    @staticmethod
    def parse(body: bytes) -> Hello:
        """The hello that `pack` wrote. HandshakeError when it is none."""
        try:
            fields = json.loads(body)
            return Hello(
                group=str(fields["group"]),
                generation=int(fields["generation"]),
                source=int(fields["source"]),
                target=int(fields["target"]),
                channel=int(fields["channel"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise HandshakeError(f"malformed hello: {error}") from error
