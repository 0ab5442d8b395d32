"""What another user of the machine can do to this user's files, sockets, memory and processes: nothing."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilin._base import flight_folder
from resilin._base.private_files import NotOurs
from resilin.distributed.stores import FileStore
from resilin.elastic.ledger import Ledger
from resilin.errors import DistStoreError, StoreRefused, UsageError
from resilin.launcher import exit_codes, flag_types, main
from resilin.store.file import FileStore as FolderStore
from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc

# everything that can be tried with a name: what was done is printed, a line each
TRIES = """
def attempt(what, call):
    try:
        call()
    except OSError:
        return
    print("he could", what, flush=True)

def locked(path):
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

def talked(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)

def over(path):
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path)) as own:
        os.rename(own.name, path)

def tries(path):
    attempt(f"read {path}", lambda: open(path, "rb").read(1))
    attempt(f"write {path}", lambda: open(path, "r+b").close())
    attempt(f"lock {path}", lambda: locked(path))
    attempt(f"open up {path}", lambda: os.chmod(path, 0o777))
    attempt(f"connect to {path}", lambda: talked(path))
    attempt(f"list {path}", lambda: os.listdir(path))
    attempt(f"make a name in {path}", lambda: open(os.path.join(path, "his"), "x").close())
    attempt(f"look at what is in {path}", lambda: os.stat(os.path.join(path, "lock")))
    attempt(f"replace {path}", lambda: over(path))
    attempt(f"move {path}", lambda: os.rename(path, path + ".his"))
    attempt(f"remove {path}", lambda: os.rmdir(path) if os.path.isdir(path) else os.unlink(path))

for top in sys.argv[1:]:
    for path in sorted(os.listdir(top)):
        tries(os.path.join(top, path))
"""


@pytest.fixture
def umask_0():
    """The most careless of all settings."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def bait(common):
    """Something that is everybody's: what is tried works where it is allowed."""
    (common / "bait").touch()
    (common / "bait").chmod(0o666)
    return {f"he could {what} {common}/bait" for what in ("read", "write", "lock")}


def test_another_user_reads_writes_locks_and_replaces_none_of_the_files(common, other_user, umask_0, bait):
    folder = common / "made" / "store"
    with FolderStore(str(folder)) as store, FileStore(common / "meet", timeout=5.0) as meeting:
        store.put("a", b"1")
        store.lease(30.0)
        meeting.set("secret", "x")
        os.close(os.open(flag_types.output_file("--event-log", str(common / "events")), os.O_RDONLY))
        Ledger(str(common / "kept" / "ledger")).close()
        flag_types.folder("--log-dir", str(common / "logs"))
        flight_folder.open_in(str(common / "flights"), 8, "job").close()
        assert sorted(path.name for path in common.iterdir()) == [
            "bait",
            "events",
            "flights",
            "kept",
            "logs",
            "made",
            "meet",
            "meet.users",
        ]
        told = other_user.run(TRIES, common)
        assert set(told) == bait
        store.put("a", b"2")
        assert meeting.get("secret") == b"x"


MADE_FIRST = """
top = sys.argv[1]
for name in ("meet", "meet2.users", "events", "ledger"):
    open(os.path.join(top, name), "x").close()
    os.chmod(os.path.join(top, name), 0o666)
for name in ("store", "flights"):
    os.mkdir(os.path.join(top, name), 0o777)
os.symlink(sys.argv[2], os.path.join(top, "link"))
os.symlink(os.path.join(top, "store"), os.path.join(top, "link-to-store"))
"""


def test_names_that_another_user_has_made_first_are_refused_with_his_name(
    common, other_user, tmp_path, monkeypatch, capsys
):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    precious.chmod(0o600)
    other_user.run(MADE_FIRST, common, precious)
    his = re.escape(f"user {other_user.uid} ({other_user.name})")
    theirs = [
        (StoreRefused, lambda: FolderStore(str(common / "store"))),
        (StoreRefused, lambda: FolderStore(str(common / "link-to-store"))),
        (DistStoreError, lambda: FileStore(common / "meet", timeout=1.0)),
        (DistStoreError, lambda: FileStore(common / "meet2", timeout=1.0)),
        (DistStoreError, lambda: FileStore(common / "link", timeout=1.0)),
        (UsageError, lambda: flag_types.output_file("--event-log", str(common / "events"))),
        (UsageError, lambda: flag_types.output_file("--event-log", str(common / "link"))),
        (UsageError, lambda: Ledger(str(common / "ledger"))),
    ]
    for error, call in theirs:
        with pytest.raises(error, match=rf"{common}/.*{his}.*in a folder of your own"):
            call()
    monkeypatch.setenv("TMPDIR", str(common))
    (common / "flights").rename(flight_folder.default())
    with pytest.raises(NotOurs, match=rf"belongs to {his}"):
        flight_folder.open_in(None, 8, "job")
    assert main.main(["trace"]) == exit_codes.USAGE
    assert re.search(rf"belongs to {his}", capsys.readouterr().err)
    assert precious.read_text() == "precious"


