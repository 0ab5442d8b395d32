"""Two hosts that share a folder and nothing else: two network namespaces joined by a veth pair, elastic-run in each."""

import os
import subprocess
import sys

import pytest

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


def start(host, folder, *flags):
    command = [*host.enter, sys.executable, "-m", "resilin.launcher.elastic_run", "--nnodes", "2"]
    command += ["--rdzv-backend", "file", "--rdzv-endpoint", folder / "meeting", *flags, folder / "train.py"]
    env = {**os.environ, "RESILIN_SECRET": "word"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.mark.multiproc
@pytest.mark.parametrize("found_by", ["default route", "--local-addr"])
def test_nodes_that_share_a_folder_reach_one_another(hosts, tmp_path, found_by):
    (tmp_path / "train.py").write_text(SCRIPT)
    for host in hosts if found_by == "default route" else ():
        host.ip("route", "add", "default", "dev", host.name)
    runs = [
        start(host, tmp_path, *(("--local-addr", host.address) if found_by == "--local-addr" else ())) for host in hosts
    ]
    try:
        ends = [run.communicate(timeout=30) for run in runs]
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
