"""The kernel's two ways to say whose a socket is agree."""

import os
import socket

import pytest

from resilin._base import socket_owners
from resilin.testing import ports

WAYS = [  # where is listened, and where is connected to
    ("127.0.0.1", "127.0.0.1"),
    ("0.0.0.0", "127.0.0.1"),
    ("::1", "::1"),
    ("::", "::1"),
    ("::", "127.0.0.1"),
]


@pytest.fixture(params=["asked", "read"])
def way(request, monkeypatch):
    if request.param == "read":
        monkeypatch.setattr(socket_owners, "_answers", lambda: False)
    elif not socket_owners._answers():
        pytest.skip("the kernel answers no questions for one socket here")


@pytest.mark.parametrize(("at", "to"), WAYS)
def test_an_end_has_the_user_of_the_process_that_holds_it(way, at, to):
    family = socket.AF_INET6 if ":" in at else socket.AF_INET
    with socket.create_server((at, 0), family=family, dualstack_ipv6=at == "::") as server:
        port = server.getsockname()[1]
        assert socket_owners.listening_users(to, port) == {os.geteuid()}
        with socket.create_connection((to, port)) as client:
            ends = client.getpeername(), client.getsockname()
            assert (
                socket_owners.owner_of(*ends) is None
            )  # not accepted yet: nobody holds it, though somebody listens there
            accepted, _ = server.accept()
            with accepted:
                assert socket_owners.owner_of(*ends) == os.geteuid()
                assert socket_owners.owner_of(accepted.getpeername(), accepted.getsockname()) == os.geteuid()
                client.close()
                assert socket_owners.owner_of(accepted.getpeername(), accepted.getsockname()) is None


def test_where_nobody_listens_there_is_no_user(way):
    with ports.held() as (port,):
        assert (
            socket_owners.listening_users("127.0.0.1", port)
            == socket_owners.listening_users("localhost", port)
            == set()
        )


def test_a_process_that_is_another_users_is_named(way):
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.seteuid(65534)
        try:
            client = socket.create_connection(server.getsockname())
        finally:
            os.seteuid(0)
        accepted, _ = server.accept()
        with client, accepted:
            assert socket_owners.owner_of(accepted.getpeername(), accepted.getsockname()) == 65534
