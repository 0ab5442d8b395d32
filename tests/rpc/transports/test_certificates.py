"""Keys and certificates that workers make of the job's secret: right, and taken by TLS as others are."""

from __future__ import annotations

import ssl

import pytest

from resilin.rpc.transports.grpc import certificate, p256

# RFC 6979, A.2.5: P-256 and SHA-256
KEY = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
PUBLIC = (
    0x60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6,
    0x7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299,
)
SIGNED = {
    b"sample": (
        0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716,
        0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8,
    ),
    b"test": (
        0xF1ABB023518351CD71D881567B1EA663ED3EFCF6C5132B354F28D3B0B7D38367,
        0x019F4113742A2B14BD25926B49C649155F267E60D3814B4C0CC84250E46F0083,
    ),
}


def test_keys_and_signatures_are_those_of_the_standard():
    assert p256.public_key(KEY) == PUBLIC
    assert {message: p256.sign(KEY, message) for message in SIGNED} == SIGNED


def test_every_key_has_a_point_of_the_curve():
    p, b = 2**256 - 2**224 + 2**192 + 2**96 - 1, 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
    for key in (1, 2, 3, 15, 16, 17, p256.ORDER - 1, p256.private_key(b"a"), p256.private_key(b"b")):
        x, y = p256.public_key(key)
        assert (y * y - x**3 + 3 * x - b) % p == 0
    assert p256.public_key(1)[0] == p256.public_key(p256.ORDER - 1)[0]


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
