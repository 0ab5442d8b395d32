"""The kernel's two ways to say whose a socket is agree."""

import contextlib
import os
import socket

import pytest

from resilin._base import socket_owners
from resilin._base.clock import SYSTEM
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
        monkeypatch.setattr(socket_owners, "answers", lambda: False)
    elif not socket_owners.answers():
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


def test_ends_of_this_process_are_found_by_where_they_lead():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert socket_owners.own_ends(server.getsockname()) == []
        with socket.create_connection(server.getsockname()) as client, socket.create_connection(server.getsockname()):
            found = socket_owners.own_ends(server.getsockname())
            assert client.getsockname() in found
            assert len(found) == 2


def test_what_a_process_does_not_take_its_kernel_acknowledges_all_the_same():
    if not socket_owners.answers():
        pytest.skip("the kernel answers no questions for one socket here")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0],
    ):
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while client.send(bytes(1 << 16)):
                continue
        begun = SYSTEM.monotonic()
        while SYSTEM.monotonic() < begun + 1.0:  # of probes, one each 0.2 s at first
            assert socket_owners.unanswered(client.getsockname(), client.getpeername()) < 3
            SYSTEM.sleep(0.02)
    assert socket_owners.unanswered(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
