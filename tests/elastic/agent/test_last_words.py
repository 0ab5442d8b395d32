"""What a worker writes reaches its reader: its last line, too, whatever became of its world."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from launches import Launch, until

from resilin.elastic.agent.console import Console
from resilin.elastic.agent.stream_selection import StreamSelection
from resilin.elastic.agent.streams import Plan
from resilin.testing import ports
from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc

TRAINS = """
import os, pathlib, signal, sys, time
import numpy as np
from resilin import dist, elastic

folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
state = elastic.State(total=0)

@elastic.run
def train(state):
    while state.total < 3 or dist.get_world_size() < 2 and not (folder / "returns").exists():
        dist.all_reduce(np.ones(1))
        state.total += 1
        state.commit()
    if name == "slow":
        spawner = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        agent = int(spawner[1])
        (folder / "agent").write_text(str(agent))
        os.kill(agent, signal.SIGSTOP)
    (folder / "returns").touch()

train(state)
(folder / f"{name}.returned").touch()
if name == "fast":
    while not (folder / "go").exists():
        time.sleep(0.01)
print(f"{name} has trained", flush=True)
"""


def listens(port):
    """Whether somebody does."""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture
def store():
    """`resilin store serve` on a port of its own; where it is."""
    with ports.held() as (port,):
        command = [sys.executable, "-m", "resilin.launcher.main", "store", "serve", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(lambda: listens(port))  # else a node that comes before it is the store
        yield f"127.0.0.1:{port}"
        process.kill()
        process.wait()


def test_a_worker_that_was_done_when_its_node_was_taken_for_lost_has_its_last_line_shown(tmp_path, script, store):
    program = script(TRAINS)
    flags = ("--nnodes", "1:2", "--rdzv-endpoint", store, "--rdzv-conf", "lease_ttl=1", "--max-restarts", "2")
    nodes = {}
    try:
        for name in ("slow", "fast"):
            (tmp_path / name).mkdir()
            nodes[name] = Launch(tmp_path / name, [*flags, str(program), str(tmp_path), name], {})
        until((tmp_path / "fast.returned").exists, story=lambda: nodes["fast"].err + nodes["slow"].err)
        os.kill(int((tmp_path / "agent").read_text()), signal.SIGCONT)
        assert nodes["slow"].wait() == 0
        assert nodes["slow"].out == "slow has trained\n"
        (tmp_path / "go").touch()
        assert nodes["fast"].wait() == 0
        assert nodes["fast"].out == "fast has trained\n"
    finally:
        for one in nodes.values():
            with contextlib.suppress(ProcessLookupError):
                one.signal(signal.SIGKILL)
            one.process.wait(PATIENCE_S)


LEAVES_A_CHILD = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "0":
    worker = os.getpid()
    if os.fork():
        print("the worker ends")
        sys.exit()
    os.setsid()  # what ends a worker's process group leaves it alone
    while os.getppid() == worker:
        time.sleep(0.01)
    time.sleep(0.2)  # longer than the agent takes to hear of that end
    os.write(1, b"".join(b"late line %d\\n" % number for number in range(20_000)))
    (folder / "written").touch()
    time.sleep(1000)
while not (folder / "written").exists():
    time.sleep(0.01)
"""


def test_what_a_worker_has_left_behind_writes_on_after_its_end(tmp_path, script, launch):
    program = script(LEAVES_A_CHILD)
    logs = tmp_path / "logs"
    job = launch("--standalone", "--nproc-per-node", 2, "--tee", 1, "--log-dir", logs, program, tmp_path)
    assert job.wait() == 0
    late = ["the worker ends", *(f"late line {number}" for number in range(20_000))]
    assert job.out.splitlines() == [f"[default0]:{line}" for line in late]
    (log,) = logs.glob("*/attempt_0/0/stdout.log")
    assert log.read_text().splitlines() == late


def test_a_worker_that_writes_without_end_leaves_the_agent_its_turns(tmp_path):
    over = threading.Event()

    def write(descriptor):
        with contextlib.suppress(BrokenPipeError):
            while not over.is_set():
                os.write(descriptor, b"x" * (1 << 16))
        os.close(descriptor)

    async def play(console):
        plan = Plan(base=tmp_path, keep=True, tee=StreamSelection(default=1), console=console)
        streams = plan.open(0, 0, "default", "box", lambda: (0, 0))
        writer = threading.Thread(target=write, args=(os.dup(streams.fd("stdout")),))
        writer.start()
        streams.started()
        try:
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(100):
                    await asyncio.sleep(0)
            streams.ended()
            assert streams.open
        finally:
            over.set()
            streams.close()
            writer.join()

    null = os.open(os.devnull, os.O_WRONLY)
    console = Console()
    console.stdout._fd = null
    try:
        asyncio.run(play(console))
    finally:
        console.close()
        os.close(null)
