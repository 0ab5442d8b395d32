"""Two hosts that share a folder and nothing else: two network namespaces joined by a veth pair, elastic-run in each."""

import os
import subprocess
import sys

import pytest

NAMES = [f"rsf{os.getpid()}{side}" for side in "ab"]
ADDRESSES = ["10.213.8.1", "10.213.8.2"]

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


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=10)


@pytest.fixture
def hosts():
    made = ip("netns", "add", NAMES[0])
    if made.returncode:
        pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
    try:
        ip("netns", "add", NAMES[1])
        link = ip(
            "link", "add", NAMES[0], "netns", NAMES[0], "type", "veth", "peer", "name", NAMES[1], "netns", NAMES[1]
        )
        if link.returncode:
            pytest.skip(f"veth pairs are not permitted here: {link.stderr.strip()}")
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield NAMES
    finally:
        for name in NAMES:
            ip("netns", "del", name)


def start(host, folder, *flags):
    command = ["ip", "netns", "exec", host, sys.executable, "-m", "resilin.launcher.elastic_run", "--nnodes", "2"]
    command += ["--rdzv-backend", "file", "--rdzv-endpoint", folder / "meeting", *flags, folder / "train.py"]
    env = {**os.environ, "RESILIN_SECRET": "word"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.mark.multiproc
@pytest.mark.parametrize("found_by", ["default route", "--local-addr"])
def test_nodes_that_share_a_folder_reach_one_another(hosts, tmp_path, found_by):
    (tmp_path / "train.py").write_text(SCRIPT)
    for name in hosts if found_by == "default route" else ():
        assert ip("-n", name, "route", "add", "default", "dev", name).returncode == 0
    runs = [
        start(host, tmp_path, *(("--local-addr", address) if found_by == "--local-addr" else ()))
        for host, address in zip(hosts, ADDRESSES, strict=True)
    ]
    try:
        ends = [run.communicate(timeout=30) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], ends
    masters = {out.split()[2] for out, _ in ends}
    assert len(masters) == 1
    assert masters <= set(ADDRESSES)
    assert [out.split()[-1] for out, _ in ends] == ADDRESSES
    assert [out.split()[0] for out, _ in ends] == ["2", "2"]
