"""The node that serves the store is killed, store and workers and all, and another one begins at its address."""

import pytest

from resilin.elastic.chaos import judge, schedule
from resilin.elastic.chaos.schedule import Fault, Schedule, Setup
from resilin.launcher import chaos
from resilin.launcher.chaos import report
from resilin.launcher.chaos.run import ChaosJob, run_job
from resilin.testing import ports

STEPS, LIMIT_S = 60, 90.0
FLAGS = ("--nproc-per-node", "1", "--max-restarts", "5")
PROGRAM = ("-m", "resilin.testing.chaos_job", "{folder}", "--steps", str(STEPS), "--workers", "2")


@pytest.mark.multiproc
def test_who_is_left_trains_on_and_takes_the_new_host_in(tmp_path):
    expected = chaos.undisturbed(FLAGS, PROGRAM, LIMIT_S).fingerprint
    fault = Fault(do="kill", to="host", rank=1, at="collective", step=15, for_s=0.2)
    with ports.held() as (port,):
        place = ("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "lost", "--rdzv-conf", "lease_ttl=1")
        job = ChaosJob(
            command=("--nnodes", "1:2", *FLAGS, *place, *PROGRAM, "--pace", "0.1"),
            nodes=2,
            endpoint=("127.0.0.1", port),
        )
        run = run_job(job, Schedule(faults=(fault,)), tmp_path, LIMIT_S)
    found = judge.judge(run, expected)
    story = "\n".join((*report.lines(found), *run.said))
    assert found.ok, story
    assert found.attributed, story
    assert run.fired, story
    assert len(run.agents[0]) == 2, "another one has begun"
    assert len(run.agents[1]) == 1, "the survivor's agent is the same"
    assert "had lost the records of this job: they are put back" in run.said[1], story
    assert "worker died" not in run.said[1], story
    assert not [one for one in run.results if one.step != STEPS]


def test_only_a_job_whose_nodes_serve_its_store_loses_a_host():
    assert ("kill", "host") in Setup(workers=2, steps=40, nodes=2, hosted=True).ways()
    for other in (Setup(workers=2, steps=40, nodes=2), Setup(workers=2, steps=40, hosted=True)):
        assert ("kill", "host") not in other.ways()
    drawn = [schedule.draw(seed, Setup(workers=2, steps=40, nodes=2, hosted=True)) for seed in range(40)]
    assert any(fault.to == "host" for one in drawn for fault in one.faults)


@pytest.mark.parametrize(
    ("words", "endpoint"),
    [
        (("--rdzv-endpoint", "127.0.0.1:29400"), ("127.0.0.1", 29400)),
        (("--rdzv-endpoint", "[::1]:29400", "--rdzv-backend", "c10d"), ("::1", 29400)),
        (("--rdzv-endpoint", "127.0.0.1:2379", "--rdzv-backend", "etcd"), None),
        (("--rdzv-endpoint", "127.0.0.1"), ("127.0.0.1", 29400)),
        ((), None),
    ],
)
def test_where_the_first_node_serves_is_read_from_the_command(words, endpoint):
    assert chaos._command((*words, "train.py"), 2 if words else 1).endpoint == endpoint
