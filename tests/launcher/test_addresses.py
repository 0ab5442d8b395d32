"""One form of addresses everywhere: HOST:PORT, and an IPv6 address in brackets."""

import os
import re
import socket
import string
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilin import store
from resilin._base import host, host_port
from resilin.errors import SecretRequired, StoreError, UsageError
from resilin.launcher import addresses, arguments, plan, store_bootstrap
from resilin.store import client
from resilin.store import server as store_server
from resilin.store.connect import url_of
from resilin.store.memory import MemoryStore
from resilin.testing import ports
from resilin.testing.patience import PATIENCE_S

NAMES = st.text(string.ascii_letters + string.digits + "-._", min_size=1, max_size=30)
V6 = st.ip_addresses(v=6).map(str)
HOSTS = st.one_of(NAMES, st.ip_addresses(v=4).map(str), V6, V6.map(lambda address: f"{address}%eth0"))
PORTS = st.integers(1, host_port.MAX_PORT)


@given(HOSTS, PORTS)
def test_what_is_written_is_read(name, port):
    assert host_port.parse(host_port.join(name, port), "x") == (name, port)
    assert host_port.parse(host_port.in_url(name), "x", default_port=port) == (name, port)
    assert host_port.host(name, "x") == host_port.host(host_port.in_url(name), "x") == name


@given(st.one_of(st.text(max_size=40), st.text("[]:1f.%", max_size=12)), st.sampled_from([None, 7]))
def test_any_text_is_an_address_with_one_meaning_or_one_line(text, default):
    told = ""
    try:
        found = host_port.parse(text, "--flag", default_port=default)
    except UsageError as error:
        told = str(error)
    if told:
        assert told.startswith("--flag: expected HOST:PORT")
        assert told.isprintable()
    else:
        assert host_port.parse(str(found), "--flag") == found
        assert (":" in found.host) == text.startswith("[")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("::1:29400", "got '::1:29400': an IPv6 address stands in brackets, [::1]:29400"),
        ("::1:2940", "in brackets, [::1]:2940 or [::1:2940]"),  # an address as it stands
        ("::1", "in brackets, [::1]"),
        ("fe80::1%eth0:5", "in brackets, [fe80::1%eth0]:5"),
        ("[::1]5", "got '[::1]5'"),
        ("[localhost]:5", "got '[localhost]:5'"),
        ("host:0", "ports are 1 to 65535"),
        ("host:65536", "ports are 1 to 65535"),
        ("host:٣", "got 'host:\\u0663'"),
        ("\x1b[31mhost:1", "got '\\x1b[31mhost:1'"),
        ("h" * 5000 + "::", "hhh...'"),
    ],
)
def test_what_is_no_address_is_shown_with_what_may_be_meant(text, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        host_port.parse(text, "--rdzv-endpoint", default_port=29400)


@pytest.mark.parametrize("text", ["h:1", "[::1]:1", "a:b:c", "", "[h]", "a b", "::1%a:b"])
def test_where_no_port_can_stand_none_is_taken(text):
    with pytest.raises(UsageError, match="--local-addr: expected a name or an address"):
        host_port.host(text, "--local-addr")


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0:0:0:0:0:0:0:1", True), ("::ffff:127.0.0.1", True),
        ("localhost", True), ("LOCALHOST", True), ("ip6-localhost", True), ("::", False), ("0.0.0.0", False),
        ("192.0.2.1", False), ("::ffff:192.0.2.1", False), ("127.0.0.1.example.com", False), ("127.example.com", False),
    ],
)  # fmt: skip
def test_loopback_is_told_by_the_address_not_by_its_spelling(address, inside):
    assert host.is_loopback(address) is inside


def test_a_name_is_on_loopback_when_all_it_stands_for_is(monkeypatch):
    known = {"one": ["127.0.1.1"], "both": ["127.0.1.1", "192.0.2.1"], "127.0.0.1.example.com": ["192.0.2.1"]}
    monkeypatch.setattr(host, "addresses_of", lambda name: known.get(name, []))
    assert host.is_on_loopback("one")
    assert not any(map(host.is_on_loopback, ("both", "127.0.0.1.example.com", "unknown")))


def test_a_store_is_not_served_without_a_secret_at_a_name_that_only_looks_like_loopback(monkeypatch):
    """Found by its spelling, `127.0.0.1.example.com` would be served to everybody."""
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *a, **k: real("0.0.0.0", *a, **k))
    with MemoryStore() as state, pytest.raises(SecretRequired, match="beyond loopback"):
        store_server.StoreServer(state, "127.0.0.1.example.com")


# ------------------------------------------------------------------------------------------- the launcher


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text("pass")
    return tmp_path / "train.py"


