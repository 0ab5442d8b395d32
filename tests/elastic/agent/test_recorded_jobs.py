"""`resilin trace record --seconds` of jobs that were not started for it."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from launches import COMMAND_S, INPLACE, resilin

from resilin._base import span_file
from resilin._base.trace import SpanKind
from resilin.launcher.traces import record_running
from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc

TRAINS = """
import pathlib, sys, time
import numpy as np
from resilin import dist, elastic
stop, state = pathlib.Path(sys.argv[1]), elastic.State(steps=0)

@elastic.run
def train(state):
    over = np.zeros(1)
    while not over[0]:
        over[0] = float(stop.exists())
        dist.all_reduce(over)
        state.steps += 1
        state.commit()
        time.sleep(0.002)

train(state)
print("trained", state.steps)
"""


@pytest.fixture
def training(launch, script, tmp_path):
    """A job of two workers that trains until it is told to stop."""
    stop = tmp_path / "stop"
    job = launch("--standalone", "--nproc-per-node", 2, "--rdzv-id", tmp_path.name, script(TRAINS), stop)
    job.until(lambda: resilin("status", tmp_path.name).stdout.count("ready, pid") == 2, every_s=COMMAND_S)
    job.name, job.stop = tmp_path.name, stop
    yield job
    stop.touch()


def _record(job, folder, *words, seconds=1):
    told = resilin("trace", "record", "--out", folder, "--seconds", seconds, "--megabytes", 1, "--json", *words, job)
    return told, json.loads(told.stdout)["workers"] if told.stdout else []


def _pid(job, rank):
    return int(re.search(rf"rank {rank}, ready, pid (\d+)", resilin("status", job).stdout)[1])


def _spans(worker):
    return span_file.read(Path(worker["text"])).recording.spans


def test_both_workers_record_for_a_while_and_training_goes_on(training, tmp_path):
    for turn in ("first", "second"):
        told, workers = _record(training.name, tmp_path / turn)
        assert [(one["rank"], one["state"]) for one in workers] == [(0, "recorded"), (1, "recorded")], told.stderr
        assert told.returncode == 0
        for one in workers:
            about = span_file.read(Path(one["text"])).about
            assert (about.rank, about.world_size, about.job) == (one["rank"], 2, training.name)
            assert any(span.kind is SpanKind.COLLECTIVE for span in _spans(one))
            assert Path(one["text"]).parent == tmp_path / turn
    before = len(_spans(workers[0]))
    training.stop.touch()
    assert training.wait() == 0
    assert training.out.count("trained") == 2
    assert len(_spans(workers[0])) == before  # nothing after its time
    code = resilin("trace", "why", tmp_path / "second").returncode
    assert code == 0
    assert resilin("trace", "record", "--out", tmp_path, "--seconds", 1, training.name).returncode == 4


def test_a_worker_that_is_killed_meanwhile_is_named_and_leaves_what_it_had(training, tmp_path, monkeypatch):
    pid = _pid(training.name, 1)
    follow = record_running._followed

    def killing(*args):
        training.until(lambda: list((tmp_path / "spans").glob(f"*_{pid}.spans")))
        os.kill(pid, signal.SIGKILL)
        return follow(*args)

    monkeypatch.setattr(record_running, "_followed", killing)
    told, workers = _record(training.name, tmp_path / "spans")
    assert told.returncode == 1, told.stderr
    states = {one["pid"]: one for one in workers}
    assert (states[pid]["rank"], states[pid]["state"]) == (1, "ended")
    assert "has ended before it was done" in states[pid]["said"]
    assert _spans(states[pid]) is not None
    assert sum(one["state"] == "recorded" for one in workers) == 1


def test_who_cannot_write_says_so_and_trains_on(training, tmp_path):
    (tmp_path / "file").touch()
    told, workers = _record(training.name, tmp_path / "file" / "below")
    assert told.returncode == 1
    assert {one["state"] for one in workers} == {"failed"}
    assert all("Not a directory" in one["said"] for one in workers)
    training.stop.touch()
    assert training.wait() == 0


def test_programs_that_do_not_listen_are_named(launch, script, tmp_path, monkeypatch):
    monkeypatch.setattr(record_running, "_ANSWER_S", 1.5)
    one = launch("--standalone", "--rdzv-id", tmp_path.name, script("import time; time.sleep(1000)"))
    one.until(lambda: "rank 0, running, pid" in resilin("status", tmp_path.name).stdout, every_s=COMMAND_S)
    told, workers = _record(tmp_path.name, tmp_path / "spans", seconds=0.5)
    assert told.returncode == 1, told.stderr
    assert [(one["rank"], one["state"]) for one in workers] == [(0, "deaf")]
    assert "does not use @elastic.run" in workers[0]["said"]
    one.signal(signal.SIGTERM)
    one.wait()


LATE = "import pathlib, time\nwhile not pathlib.Path(__import__('sys').argv[1]).exists(): time.sleep(0.01)\n"


def test_a_worker_that_listens_only_now_records_as_well(launch, script, tmp_path, monkeypatch):
    stop, go = tmp_path / "stop", tmp_path / "go"
    program = script(LATE + TRAINS.replace("sys.argv[1]", "sys.argv[2]"))
    job = launch("--standalone", "--rdzv-id", tmp_path.name, program, go, stop)
    job.until(lambda: "rank 0, running, pid" in resilin("status", tmp_path.name).stdout, every_s=COMMAND_S)
    follow = record_running._followed
    monkeypatch.setattr(record_running, "_LISTENS_S", PATIENCE_S)

    def going(*args):
        go.touch()
        return follow(*args)

    monkeypatch.setattr(record_running, "_followed", going)
    told, workers = _record(tmp_path.name, tmp_path / "spans", seconds=8)
    assert [(one["rank"], one["state"]) for one in workers] == [(0, "recorded")], told.stderr
    stop.touch()
    assert job.wait() == 0


def test_workers_that_do_not_answer_are_named(launch, steps, tmp_path, monkeypatch):
    monkeypatch.setattr(record_running, "_ANSWER_S", 2.5)
    (steps / "hold").touch()
    one = launch("--standalone", "--rdzv-id", tmp_path.name, "--no-python", sys.executable, INPLACE, steps, 10, 0.01)
    one.until(lambda: "world 1" in one.out)
    told = resilin("trace", "record", "--out", tmp_path / "spans", "--seconds", 0.5, tmp_path.name)
    assert told.returncode == 1, told.stderr
    assert re.search(r"rank 0 \(\S+, pid \d+\) did not answer", told.stdout), told.stdout
    assert "0 of 1 worker recorded" in told.stdout
    (steps / "hold").unlink()
    assert one.wait() == 0


def test_two_nodes_are_asked_through_their_store(launch, script, tmp_path, free_port):
    stop = tmp_path / "stop"
    flags = ("--nnodes", 2, "--rdzv-backend", "embedded", "--rdzv-endpoint", f"localhost:{free_port}")
    flags += ("--rdzv-id", tmp_path.name)
    nodes = [launch(*flags, script(TRAINS), stop) for _ in range(2)]
    job = (tmp_path.name, "--endpoint", f"embedded://localhost:{free_port}")
    nodes[0].until(lambda: resilin("status", *job).stdout.count("ready, pid") == 2, every_s=COMMAND_S)
    told, workers = _record(tmp_path.name, tmp_path / "spans", *job[1:])
    assert told.returncode == 0, (told.stderr, workers)
    assert [(one["rank"], one["state"]) for one in workers] == [(0, "recorded"), (1, "recorded")]
    assert len({one["node"] for one in workers}) == 2
    stop.touch()
    assert [node.wait() for node in nodes] == [0, 0]


def test_more_than_one_name_or_too_long_a_time_is_refused(tmp_path):
    told = resilin("trace", "record", "--out", tmp_path, "--seconds", 1, "one", "two")
    assert (told.returncode, "expected the name of one job, got 'one two'" in told.stderr) == (2, True)
    told = resilin("trace", "record", "--out", tmp_path, "--seconds", 1e6, "one")
    assert (told.returncode, "--seconds: expected at most 86400" in told.stderr) == (2, True)
    for words in (["one"], ["one", "--seconds", "1"], ["elastic-run", "--out", tmp_path, "train.py"], ["x", "--no"]):
        told = resilin("trace", "record", *words)
        assert (told.returncode, "expected --out FOLDER" in told.stderr) == (2, True), words


def test_options_may_stand_behind_the_job(tmp_path):
    told = resilin("trace", "record", f"no {tmp_path.name}", "--seconds", 1, "--out", tmp_path)
    assert told.returncode == 4, told.stderr
    assert f"no job 'no {tmp_path.name}' of this user" in told.stderr


def test_no_time_at_all_is_no_time_and_no_program(tmp_path):
    told = resilin("trace", "record", "--out", tmp_path, "--seconds", 0, "myjob")
    assert (told.returncode, "--seconds: expected more than 0" in told.stderr) == (2, True)
