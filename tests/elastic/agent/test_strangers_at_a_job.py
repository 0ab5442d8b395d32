"""What another user of the machine can do to a running job by its store: nothing; and what a crowd of strangers can."""

import re
import resource
import subprocess
import sys

import other_user
import pytest
from launches import INPLACE

from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc

NOBODY = other_user.UID
needs_root = other_user.needs_root

# the commands of another user: each is told what is the matter, and changes nothing
COMMANDS = f"""
import codecs, os, sys
from resilin.launcher import arguments, exit_codes, main, plan, programs, store_bootstrap
from resilin import store
from resilin.store.server import StoreServer
with store.MemoryStore() as state, StoreServer(state) as server:
    store.connect(server.url).close()  # loads what it needs, as root
[codecs.lookup(name) for name in ("ascii", "utf-8", "idna", "latin-1")]
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
os.environ.update(HOME="/tmp", XDG_RUNTIME_DIR="")
job, place = sys.argv[1:]
for command in (["status"], ["top", "--once"], ["scale", "1"], ["drain", "box"]):
    code = main.main([command[0], job, *command[1:], "--endpoint", place])
    print(command[0], code, flush=True)
flags = ["--nnodes=1:2", "--rdzv-backend=embedded", "--rdzv-endpoint", place, "--rdzv-id", job, "--no-python", "true"]
args = arguments.parse(flags)
what = plan.make(args, programs.of(args))
join = lambda: store_bootstrap.open_store(what.meeting, what.job.secret)
print("join", exit_codes.guarded("elastic-run", join), flush=True)
"""

# many connections: idle ones, ones that stop amid the first words, ones that say them and no more
CROWD = f"""
import os, resource, socket, sys
[text.encode("idna") for text in ("", "a")]  # loads what it needs, as root
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
if os.geteuid() == 0 and sys.argv[2] == "another":
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
preface = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
kept = []
for number in range(1500):
    kept.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20.0))
    words = (b"", preface[:14], preface)[number % 3]
    if words:
        kept[-1].send(words)
print(len(kept), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def job(launch, steps, tmp_path, free_port):
    """`job(*flags)` starts a job whose store is on `free_port`, and waits until it works."""

    def start(*flags, within=()):
        (steps / "hold").touch()
        conf = ("--rdzv-conf", "lease_ttl=2,join_timeout=20,last_call_timeout=0.5")
        program = ("--no-python", sys.executable, INPLACE, steps, 10, 0.01, 2)
        one = launch(
            *flags,
            "--max-restarts",
            3,
            "--rdzv-id",
            tmp_path.name,
            "--nproc-per-node",
            2,
            *conf,
            *program,
            within=within,
        )
        one.until(lambda: "world 1" in one.out)
        return one

    return start


@needs_root
@pytest.mark.parametrize("place", ["localhost", "static"])
def test_another_user_sees_steers_and_joins_nothing(job, steps, tmp_path, free_port, place):
    flags = ("--rdzv-backend=static", "--node-rank=0") if place == "static" else ("--rdzv-backend=embedded",)
    host = "127.0.0.1" if place == "static" else place
    one = job("--nnodes=1:2", *flags, f"--rdzv-endpoint={host}:{free_port}")
    command = [sys.executable, "-c", COMMANDS, tmp_path.name, f"127.0.0.1:{free_port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.split() == ["status", "5", "top", "5", "scale", "5", "drain", "5", "join", "5"], done.stderr
    assert done.stderr.count(f"and this one is of user {NOBODY}; give the store and all that use it one secret") == 5
    assert "Traceback" not in done.stderr
    (steps / "hold").unlink()
    assert one.wait() == 0, one.err


@pytest.mark.parametrize(("hard", "user"), [(1024, "another"), (None, "another"), (1024, "own")])
def test_a_job_goes_on_through_1500_connections_of_strangers(job, steps, free_port, hard, user):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2000:
        pytest.skip("a crowd of 1500 cannot be opened here")
    within = () if hard is None else ("sh", "-c", f'ulimit -n {hard} && exec "$@"', "sh")
    one = job("--nnodes=1:2", "--rdzv-backend=embedded", f"--rdzv-endpoint=127.0.0.1:{free_port}", within=within)
    command = [sys.executable, "-c", CROWD, str(free_port), user]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
        assert crowd.stdout.readline() == "1500\n"
        assert one.process.poll() is None
        (steps / "die-0").write_text("0 SIGKILL")
        one.until(lambda: "killed by SIGKILL" in one.err and re.search(r"world [23] rank 0/2", one.out))
        (steps / "hold").unlink()
        assert one.wait() == 0, one.err
        crowd.communicate("\n", timeout=PATIENCE_S)
    assert "connections were dropped" in one.err