def made(*argv):
    return plan.make(arguments.parse([str(arg) for arg in argv]))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--rdzv-endpoint", "::1:29400"], r"--rdzv-endpoint: .*in brackets, \[::1\]:29400"),
        (["--rdzv-endpoint", "::1"], r"--rdzv-endpoint: .*in brackets, \[::1\]"),
        (["--rdzv-backend", "etcd", "--rdzv-endpoint", "h:1,::1:2379"], r"--rdzv-endpoint: .*in brackets, \[::1\]:23"),
        (["--node-rank", "0", "--master-addr", "host:29500"], "--master-addr: .*: the port is given elsewhere"),
        (["--rdzv-endpoint", "localhost:1", "--local-addr", "127.0.0.1:1"], "--local-addr: .*port is given elsewhere"),
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_starts(flags, says, script):
    with pytest.raises(UsageError, match=says):
        made("--nnodes", "2", *flags, script)


def test_ipv6_is_taken_bare_where_no_port_can_stand_and_written_in_brackets(script):
    meeting = made("--nnodes", "2", "--node-rank", "0", "--master-addr", "::1", "--local-addr", "[::1]", script).meeting
    assert (meeting.endpoint, meeting.place) == ("[::1]:29501", ("::1", 29501))
    assert made("--nnodes", "2", "--rdzv-endpoint", "[::1]", script).meeting.endpoint == "[::1]:29400"


@pytest.mark.parametrize("command", ["status", "top", "scale", "drain", "doctor"])
def test_commands_say_how_an_ipv6_address_is_written(command):
    """`resilin doctor --endpoint HOST:PORT` took a URL alone."""
    words = {"scale": ["job", "2"], "drain": ["job", "host"], "doctor": []}.get(command, ["job"])
    argv = [sys.executable, "-m", "resilin.launcher.main", command, *words, "--endpoint", "::1:29400"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2, done.stderr
    assert "an IPv6 address stands in brackets, [::1]:29400" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("endpoint", "asked"),
    [
        ("[::1]:5", ["[::1]:5"]),
        ("[::1]", ["[::1]:29400"]),
        ("localhost", ["localhost:29400"]),
        ("etcd://h", ["h:2379"]),
        ("etcd://h:1, [::1]", ["h:1", "[::1]:2379"]),
    ],
)
def test_a_store_is_asked_at_the_usual_port_unless_another_one_is_named(monkeypatch, endpoint, asked):
    seen = []
    monkeypatch.setattr(client.ClientStore, "__init__", lambda self, endpoints, **_: seen.extend(endpoints))
    monkeypatch.setattr(client.ClientStore, "ping", lambda self: None)
    store.connect(url_of(endpoint))
    assert seen == asked


# ---------------------------------------------------------------------------- a machine's own name on loopback


