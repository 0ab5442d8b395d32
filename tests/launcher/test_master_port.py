"""MASTER_PORT is nobody else's between the moment it is chosen and that rank 0 listens there."""

import os
import socket
import subprocess
import sys

import pytest

from resilin.elastic.agent.master_port import MasterPort
from resilin.errors import StoreError
from resilin.launcher import arguments, programs
from resilin.testing import ports
from resilin.testing.patience import PATIENCE_S

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")

# Takes a port, in every way that there is, of all addresses or one; says what it got.
TAKES = """
import itertools, os, socket, sys
port, user = map(int, sys.argv[1:])
if user:
    os.setuid(user)
for address, reuse, share in itertools.product(("127.0.0.1", "0.0.0.0", "::1", "::"), (0, 1), (0, 1)):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, share)
        try:
            sock.bind((address, port))
            sock.listen()
            print(address, "reuse" * reuse, "share" * share)
        except OSError as error:
            assert "in use" in str(error), error
"""


def taken(port, user=0):
    argv = [sys.executable, "-c", TAKES, str(int(port)), str(user)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_root
def test_no_other_user_takes_the_port_of_a_program_that_meets_by_our_store():
    with MasterPort(ours=True) as port:
        assert taken(port, NOBODY) == []
    with MasterPort() as port:  # PyTorch's programs ask for SO_REUSEADDR alone
        assert len(taken(port, NOBODY)) == 8


def test_no_program_of_this_user_takes_it_that_does_not_ask_to_share_it():
    with MasterPort(ours=True) as port:
        assert all("share" in line for line in taken(port))


@pytest.mark.parametrize("ours", [False, True])
def test_two_launchers_never_hold_one_port(ours):
    with MasterPort(ours=ours) as port, pytest.raises(StoreError, match=f"--master-port {int(port)} is in use"):
        MasterPort(int(port), ours=True)


@needs_root
def test_a_port_whose_last_connections_are_still_closing_is_held_as_well():
    """A job that is started again at its port, within a minute."""
    with ports.held() as (port,), socket.create_server(("127.0.0.1", port)) as server:
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        client.recv(1)
        client.close()
    with MasterPort(port, ours=True) as held:
        assert int(held) == port
        assert taken(held, NOBODY) == []


def test_where_the_system_lets_nobody_in_afterwards_the_port_is_open_as_for_any_program(monkeypatch):
    class Stubborn(socket.socket):
        """Keeps to what it was when it was bound."""

        def setsockopt(self, level, name, value):
            if self.getsockname()[1] == 0:
                super().setsockopt(level, name, value)

    monkeypatch.setattr(socket, "socket", Stubborn)
    with MasterPort(ours=True) as port:
        monkeypatch.undo()
        with socket.create_server(("127.0.0.1", int(port))):  # with SO_REUSEADDR
            pass


def test_a_port_that_was_taken_is_replaced_unless_it_was_asked_for(monkeypatch):
    with MasterPort() as port:
        assert port.renew() == ""
        number = int(port)
        with socket.create_server(("127.0.0.1", number)):
            said = port.renew()
        assert said == (
            f"a process of user {os.geteuid()} took MASTER_PORT {number} before rank 0 listened there: "
            f"{int(port)} is next"
        )
        assert int(port) != number
    with ports.held() as (number,), MasterPort(number) as port, socket.create_server(("127.0.0.1", number)):
        assert port.renew() == ""
        assert int(port) == number


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("from resilin import dist\nimport os, sys\nimport numpy as np", True),
        ("import resilin.nn as nn\nfrom collections.abc import Iterator", True),
        ("import numpy", False),  # what it imports later, nobody knows
        ("import resilin\nimport torch.distributed", False),
        ("import resilin\nimport os; import torch", False),
        ("import resilin\ndef late():\n    from lightning import Trainer", False),
        ("import resilin\nfrom . import beside", False),
        ("import resilin\nimport importlib", False),
        ("import resilin, os\nport = os.environ['MASTER_PORT']", False),
        ("import resilin\n#" + "x" * (64 << 10), False),
    ],
)
def test_the_text_of_a_program_tells_who_listens_there(tmp_path, text, ours):
    (tmp_path / "train.py").write_text(text)
    assert programs.of(arguments.parse([str(tmp_path / "train.py")])).ours is ours


def test_what_a_function_that_is_launched_from_python_does_nobody_knows():
    assert not programs.of(arguments.parse(["-m", "resilin.elastic.spawn.entrypoint", "folder"])).ours


def test_as_torch_makes_torch_ours(tmp_path):
    (tmp_path / "train.py").write_text("import torch.distributed as dist")
    assert programs.of(arguments.parse(["--as-torch", str(tmp_path / "train.py")])).ours
    (tmp_path / "train.py").write_text("import torch, lightning")
    assert not programs.of(arguments.parse(["--as-torch", str(tmp_path / "train.py")])).ours


# --------------------------------------------------------------------------------------- whole jobs

# Meets as any program of ours; before rank 0 does, another user tries to take the port, as fast as it can.
MEETS = """
import os, subprocess, sys
import numpy as np
from resilin import dist
if os.environ["RANK"] == "0":
    attacker = subprocess.Popen([sys.executable, "-c", {attacker!r}], stdout=subprocess.PIPE, text=True)
    assert attacker.stdout.readline() == "begun\\n"
for _ in range(3):
    dist.init_process_group()
    value = np.ones(2)
    dist.all_reduce(value)
    os.write(1, f"{{value[0]:g}}\\n".encode())
    dist.destroy_process_group()
if os.environ["RANK"] == "0":
    attacker.terminate()
    os.write(1, attacker.communicate()[0].encode())
"""
ATTACKER = """
import os, signal, socket
os.setuid({user})
port = int(os.environ["MASTER" + "_PORT"])
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
os.write(1, b"begun\\n")
while True:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
            os.write(1, b"taken\\n")
        except OSError:
            pass
"""
# Binds as PyTorch does. In the first generation another program has been faster.
LOSES = """
import os, socket
port, rank = int(os.environ["MASTER_PORT"]), os.environ["RANK"]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    thief = socket.create_server(("127.0.0.1", port))
    if os.fork() == 0:
        os.setsid()
        with open("thief", "w") as file:
            file.write(str(os.getpid()))
        while True:
            thief.accept()
    while not os.path.exists("thief") or not os.path.getsize("thief"):
        pass
    thief.close()
server = socket.create_server(("127.0.0.1", port))
os.write(1, f"{port}\\n".encode())
"""


def run(*args, cwd, **env):
    argv = [sys.executable, "-m", "resilin.launcher.elastic_run", *map(str, args)]
    env = {**os.environ, **env}
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, env=env, cwd=cwd, check=False)


@pytest.mark.multiproc
@needs_root
def test_an_attacker_who_tries_all_the_time_never_has_the_port(tmp_path):
    attacker = ATTACKER.format(user=NOBODY)
    (tmp_path / "train.py").write_text(MEETS.format(attacker=attacker))
    done = run("--nproc-per-node", 2, tmp_path / "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["2"] * 6
    assert "took MASTER_PORT" not in done.stderr


@pytest.mark.multiproc
def test_a_program_that_loses_its_port_has_another_one_in_the_next_generation(tmp_path):
    (tmp_path / "train.py").write_text(LOSES)
    done = run("--max-restarts", 1, tmp_path / "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"a process of user {os.geteuid()} took MASTER_PORT " in done.stderr
    assert f": {done.stdout.strip()} is next" in done.stderr