HOLDS = """
kept = open(sys.argv[1], "rb")
fcntl.flock(kept, fcntl.LOCK_EX)
print("holds", flush=True)
sys.stdin.read()
"""


def test_a_lock_that_another_user_holds_is_refused_with_his_process(common, other_user):
    """He has had the lock's file open since before it was closed to others, as earlier versions left it."""
    folder = common / "store"
    folder.mkdir(0o755)
    (folder / "lock").touch()
    (folder / "lock").chmod(0o644)
    with other_user.running(HOLDS, folder / "lock") as he:
        whose = rf"process {he.pid} \(python.*\) of user {other_user.uid} \({other_user.name}\)"
        with pytest.raises(StoreRefused, match=rf"{whose} holds the lock of {folder}/lock.*have that process ended"):
            FolderStore(str(folder), timeout_s=PATIENCE_S)
    FolderStore(str(folder)).close()


WORKER = """
import sys, time
from pathlib import Path
import resilin, resilin.distributed as dist

dist.init_process_group()
stop = resilin.zeros(1)
while not stop.item():
    if dist.get_rank() == 0:
        stop[0] = float(Path(sys.argv[1]).exists())
    dist.broadcast(stop, 0)
    dist.all_reduce(resilin.ones(1 << 16))
    Path(sys.argv[1] + f"-{dist.get_rank()}").touch()
    time.sleep(0.01)
"""

JOB = (
    TRIES
    + """
names, ports, pids = (json.loads(text) for text in sys.stdin.readline().split())
sys.argv[1:] = []

def answer(sock):
    said = b""
    with contextlib.suppress(OSError):
        sock.settimeout(20.0)
        sock.send(bytes(32))
        while data := sock.recv(100):
            said += data
            if len(said) == 32:
                sock.send(bytes(32))
    return said

for name in names:
    with socket.socket(socket.AF_UNIX) as sock:
        with contextlib.suppress(OSError):
            sock.connect("\\0" + name)
        print("name", answer(sock))
for port in ports:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        said = answer(sock)
        print("port", said[32:])
for pid in pids:
    for what in ("environ", "mem", "maps", "stack"):
        attempt(f"read {what} of {pid}", lambda: open(f"/proc/{pid}/{what}", "rb").read(1))
    attempt(f"list files of {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
    for number in range(64):
        attempt(f"open file {number} of {pid}", lambda: os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY))
    attempt(f"end {pid}", lambda: os.kill(pid, signal.SIGTERM))
"""
)


def descendants(pid: int) -> list[int]:
    """`pid` and all processes that it has started, directly or not."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def sockets(pids: list[int]) -> tuple[list[str], list[int]]:
    """The abstract names and the ports of IPv4 at which these processes listen."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
    unix = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    names = {row[7][1:] for row in unix if len(row) > 7 and row[6] in inodes and row[7].startswith("@resilin")}
    tcp = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    ports = {int(row[1].partition(":")[2], 16) for row in tcp if row[9] in inodes and row[3] == "0A"}
    return sorted(names), sorted(ports)


def test_another_user_learns_changes_and_ends_nothing_of_a_running_job(common, other_user, tmp_path, umask_0, bait):
    program, stop = tmp_path / "worker.py", tmp_path / "stop"
    program.write_text(WORKER)
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", "--nproc-per-node=2", "--nnodes=1:2"]
    command += ["--rdzv-backend=file", f"--rdzv-endpoint={common}/meet", f"--rdzv-id={tmp_path.name}"]
    command += ["--rdzv-conf=last_call_timeout=0.2", f"--event-log={common}/events", f"--log-dir={common}/logs"]
    kept = {**os.environ, "TMPDIR": str(common), "XDG_RUNTIME_DIR": str(common), "RESILIN_SECRET": "s" * 32}
    job = subprocess.Popen([*command, program, stop], env=kept, stderr=subprocess.PIPE, text=True)
    with job, other_user.running("print('here', flush=True)\n" + JOB) as he:
        until_made(tmp_path / "stop-0", job)
        until_made(tmp_path / "stop-1", job)
        pids = descendants(job.pid)
        names, ports = sockets(pids)
        assert len(pids) >= 4
        assert len(names) == 2, "each worker listens for its peers"
        assert ports, "and the store of the ranks, which rank 0 serves"
        told, _ = he.communicate(f"{compact(names)} {compact(ports)} {compact(pids)}\n", timeout=PATIENCE_S)
        tried = other_user.run(TRIES, common)
        stop.touch()
        _, err = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, err
    said = told.splitlines()
    assert said.count("name b''") == len(names), "whoever it is, the kernel has named him: not a word"
    assert set(said) <= {"name b''", "port b''", f"port {bytes(32)}"}, "no proof: no word but a number and a refusal"
    assert set(tried) == bait


def compact(value: object) -> str:
    return repr(value).replace(" ", "").replace("'", '"')


def until_made(path: Path, job: subprocess.Popen) -> None:
    """Wait for the file `path`, which `job` makes."""
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert job.poll() is None, job.stderr.read()
        assert time.monotonic() < end, f"{path} is not made"
        time.sleep(0.02)  # polls another process, which cannot tell us
