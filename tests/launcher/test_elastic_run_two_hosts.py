"""Two hosts that share a folder and nothing else: two network namespaces joined by a veth pair, elastic-run in each."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import extent
import pytest

from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S

SCRIPT = """
import os
import numpy as np
from resilin import dist, elastic
state = elastic.State(total=0)

@elastic.run
def train(state):
    value = np.ones(3)
    dist.all_reduce(value)
    state.total = float(value[0])
    state.commit()

train(state)
os.write(1, f"{state.total:g} of {os.environ['MASTER_ADDR']} at {os.environ['RESILIN_HOST']}\\n".encode())
"""


def start(host, folder, *flags, secret=SECRET):
    command = [*host.enter, sys.executable, "-m", "resilin.launcher.elastic_run", "--nnodes", "2"]
    if "--rdzv-endpoint" not in flags:
        flags = ("--rdzv-backend", "file", "--rdzv-endpoint", folder / "meeting", *flags)
    command += [*flags, folder / "train.py"]
    env = {**os.environ, "RESILIN_SECRET": secret}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.mark.multiproc
@pytest.mark.parametrize("found_by", extent.short(["default route", "--local-addr"], of=["--local-addr"]))
def test_nodes_that_share_a_folder_reach_one_another(hosts, tmp_path, found_by):
    (tmp_path / "train.py").write_text(SCRIPT)
    for host in hosts if found_by == "default route" else ():
        host.ip("route", "add", "default", "dev", host.name)
    runs = [
        start(host, tmp_path, *(("--local-addr", host.address) if found_by == "--local-addr" else ())) for host in hosts
    ]
    try:
        ends = [run.communicate(timeout=PATIENCE_S) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], ends
    masters = {out.split()[2] for out, _ in ends}
    assert len(masters) == 1
    addresses = [host.address for host in hosts]
    assert masters <= set(addresses)
    assert [out.split()[-1] for out, _ in ends] == addresses
    assert [out.split()[0] for out, _ in ends] == ["2", "2"]


@pytest.mark.multiproc
def test_workers_that_were_told_to_use_loopback_say_so_instead_of_looking_for_one_another(hosts, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("RESILIN_IFNAME", "lo")
    runs = [start(host, tmp_path, "--local-addr", host.address) for host in hosts]
    try:
        ends = [run.communicate(timeout=PATIENCE_S) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [1, 1], ends
    said = "".join(err for _, err in ends)
    assert "gave an address of loopback, which only its own host reaches" in said
    assert "here RESILIN_IFNAME=lo is set" in said


@pytest.fixture
def meet(hosts, tmp_path):
    """`meet(endpoint, *flags)` runs a job of both hosts: where rank 0 was, and where each host was reached."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(endpoint, *flags):
        runs = [start(host, tmp_path, "--rdzv-endpoint", endpoint, *flags) for host in hosts]
        try:
            ends = [one.communicate(timeout=PATIENCE_S) for one in runs]
        finally:
            for one in runs:
                one.kill()
        assert [one.returncode for one in runs] == [0, 0], ends
        words = [out.split() for out, _ in ends]
        assert [word[0] for word in words] == ["2", "2"]
        assert len({word[2] for word in words}) == 1
        return words[0][2], [word[-1] for word in words]

    return run


@pytest.fixture
def names(hosts):
    """`names(host, text)` gives a host an /etc/hosts of its own."""
    made = []

    def write(host, text):
        folder = Path("/etc/netns") / host.name
        folder.mkdir(parents=True)
        made.append(folder)
        (folder / "hosts").write_text(text)

    yield write
    for folder in made:
        shutil.rmtree(folder)


@pytest.mark.multiproc
def test_nodes_meet_at_an_ipv6_address_and_reach_one_another_there(hosts, meet):
    addresses = ["fd00:77::1", "fd00:77::2"]
    for host, address in zip(hosts, addresses, strict=True):
        host.ip("addr", "add", f"{address}/64", "dev", host.name, "nodad")
    assert meet("[fd00:77::1]:29412") in [(one, addresses) for one in addresses]


