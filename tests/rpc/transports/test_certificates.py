"""Keys and certificates that workers make of the job's secret: right, and taken by TLS as others are."""

from __future__ import annotations

import hashlib
import ssl
import sys

import pytest

from resilin.errors import UsageError
from resilin.rpc.transports.grpc import certificate


def contexts(tmp_path, server_seed, client_seed, trusted_seed):
    made = []
    for name, seed, purpose in (
        ("server", server_seed, ssl.PROTOCOL_TLS_SERVER),
        ("client", client_seed, ssl.PROTOCOL_TLS_CLIENT),
    ):
        key, shown = certificate.made(seed)
        file = tmp_path / f"{name}.pem"
        file.write_bytes(key + shown)
        context = ssl.SSLContext(purpose)
        context.load_cert_chain(file)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificate.made(trusted_seed)[1].decode())
        made.append(context)
    return made


def shake_hands(server_context, client_context):
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=certificate.NAME)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(), server.getpeercert()


def test_both_ends_that_know_the_seed_trust_each_other(tmp_path):
    seen = shake_hands(*contexts(tmp_path, b"one", b"one", b"one"))
    for shown in seen:
        assert shown["subjectAltName"] == (("DNS", certificate.NAME),)
        assert shown["notAfter"].endswith("2120 GMT")


@pytest.mark.parametrize(("server", "client"), [(b"another", b"one"), (b"one", b"another")])
def test_an_end_with_another_seed_is_refused(tmp_path, server, client):
    with pytest.raises(ssl.SSLError):
        shake_hands(*contexts(tmp_path, server, client, b"one"))


def test_a_seed_makes_the_same_everywhere_and_another_one_something_else():
    assert certificate.made(b"one") == certificate.made(b"one")
    assert len({certificate.made(bytes([n]))[1] for n in range(50)}) == 50


def test_the_bytes_are_those_of_every_version():
    """Workers of one job may have different versions of the package."""
    key, shown = certificate.made(b"one")
    assert hashlib.sha256(key).hexdigest() == "abd46b0d2323b71b466d08c1ee1eb7bf716d78341874f5b513bfc61cd8ec489c"
    assert hashlib.sha256(shown).hexdigest() == "204f0d0a7b9a355b3665e5555c3ab725e6a459843b4c980207c2c79f87436c44"


def test_without_the_package_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    with pytest.raises(UsageError, match=r"pip install 'resilin\[tls\]', or give files \(tls=\)"):
        certificate.made(b"one")
