"""Write a key and a certificate that it signs itself, from 32 bytes: the same ones at all who know these.

X.509 (RFC 5280) in DER, the key in the form of RFC 5915. Nothing of it is secret but the key; the certificate is no
more than the form in which TLS wants its public half.
"""

from __future__ import annotations

import base64
import hashlib

from resilin.rpc.transports.grpc import p256

NAME = "resilin-rpc-worker"
"""Whom the certificate is of, instead of a host: peers know each other by the key."""
_FROM, _UNTIL = b"20200101000000Z", b"21200101000000Z"  # a host's clock may be wrong, and keys go with their process

_INTEGER, _BITS, _OCTETS, _OBJECT, _TEXT, _TIME, _SEQUENCE, _SET = 0x02, 0x03, 0x04, 0x06, 0x0C, 0x18, 0x30, 0x31
_BOOLEAN, _DNS_NAME = 0x01, 0x82
_EC_PUBLIC_KEY, _P256 = bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2a8648ce3d030107")
_ECDSA_SHA256 = bytes.fromhex("2a8648ce3d040302")
_COMMON_NAME, _BASIC_CONSTRAINTS, _ALTERNATIVE_NAME = (bytes.fromhex(text) for text in ("550403", "551d13", "551d11"))


def made(seed: bytes) -> tuple[bytes, bytes]:
    """Return a private key and its certificate, PEM, made of `seed` alone."""
    key = p256.private_key(seed)
    x, y = p256.public_key(key)
    point = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    signed = _to_be_signed(point, hashlib.sha256(point).digest())
    r, s = p256.sign(key, signed)
    signature = _der(_SEQUENCE, _number(r), _number(s))
    certificate = _der(_SEQUENCE, signed, _algorithm(), _bits(signature))
    return _pem("EC PRIVATE KEY", _private(key, point)), _pem("CERTIFICATE", certificate)


def _to_be_signed(point: bytes, digest: bytes) -> bytes:
    name = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _der(_OBJECT, _COMMON_NAME), _der(_TEXT, NAME.encode()))))
    key = _der(_SEQUENCE, _der(_SEQUENCE, _der(_OBJECT, _EC_PUBLIC_KEY), _der(_OBJECT, _P256)), _bits(point))
    authority = _der(_SEQUENCE, _der(_BOOLEAN, b"\xff"))  # it is signed by itself
    extensions = _der(
        _SEQUENCE,
        _der(_SEQUENCE, _der(_OBJECT, _BASIC_CONSTRAINTS), _der(_BOOLEAN, b"\xff"), _der(_OCTETS, authority)),
        _der(
            _SEQUENCE,
            _der(_OBJECT, _ALTERNATIVE_NAME),
            _der(_OCTETS, _der(_SEQUENCE, _der(_DNS_NAME, NAME.encode()))),
        ),
    )
    return _der(
        _SEQUENCE,
        _tagged(0, _number(2)),  # version 3
        _number(int.from_bytes(digest[:16], "big")),
        _algorithm(),
        name,
        _der(_SEQUENCE, _der(_TIME, _FROM), _der(_TIME, _UNTIL)),
        name,
        key,
        _tagged(3, extensions),
    )


def _private(key: int, point: bytes) -> bytes:
    return _der(
        _SEQUENCE,
        _number(1),
        _der(_OCTETS, key.to_bytes(32, "big")),
        _tagged(0, _der(_OBJECT, _P256)),
        _tagged(1, _bits(point)),
    )


def _algorithm() -> bytes:
    return _der(_SEQUENCE, _der(_OBJECT, _ECDSA_SHA256))


def _der(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _tagged(number: int, content: bytes) -> bytes:
    return _der(0xA0 | number, content)


def _number(value: int) -> bytes:
    return _der(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))  # its first bit says that it is positive


def _bits(content: bytes) -> bytes:
    return _der(_BITS, b"\0" + content)


def _pem(label: str, der: bytes) -> bytes:
    text = base64.b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()
