"""Keys and signatures of the elliptic curve P-256 (FIPS 186-5, RFC 6979): for certificates that a process makes itself.

Python's standard library has none, and no package that is required has. Slower than others, and not in constant time:
so for what a process does now and then by itself, never for an answer to somebody who may measure how long it takes.
TLS itself computes with the keys in gRPC's own library.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from functools import cache

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1  # of the field
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group: private keys are 1 to ORDER - 1."""
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int]
_Jacobian = tuple[int, int, int]  # (x / z**2, y / z**3); z is 0 at infinity
_INFINITY = (1, 1, 0)
_WINDOW = 4  # bits of a factor that one entry of the table stands for


def private_key(seed: bytes) -> int:
    """Return the private key that is made of `seed`, which has to be as hard to guess as a key."""
    number = int.from_bytes(hashlib.sha512(b"resilin P-256 key|" + seed).digest(), "big")
    return number % (ORDER - 1) + 1  # of 512 bits: all keys are equally likely


def public_key(key: int) -> Point:
    """Return the public half."""
    return _times_g(key)


def sign(key: int, message: bytes) -> tuple[int, int]:
    """Return r and s of ECDSA with SHA-256; the same ones for the same key and message."""
    digest = hashlib.sha256(message).digest()
    hashed = int.from_bytes(digest, "big")
    for k in _nonces(key, digest):
        r = _times_g(k)[0] % ORDER
        s = pow(k, -1, ORDER) * (hashed + r * key) % ORDER
        if r and s:
            return r, s
    raise AssertionError("unreachable: nonces have no end")


def _nonces(key: int, digest: bytes) -> Iterator[int]:
    """RFC 6979, 3.2."""
    seed = key.to_bytes(32, "big") + (int.from_bytes(digest, "big") % ORDER).to_bytes(32, "big")
    v, k = b"\x01" * 32, bytes(32)
    for mark in (b"\0", b"\1"):
        k = hmac.digest(k, v + mark + seed, "sha256")
        v = hmac.digest(k, v, "sha256")
    while True:
        v = hmac.digest(k, v, "sha256")
        nonce = int.from_bytes(v, "big")
        if 0 < nonce < ORDER:
            yield nonce
        k = hmac.digest(k, v + b"\0", "sha256")
        v = hmac.digest(k, v, "sha256")


def _times_g(factor: int) -> Point:
    total: _Jacobian = _INFINITY
    for row in _table():
        digit = factor & ((1 << _WINDOW) - 1)
        if digit:
            total = _add(total, row[digit])
        factor >>= _WINDOW
    return _affine(total)


@cache
def _table() -> list[list[_Jacobian]]:
    """Row i, column j: j * 2**(_WINDOW * i) times G."""
    rows = []
    base: _Jacobian = (*_G, 1)
    for _ in range(256 // _WINDOW):
        row = [_INFINITY, base]
        while len(row) < 1 << _WINDOW:
            row.append(_add(row[-1], base))
        rows.append(row)
        base = _add(row[-1], base)
    return rows


def _add(one: _Jacobian, other: _Jacobian) -> _Jacobian:
    if not one[2]:
        return other
    if not other[2]:
        return one
    (x1, y1, z1), (x2, y2, z2) = one, other
    zz1, zz2 = z1 * z1 % _P, z2 * z2 % _P
    u1, u2 = x1 * zz2 % _P, x2 * zz1 % _P
    s1, s2 = y1 * zz2 * z2 % _P, y2 * zz1 * z1 % _P
    h, r = (u2 - u1) % _P, (s2 - s1) % _P
    if not h:
        return _double(one) if not r else _INFINITY
    hh = h * h % _P
    hhh, v = h * hh % _P, u1 * hh % _P
    x = (r * r - hhh - 2 * v) % _P
    return x, (r * (v - x) - s1 * hhh) % _P, h * z1 * z2 % _P


def _double(one: _Jacobian) -> _Jacobian:
    x, y, z = one
    yy, zz = y * y % _P, z * z % _P
    s = 4 * x * yy % _P
    m = 3 * (x - zz) * (x + zz) % _P
    x3 = (m * m - 2 * s) % _P
    return x3, (m * (s - x3) - 8 * yy * yy) % _P, 2 * y * z % _P


def _affine(point: _Jacobian) -> Point:
    x, y, z = point
    inverse = pow(z, -1, _P)
    square = inverse * inverse % _P
    return x * square % _P, y * square * inverse % _P
