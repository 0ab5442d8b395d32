"""Write a key and a certificate that it signs itself, from 32 bytes: the same ones at all who know these.

Nothing of it is secret but the key; the certificate is no more than the form in which TLS wants its public half. The
key is one of the curve P-256, and the signature is the one of RFC 6979, which draws no random number.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib
from typing import Any

from resilin.errors import UsageError

NAME = "resilin-rpc-worker"
"""Whom the certificate is of, instead of a host: peers know each other by the key."""
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256: keys are 1 to _ORDER - 1
# A host's clock may be wrong, and keys go with their process.
_FROM, _UNTIL = datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1)


def made(seed: bytes) -> tuple[bytes, bytes]:
    """Return a private key and its certificate, PEM, made of `seed` alone.

    Raises: UsageError where the package cryptography is not installed.
    """
    x509, ec, hashes, serialization = (
        _package(name)
        for name in (
            "x509",
            "hazmat.primitives.asymmetric.ec",
            "hazmat.primitives.hashes",
            "hazmat.primitives.serialization",
        )
    )
    key = ec.derive_private_key(_private_number(seed), ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(int.from_bytes(hashlib.sha256(public).digest()[:16], "big") or 1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)  # it is signed by itself
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
    )
    shown = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return shown, certificate.public_bytes(serialization.Encoding.PEM)


def _private_number(seed: bytes) -> int:
    """Of 512 bits, so that all keys are equally likely; `seed` has to be as hard to guess as a key."""
    return int.from_bytes(hashlib.sha512(b"resilin P-256 key|" + seed).digest(), "big") % (_ORDER - 1) + 1


def _package(name: str) -> Any:
    try:
        return importlib.import_module(f"cryptography.{name}")
    except ImportError:
        raise UsageError(
            "GrpcTransport: certificates are made by the package cryptography, which is not installed: pip install "
            "'resilin[tls]', or give files (tls=), or let ZeroMQ carry messages, which encrypts by itself"
        ) from None