@pytest.mark.multiproc
def test_of_several_interfaces_the_one_towards_the_endpoint_is_used(hosts, meet):
    for number, host in enumerate(hosts):
        host.ip("link", "add", "other", "type", "veth", "peer", "name", "end")
        host.ip("addr", "add", f"192.168.77.{number + 1}/24", "dev", "other")
        host.ip("link", "set", "other", "up")
        host.ip("link", "set", "end", "up")
        host.ip("route", "add", "default", "dev", "other")
    master, reached = meet(f"{hosts[1].address}:29413")
    assert reached == [host.address for host in hosts]
    assert master in reached


@pytest.mark.multiproc
def test_a_host_whose_own_name_stands_for_loopback_serves_where_the_others_look(hosts, meet, names):
    head, other = hosts
    head.ip("route", "add", "default", "dev", head.name)
    names(head, "127.0.0.1 localhost\n127.0.1.1 head\n")
    names(other, f"127.0.0.1 localhost\n{head.address} head\n")
    master, reached = meet("head:29414")
    assert reached == [head.address, other.address]
    assert master in reached


@pytest.mark.multiproc
def test_a_host_whose_own_name_stands_for_loopback_says_at_once_that_a_secret_is_missing(hosts, names, tmp_path):
    """It waited 30 s for another store, and blamed a taken port."""
    (tmp_path / "train.py").write_text(SCRIPT)
    head = hosts[0]
    names(head, "127.0.0.1 localhost\n127.0.1.1 head\n")
    flags = ("--rdzv-endpoint", "head:29416", "--rdzv-conf", "read_timeout=600")
    run = start(head, tmp_path, *flags, secret="")
    try:
        _, err = run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
    assert run.returncode == 5
    assert "on this machine head stands for 127.0.1.1 (see /etc/hosts), which no other machine reaches" in err
    alone = [*head.enter, sys.executable, "-m", "resilin.launcher.elastic_run", "--rdzv-endpoint", "head:29416"]
    env = {**os.environ, "RESILIN_SECRET": ""}
    done = subprocess.run(
        [*alone, tmp_path / "train.py"], capture_output=True, text=True, timeout=PATIENCE_S, env=env, check=False
    )
    assert done.stdout == "1 of 127.0.0.1 at 127.0.0.1\n", done.stderr


@pytest.mark.multiproc
def test_a_chosen_host_serves_the_store_and_takes_no_part(hosts, meet):
    """A store of its own on the first host, which both nodes find; neither of them serves it."""
    command = [sys.executable, "-m", "resilin.launcher.main", "store", "serve", "--host", hosts[0].address]
    env = {**os.environ, "RESILIN_SECRET": SECRET}
    server = subprocess.Popen(
        [*hosts[0].enter, *command, "--port", "29415"], stdout=subprocess.PIPE, text=True, env=env
    )
    try:
        assert "serving" in server.stdout.readline()
        _, reached = meet(f"{hosts[0].address}:29415")
        assert reached == [host.address for host in hosts]
    finally:
        server.terminate()
        server.wait(10)
        server.stdout.close()


@pytest.mark.multiproc
def test_the_nodes_of_a_slurm_job_meet_without_any_flag(hosts, names, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    head, other = hosts
    head.ip("route", "add", "default", "dev", head.name)
    text = f"127.0.0.1 localhost\n{head.address} node01\n{other.address} node02\n"
    names(head, text)
    names(other, text)
    runs = []
    for rank, host in enumerate(hosts):
        step = {"SLURM_JOB_ID": "31", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[01-02]"}
        step |= {"SLURM_NODEID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "RESILIN_SECRET": SECRET}
        command = [*host.enter, sys.executable, "-m", "resilin.launcher.elastic_run", tmp_path / "train.py"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        runs.append(subprocess.Popen(command, text=True, env={**os.environ, **step}, **pipes))
    ends = [run.communicate(timeout=PATIENCE_S) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], ends
    assert [out for out, _ in ends] == [f"2 of {head.address} at {host.address}\n" for host in hosts]
    assert ends[1][1].startswith(
        "elastic-run: Slurm job 31, step 0: node 1 of 2, job name 31.0, meeting at node01:20031"
    )
