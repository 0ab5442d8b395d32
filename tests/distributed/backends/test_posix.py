"""Outside shared memory nothing needs Linux: processes whose Python has nothing of Linux meet in a file and on TCP."""

import select
import socket

import pytest

from resilin._base import socket_eof
from resilin.testing.check_group import CASES
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import start_ranks

# What other POSIX systems lack: names of modules, /proc, abstract Unix sockets. Native code is built for Linux only.
ELSEWHERE = """
import builtins, os, select, signal, socket, sys
for module in ("resilin.distributed._native", "resilin.core._native", "resilin.rpc._native"):
    sys.modules[module] = None
for space, names in (
    (os, "memfd_create MFD_CLOEXEC sched_getaffinity pidfd_open eventfd posix_fallocate splice copy_file_range"),
    (select, "epoll POLLRDHUP"),
    (signal, "pidfd_send_signal"),
    (socket, "SO_PEERCRED MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK SO_PASSCRED"),
):
    for name in names.split():
        if hasattr(space, name):
            delattr(space, name)

def without_proc(function):
    def call(path, *args, **kwargs):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(path)
        return function(path, *args, **kwargs)
    return call

builtins.open, os.stat = without_proc(open), without_proc(os.stat)

class Socket(socket.socket):
    def bind(self, address):
        if isinstance(address, bytes) and address.startswith(b"\\0"):
            raise FileNotFoundError(2, "no abstract names here")
        super().bind(address)

socket.socket = Socket
"""

CASES_IN_PROCESSES = """
import os
from resilin import dist
from resilin.testing.check_group import CASES
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(init_method=os.environ["TEST_INIT_METHOD"], rank=rank, world_size=size, timeout=20.0)
for name, case in CASES.items():
    case(rank, size)
    print("passed", name, flush=True)
endpoints = dist.default_group().topology.endpoints
print(dist.default_group().stats()["transport"], {bool(end.unix) for end in endpoints})
dist.destroy_process_group()
"""

WITHOUT_A_SECRET = """
import os
os.environ.pop("RESILIN_SECRET", None)
from resilin import dist
try:
    dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=5.0)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.multiproc
def test_every_case_passes_in_processes_without_anything_of_linux(tmp_path):
    for rank in start_ranks(3, ELSEWHERE + CASES_IN_PROCESSES, str(tmp_path)):
        with rank:
            code, out, err = rank.finish(100)
            assert code == 0, err
            assert out.count("passed") == len(CASES)
            assert out.splitlines()[-1] == "stream {False}"


@pytest.mark.multiproc
def test_where_the_kernel_names_no_user_a_store_asks_for_a_secret(tmp_path):
    [rank] = start_ranks(1, ELSEWHERE + WITHOUT_A_SECRET, str(tmp_path))
    with rank:
        _, out, err = rank.finish(PATIENCE_S)
        assert "RESILIN_SECRET" in out, out + err


@pytest.fixture(params=["the kernel tells", "the stream is looked at"])
def way_to_tell(request, monkeypatch):
    if request.param != "the kernel tells":
        monkeypatch.setattr(socket_eof, "_TELLS", False)
        monkeypatch.setattr(socket_eof, "_CLOSED", select.POLLHUP | select.POLLERR)


@pytest.mark.usefixtures("way_to_tell")
def test_a_peer_that_closed_is_told_from_one_that_is_silent_or_talks():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            assert not socket_eof.hung_up(near)
            far.sendall(b"x")
            assert not socket_eof.hung_up(near, 0.01)
            assert near.recv(1) == b"x"
        assert socket_eof.hung_up(near, 5.0)
