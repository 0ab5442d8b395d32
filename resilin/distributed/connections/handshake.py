"""Begin a connection between two ranks, after the proof of the secret: which group, ranks and channel."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from dataclasses import asdict, dataclass

from resilin._base import json_text
from resilin.errors import HandshakeError

PURPOSE = b"resilin dist group"  # of the handshake
FENCE_BYTES = 16
MAX_BYTES = 1024  # of a hello's body and of a refusal's reason
_NAME_BYTES = 512  # of a group's name as JSON; beyond it, subgroups of many ranks would not fit
_NAME_START = 40  # characters that are kept, of at most 12 bytes each
HEADER = struct.Struct(">H")  # of a hello: bytes that follow
ANSWER = struct.Struct(">BH")  # READY, or REFUSED and the length of the reason that follows
READY, REFUSED = 1, 0


def name_on_wire(group: str) -> str:
    """The name by which peers meet: a long one is cut and ends with a digest of the whole. Equal on all ranks."""
    text = json.dumps(group)
    if len(text) <= _NAME_BYTES:
        return group
    return f"{group[:_NAME_START]}...{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@dataclass(frozen=True)
class Hello:
    """Hold what a client asks for."""

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
            fields = json_text.parse(body, finite=True)
            return Hello(
                group=str(fields["group"]),
                generation=int(fields["generation"]),
                source=int(fields["source"]),
                target=int(fields["target"]),
                channel=int(fields["channel"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise HandshakeError(f"malformed hello: {error}") from error


@dataclass(frozen=True)
class Renewal:
    """Say which generation both ends of a connection that is kept make of it, and as whom."""

    group: str
    generation: int
    source: int
    target: int
    members: str
    """Digest of all members' endpoints, in rank order."""
    sent: int
    """Bytes that the sender has put into the data socket in all generations; -1: it cannot be used."""
    maps: bool
    """Whether the sender keeps the memory of the receiver that it has mapped."""

    def pack(self) -> bytes:
        """Body of a RENEW frame."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @staticmethod
    def parse(body: bytes) -> Renewal:
        """The renewal that `pack` wrote. HandshakeError when it is none."""
        try:
            fields = json_text.parse(body, finite=True)
            return Renewal(
                group=str(fields["group"]),
                generation=int(fields["generation"]),
                source=int(fields["source"]),
                target=int(fields["target"]),
                members=str(fields["members"]),
                sent=int(fields["sent"]),
                maps=bool(fields["maps"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise HandshakeError(f"malformed renewal: {error}") from error

    def fence(self, secret: str) -> bytes:
        """Return what the sender puts between two generations in the data socket; nobody else can make it."""
        return hmac.digest(secret.encode(), b"resilin dist fence|" + self.pack(), "sha256")[:FENCE_BYTES]