@pytest.fixture
def own_name(monkeypatch):
    """This machine's name, which stands for loopback here, as Debian's /etc/hosts makes it."""
    real = socket.getaddrinfo

    def look_up(name, *args, **kwargs):
        if name == "myname" and kwargs.get("flags") == socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "a name")
        return real("127.0.1.1" if name == "myname" else name, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(addresses, "outward", lambda: "192.0.2.7")
    monkeypatch.delenv("RESILIN_SECRET", raising=False)
    return "myname"


@pytest.mark.parametrize(
    "flags",
    [
        ["--rdzv-endpoint", "myname:5"],
        ["--node-rank", "0", "--master-addr", "myname"],
        ["--rdzv-backend", "etcd", "--rdzv-endpoint", "myname:5"],
        ["--rdzv-backend", "etcd", "--rdzv-endpoint", "127.0.0.1:5", "--local-addr", "myname"],
    ],
)
def test_without_a_secret_it_is_refused_with_what_to_do(flags, own_name, script, monkeypatch):
    with pytest.raises(SecretRequired, match=r"myname stands for 127\.0\.1\.1 .*same secret.*name localhost instead"):
        made("--nnodes", "2", *flags, script)
    monkeypatch.setenv("RESILIN_SECRET", "a secret for tests alone")
    monkeypatch.setattr(addresses, "is_own", lambda host: True)
    monkeypatch.setattr(plan, "address_towards", lambda host, port: host)
    assert made("--nnodes", "2", *flags, script).address == "192.0.2.7"


def test_nodes_that_all_run_here_may_say_so(own_name, script):
    for local in ("127.0.0.1", "[::1]"):
        what = made("--nnodes", "2", "--rdzv-endpoint", "myname:5", "--local-addr", local, script)
        assert (what.meeting.endpoint, what.address) == ("myname:5", local.strip("[]"))


def test_one_node_alone_may_meet_itself_there(own_name, script):
    what = made("--rdzv-endpoint", "myname:5", script)
    assert (what.address, what.meeting.endpoint) == ("127.0.0.1", "myname:5")
    with MemoryStore() as state, store_server.StoreServer(state, own_name) as served:
        assert served.url == f"embedded://myname:{served.port}"


@pytest.mark.parametrize("is_host", [True, None])
@pytest.mark.parametrize("error", [UsageError("ports below 1024 are the administrator's"), SecretRequired("a secret")])
def test_what_keeps_the_store_from_listening_is_said_at_once_and_as_it_is(monkeypatch, is_host, error):
    """All of it was taken for a port in use: it waited 30 s for the store that another process was to serve there."""

    def refuse(*args):
        raise error

    monkeypatch.setattr(store_server, "StoreServer", refuse)
    meeting = plan.Meeting(
        backend="embedded", endpoint="localhost:5", is_host=is_host, connect_timeout_s=0.0, join_timeout_s=1.0,
        lease_ttl_s=1.0,
    )  # fmt: skip
    kind = SecretRequired if isinstance(error, SecretRequired) else StoreError
    with pytest.raises(kind, match=str(error)):
        store_bootstrap.open_store(meeting, "")


def test_another_process_at_the_port_is_another_matter():
    in_use = pytest.raises(store_server.PortTaken)
    with socket.create_server(("127.0.0.1", 0)) as taken, MemoryStore() as state, in_use:
        store_server.StoreServer(state, "127.0.0.1", taken.getsockname()[1])
    with MemoryStore() as state, pytest.raises(UsageError) as caught:
        store_server.StoreServer(state, "192.0.2.1", 5, secret="a secret for tests alone")
    assert not isinstance(caught.value, store_server.PortTaken)


# ------------------------------------------------------------------------------------------------ end to end

SCRIPT = """
import os
import numpy as np
from resilin import dist
dist.init_process_group()
value = np.ones(2)
dist.all_reduce(value)
os.write(1, f"{value[0]:g} at {os.environ['MASTER_ADDR']}\\n".encode())
dist.destroy_process_group()
"""
TCP = """
import sys
import numpy as np
from resilin import dist
dist.init_process_group(init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2, timeout=60)
value = np.ones(2)
dist.all_reduce(value)
print(f"{value[0]:g}")
dist.destroy_process_group()
"""
needs_ipv6 = pytest.mark.skipif(not host.addresses_of("::1"), reason="this machine has no IPv6")


def both(commands):
    env = {**os.environ, "RESILIN_SECRET": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    runs = [subprocess.Popen([sys.executable, *map(str, one)], text=True, env=env, **pipes) for one in commands]
    try:
        ends = [run.communicate(timeout=PATIENCE_S) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], ends
    return [out for out, _ in ends]


@pytest.mark.multiproc
@needs_ipv6
def test_nodes_meet_on_ipv6_at_a_store_of_their_own(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    with ports.held(host="::1") as (port,):
        command = ["-m", "resilin.launcher.elastic_run", "--nnodes", 2, "--rdzv-endpoint", f"[::1]:{port}"]
        assert both([[*command, tmp_path / "train.py"]] * 2) == ["2 at ::1\n"] * 2


@pytest.mark.multiproc
@needs_ipv6
def test_the_url_of_a_store_that_is_served_on_ipv6_is_an_endpoint(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    argv = [sys.executable, "-m", "resilin.launcher.main", "store", "serve", "--host", "::1", "--port", "0"]
    env = {**os.environ, "RESILIN_SECRET": ""}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as served:
        try:
            line = served.stdout.readline()
            url = re.search(r"embedded://(\[::1\]:\d+) ", line)[1]
            assert f"etcdctl --endpoints {url} " in line
            command = ["-m", "resilin.launcher.elastic_run", "--nnodes", 2, "--rdzv-endpoint", url]
            assert both([[*command, tmp_path / "train.py"]] * 2) == ["2 at ::1\n"] * 2
            doctor = [sys.executable, "-m", "resilin.launcher.main", "doctor", "--endpoint", url]
            told = subprocess.run(doctor, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            assert f"{url} answers" in told.stdout
        finally:
            served.terminate()


@pytest.mark.multiproc
@needs_ipv6
def test_ranks_meet_at_an_ipv6_url(tmp_path):
    (tmp_path / "train.py").write_text(TCP)
    with ports.held(host="::1") as (port,):
        url = f"tcp://[::1]:{port}"
        assert both([[tmp_path / "train.py", url, rank] for rank in range(2)]) == ["2\n"] * 2
