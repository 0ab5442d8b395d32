"""`resilin status`, `top`, `drain` and `scale` of running jobs, through an agent of this machine or the job's store."""

import contextlib
import json
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import extent
import pytest
from launches import COMMAND_S, INPLACE, resilin, until

from resilin.elastic import records
from resilin.launcher import local
from resilin.testing.etcd import EtcdCluster
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc


BACKENDS = ("embedded", "etcd", "file")


def short_in(backend):
    """All backends, of which a short run has one; the stores themselves pass one suite (tests/store)."""
    return pytest.mark.parametrize("meeting", extent.short(BACKENDS, of=[backend]), indirect=True)


@pytest.fixture(scope="module")
def etcd():
    with EtcdCluster() as cluster:
        yield cluster.endpoints[0].removeprefix("http://")


@pytest.fixture
def meeting(request, tmp_path, free_port):
    """Flags that make agents meet, and the job's name and store for `resilin`."""
    place = {
        "embedded": lambda: f"localhost:{free_port}",
        "etcd": lambda: request.getfixturevalue("etcd"),
        "file": lambda: str(tmp_path / "meeting"),
    }[request.param]()
    flags = ("--rdzv-backend", request.param, "--rdzv-endpoint", place, "--rdzv-id", tmp_path.name)
    conf = ("--rdzv-conf", "lease_ttl=2,join_timeout=20")
    return (*flags, *conf), (tmp_path.name, "--endpoint", f"{request.param}://{place}")


def inplace(steps, count=10):
    return "--no-python", sys.executable, INPLACE, steps, count, 0.01


def running(job):
    """The nodes of a job and what is special about each, from `resilin status`."""
    text = resilin("status", *job).stdout
    return dict(re.findall(r"^node (\S+) \([^)]*\)(?:: (.*))?$", text, re.M))


