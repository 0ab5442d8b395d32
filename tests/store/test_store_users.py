"""Whose processes a store without a secret serves, and whose store a process without one joins."""

import subprocess
import sys

import other_user
import pytest

from resilin import store
from resilin._base import socket_owners
from resilin.errors import StoreRefused
from resilin.store import MemoryStore
from resilin.store.client import ClientStore
from resilin.store.server import StoreServer
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S

NOBODY = other_user.UID
needs_root = other_user.needs_root

BECOME_NOBODY = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"

# every way in: by the client that asks the kernel whose the server is, and by one that does not
OTHER_USER = f"""
import os, sys
from resilin import store
from resilin.errors import StoreError
from resilin.store.client import ClientStore
from resilin.store.server import StoreServer
with store.MemoryStore() as state, StoreServer(state) as server:
    store.connect(server.url).close()  # loads what it needs, as root
{BECOME_NOBODY}
for url in sys.argv[1:]:
    client = ClientStore([url.removeprefix("embedded://")])
    attempts = {{
        "connect": lambda: store.connect(url),
        "read": lambda: client.range("/resilin/"),
        "write": lambda: client.put("/resilin/job/world/wanted", b"{{}}"),
        "steer": lambda: client.compare_and_put("/resilin/job/world/wanted", 0, b"{{}}"),
        "delete": lambda: client.delete_prefix("/resilin/"),
        "join": lambda: client.lease(5.0),
        "watch": lambda: client.watch("", print),
        "forget": lambda: client.compact(1),
    }}
    for name, attempt in attempts.items():
        try:
            print(url, name, "was let in:", attempt())
        except StoreError as error:
            print(url, name, type(error).__name__, error)
    client.close()
"""

SERVES = f"""
import os, sys
from resilin.store import MemoryStore
from resilin.store.server import StoreServer
with MemoryStore() as state, StoreServer(state):
    pass  # loads what it needs, as root
{BECOME_NOBODY}
with MemoryStore() as state, StoreServer(state) as server:
    print(server.url, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def state():
    with MemoryStore() as state:
        state.put("/resilin/job/world/leader", b"n")
        yield state


def run(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.multiproc
@needs_root
def test_without_a_secret_another_user_reads_writes_and_joins_nothing_at_any_name_of_loopback(state):
    with (
        StoreServer(state, "127.0.0.1") as one,
        StoreServer(state, "localhost") as two,
        StoreServer(state, "::1") as v6,
    ):
        told = run(OTHER_USER, one.url, two.url, f"embedded://[::1]:{v6.port}")
    assert len(told) == 24
    for line in told:
        assert "StoreRefused" in line, line
        assert f"serves processes of its own user (0) and of root alone, and this one is of user {NOBODY}" in line
        assert "RESILIN_SECRET or --secret-file" in line
    assert state.range("")[0][0].value == b"n"


@pytest.mark.multiproc
@needs_root
def test_a_process_without_a_secret_joins_no_store_of_another_user_but_root_may_join_and_is_let_in(state):
    command = [sys.executable, "-c", SERVES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        with pytest.raises(StoreRefused, match=f"a process of user {NOBODY} listens there; this one, of user 0, joins"):
            store.connect(url)
        with ClientStore([url.removeprefix("embedded://")]) as anyway:  # it does not ask whose the server is
            anyway.put("a", b"1")
        process.communicate("\n", timeout=PATIENCE_S)


def test_a_user_whom_the_kernel_does_not_name_is_asked_for_a_secret(state, monkeypatch):
    monkeypatch.setattr(socket_owners, "owner_of", lambda end, other: None)
    with StoreServer(state) as server, pytest.raises(StoreRefused, match="whom the kernel does not name here; give"):
        store.connect(server.url)


def test_another_user_is_refused_as_the_kernel_names_it(state, monkeypatch):
    monkeypatch.setattr(socket_owners, "owner_of", lambda end, other: NOBODY)
    with StoreServer(state) as server, pytest.raises(StoreRefused, match=f"this one is of user {NOBODY}; give the"):
        store.connect(server.url)


def test_a_server_whose_user_the_kernel_does_not_name_is_not_joined(state, monkeypatch):
    monkeypatch.setattr(socket_owners, "listening_users", lambda host, port: set())
    with StoreServer(state) as server, pytest.raises(StoreRefused, match="whose store it is cannot be known here"):
        store.connect(server.url)


def test_with_a_secret_users_do_not_matter(state, monkeypatch):
    monkeypatch.setattr(socket_owners, "owner_of", lambda end, other: NOBODY)
    monkeypatch.setattr(socket_owners, "listening_users", lambda host, port: {NOBODY})
    with StoreServer(state, secret=SECRET) as server, store.connect(server.url, secret=SECRET) as client:
        client.put("a", b"1")


def test_a_connection_is_judged_by_itself_and_not_by_one_before_it(state, monkeypatch):
    with StoreServer(state) as server:
        store.connect(server.url).close()
        monkeypatch.setattr(socket_owners, "owner_of", lambda end, other: NOBODY)
        with pytest.raises(StoreRefused):
            store.connect(server.url)