def test_a_job_of_one_node_answers_though_nothing_listens(launch, steps, tmp_path):
    (steps / "hold").touch()
    one = launch("--standalone", "--nproc-per-node", 2, "--rdzv-id", tmp_path.name, *inplace(steps))
    one.until(lambda: "world 1" in one.out)
    told = resilin("status", tmp_path.name)
    assert told.returncode == 0, told.stderr
    assert "generation 1 (restart): 2 workers on 1 node" in told.stdout
    assert "slot 1: rank 1, ready, pid " in told.stdout
    table = resilin("top", tmp_path.name, "--once")
    assert table.returncode == 0, table.stderr
    rows = [line.split() for line in table.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["0", "1"]
    assert all(int(row[5]) > 0 and float(row[6]) > 0 for row in rows), table.stdout
    for refused in (("drain", tmp_path.name, "x"), ("scale", tmp_path.name, "2")):
        answer = resilin(*refused)
        assert (answer.returncode, "of this node alone" in answer.stderr) == (2, True)
    (steps / "hold").unlink()
    assert one.wait() == 0
    gone = resilin("status", tmp_path.name)
    assert gone.returncode == 4
    assert "name its store: --endpoint URL" in gone.stderr


def test_the_socket_is_for_this_user_alone_and_goes_with_its_agent(launch, script, tmp_path):
    one = launch("--rdzv-id", tmp_path.name, script("import time; time.sleep(1000)"))
    pid = str(one.process.pid)
    (path,) = one.until(lambda: [p for folder in local.folders() for p in folder.glob(f"{pid}-*.sock")])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    one.signal(signal.SIGTERM)
    one.wait()
    assert not path.exists()
    killed = launch("--rdzv-id", tmp_path.name, script("import time; time.sleep(1000)"))
    (path,) = killed.until(lambda: [p for f in local.folders() for p in f.glob(f"{killed.process.pid}-*.sock")])
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    assert resilin("status", tmp_path.name).returncode == 4
    assert not path.exists(), "what a killed agent left is removed by the next who looks"


ASKED_TO_GO_AT_ITS_DESK = """
import os, signal, socket, sys
from resilin.launcher import local
from resilin.launcher.elastic_run import main

class Impatient(socket.socket):
    def bind(self, path):
        super().bind(path)
        if "resilin" in str(path):
            os.kill(os.getpid(), signal.SIGTERM)

local.socket.socket = Impatient
sys.exit(main(["--no-python", sys.executable, "-c", "import time; time.sleep(1000)"]))
"""


def test_an_agent_that_is_asked_to_go_as_it_begins_to_listen_leaves_no_socket(script):
    program = script(ASKED_TO_GO_AT_ITS_DESK)
    process = subprocess.Popen([sys.executable, str(program)], stderr=subprocess.PIPE, text=True)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert not [path for folder in local.folders() for path in folder.glob(f"*{process.pid}-*")]


def agent_of(job):
    """A connection to an agent of the job, if there is one."""
    wanted = None
    for client in local.agents():
        if client.job == job and wanted is None:
            wanted = client
        else:
            client.close()
    return wanted


def test_who_asks_an_agent_that_is_killed_meanwhile_hears_that_it_has_ended(launch, script, tmp_path):
    one = launch("--rdzv-id", tmp_path.name, script("import time; time.sleep(1000)"))
    client = one.until(lambda: agent_of(tmp_path.name))
    one.signal(signal.SIGKILL)
    one.process.wait()
    with contextlib.closing(client), pytest.raises(local.StoreError, match="has ended"):
        client.range(f"/resilin/{tmp_path.name}/")


def test_a_socket_serves_the_keys_of_its_job_alone(launch, script, tmp_path):
    one = launch("--rdzv-id", tmp_path.name, script("import time; time.sleep(1000)"))
    client = one.until(lambda: agent_of(tmp_path.name))
    try:
        assert client.range(f"/resilin/{tmp_path.name}/")
        for wrong in (lambda: client.range("/resilin/"), lambda: client.compare_and_put("/other", 0, b"")):
            with pytest.raises(local.StoreError, match="does not belong to this job"):
                wrong()
        with pytest.raises(local.StoreError, match="unknown op"):
            client._ask(op="delete", key=records.Keys(tmp_path.name).closed)
    finally:
        client.close()


@short_in("file")
def test_a_drained_node_gives_up_its_workers_without_loss_and_takes_part_again_when_asked(launch, steps, meeting):
    flags, job = meeting
    (steps / "hold").touch()
    first = launch("--nnodes", "1:2", *flags, *inplace(steps))
    first.until(lambda: "world 1" in first.out)
    second = launch("--nnodes", "1:2", *flags, *inplace(steps))
    first.until(lambda: "world 2 rank 0/2" in first.out)
    oldest, newest = running(job)
    told = resilin("drain", *job, newest)
    assert (told.returncode, told.stdout) == (0, f"{newest} is drained\n"), told.stderr
    first.until(lambda: "world 3 rank 0/1" in first.out)
    assert running(job)[newest] == "drained"
    assert second.process.poll() is None
    refused = resilin("drain", *job, oldest)
    assert refused.returncode == 2
    assert "0 of at least 1 nodes would be left" in refused.stderr
    assert resilin("drain", *job, newest, "--undo").returncode == 0
    first.until(lambda: "world 4 rank 0/2" in first.out)
    (steps / "hold").unlink()
    assert [first.wait(), second.wait()] == [0, 0]
    for one in (first, second):
        assert "worker died" not in one.err
        assert "is gone" not in one.err


@short_in("etcd")
def test_a_job_is_scaled_down_and_up_again(launch, steps, meeting):
    flags, job = meeting
    (steps / "hold").touch()
    first = launch("--nnodes", "1:2", *flags, *inplace(steps))
    first.until(lambda: "world 1" in first.out)
    second = launch("--nnodes", "1:2", *flags, *inplace(steps))
    first.until(lambda: "world 2 rank 0/2" in first.out)
    assert resilin("scale", *job, "1").stdout == "scaled to 1 node\n"
    first.until(lambda: "world 3 rank 0/1" in first.out)
    assert sorted(running(job).values()) == ["leads", "spare"]
    assert resilin("scale", *job, "1:2").returncode == 0
    first.until(lambda: "world 4 rank 0/2" in first.out)
    said = resilin("scale", *job, "1:3").stdout
    assert said == "scaled to 1 to 3 nodes, 2 of which take part: no more are there, or have work\n"
    (steps / "hold").unlink()
    assert [first.wait(), second.wait()] == [0, 0]
    assert "worker died" not in first.err + second.err


def test_a_plain_program_restarts_without_the_drained_host(launch, script, tmp_path, free_port):
    drained = tmp_path / "drained"  # a host may begin alone before the other one comes
    program = script(
        "import os, time\nrank, size = os.environ['RANK'], os.environ['WORLD_SIZE']\n"
        f"while size == '1' and not os.path.exists({str(drained)!r}): time.sleep(0.01)\n"
        "os.write(1, f'{rank} of {size}\\n'.encode())\n"
        "time.sleep(1000 if size == '2' else 0)\n"
    )
    flags = ("--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", tmp_path.name)
    first = launch(*flags, program, RESILIN_SECRET=SECRET)
    second = launch(*flags, program, RESILIN_SECRET=SECRET)
    until(lambda: "1 of 2" in first.out + second.out)
    newest = list(running((tmp_path.name,)))[-1]
    drained.touch()
    resilin("drain", tmp_path.name, newest)
    assert [first.wait(), second.wait()] == [0, 0]
    assert sorted((first.out + second.out).splitlines()) == ["0 of 1", "0 of 2", "1 of 2"]


def test_what_cannot_be_asked_is_one_error_and_changes_nothing(launch, script, tmp_path, free_port):
    mistakes = [
        (("scale", "{}", "many"), "expected a number of nodes or MIN:MAX"),
        (("scale", "{}", "3:2"), "1 <= MIN <= MAX"),
        (("drain", "{}", "nobody"), "'nobody' is no node of job"),
        (("drain", "{}", "nobody", "--undo"), "'nobody' is not drained"),
        (("status", "", "--endpoint", "localhost:1"), "expected the job's name, too"),
    ]
    flags = ("--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", tmp_path.name)
    one = launch(*flags, script("import time; time.sleep(1000)"))
    one.until(lambda: running((tmp_path.name,)), every_s=COMMAND_S)
    for words, says in mistakes:
        told = resilin(*(word.format(tmp_path.name) for word in words))
        assert (told.returncode, len(told.stderr.splitlines())) == (2, 1), (words, told.stderr)
        assert says in told.stderr, words
        body = json.loads(resilin("status", tmp_path.name, "--json").stdout)
        assert body["wanted"] == {"min_nodes": 0, "max_nodes": 0, "drained": []}, words


def test_a_drained_node_keeps_no_process(launch, script, tmp_path, free_port):
    program = script(
        "import os, time\n"
        "from resilin import elastic\n"
        "state = elastic.State(count=0)\n"
        "@elastic.run\n"
        "def train(state):\n"
        f"    while not os.path.exists({str(tmp_path / 'enough')!r}):\n"
        "        state.count += 1\n"
        "        state.commit()\n"
        "        time.sleep(0.02)\n"
        "train(state)\n"
    )
    flags = ("--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", tmp_path.name)
    runs = [launch(*flags, "--max-restarts", 2, program, RESILIN_SECRET=SECRET) for _ in range(2)]
    two = lambda: resilin("status", tmp_path.name).stdout.count(", ready, pid ") == 2  # noqa: E731
    runs[0].until(two, every_s=COMMAND_S)
    newest = list(running((tmp_path.name,)))[-1]
    (agent,) = [run for run in runs if f"-{run.process.pid}-" in newest]
    agent.until(lambda: len(children(spawner(agent.process.pid))) == 2)  # a worker, and a spare
    assert resilin("drain", tmp_path.name, newest).returncode == 0
    agent.until(lambda: not children(spawner(agent.process.pid)))
    (tmp_path / "enough").touch()
    assert [run.wait() for run in runs] == [0, 0]


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def spawner(pid):
    (found,) = children(pid)
    return found
