"""`resilin doctor` and `resilin status`."""

import json
import os
import subprocess
import sys

import pytest

from resilin._base.flight import Recorder
from resilin._base.flight_record import Place
from resilin.elastic import records
from resilin.elastic.records import Generation, GenerationMember, Node, Slot
from resilin.errors import UsageError
from resilin.launcher import doctor, exit_codes, main
from resilin.store.connect import connect


def test_doctor_finds_nothing_bad_here_and_says_which_kernels_run(capsys):
    assert main.main(["doctor"]) == 0
    lines = {line[5:17].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert {"python", "numpy", "kernels", "memory", "host id"} <= lines.keys()
    assert not any(line.startswith("BAD") for line in lines.values())
    assert "native" in lines["kernels"] or "numpy references" in lines["kernels"]


def test_doctor_tells_when_a_store_does_not_answer(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "REACH_TIMEOUT_S", 0.3)
    assert main.main(["doctor", "--endpoint", "embedded://127.0.0.1:9"]) == exit_codes.UNREACHABLE
    assert "BAD  store" in capsys.readouterr().out


def test_doctor_reports_a_broken_installation(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_PROBE", "raise ImportError('no numpy here')")
    assert main.main(["doctor"]) == exit_codes.FAILED
    assert "no numpy here" in capsys.readouterr().out


@pytest.fixture
def job(tmp_path):
    """A job's records in a shared folder; gives the store's URL."""
    url = f"file://{tmp_path / 'store'}"
    slots = (Slot(index=0, incarnation=2, state="ready", pid=77), Slot(index=1, incarnation=1, state="failed"))
    node = Node(id="n1", host="one", address="10.0.0.1", master_port=1, slots=slots)
    spare = Node(id="n2", host="two", address="10.0.0.2", master_port=1, slots=(Slot(index=0),))
    current = Generation(
        number=3, kind="inplace", members=(GenerationMember(node="n1", slot=0, incarnation=2, rank=0),), nodes=("n1",),
        master_addr="10.0.0.1", master_port=1, restarts_used=1, reason="rank 1 failed",
    )  # fmt: skip
    with connect(url) as store:
        store.put("/resilin/job/nodes/n1", records.to_bytes(node))
        store.put("/resilin/job/nodes/n2", records.to_bytes(spare))
        store.put(records.Keys("job").generation, records.to_bytes(current))
        store.put(records.Keys("job").leader, b"n2")
    return url


def test_status_shows_nodes_ranks_and_the_generation(job, capsys):
    assert main.main(["status", "job", "--endpoint", job]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "generation 3 (inplace): 1 worker on 1 node, 1 restart used; rank 1 failed",
        "node n1 (one, 10.0.0.1)",
        "  slot 0: rank 0, ready, pid 77",
        "  slot 1: no rank, failed",
        "node n2 (two, 10.0.0.2): leads, spare",
        "  slot 0: no rank, idle",
    ]


def test_status_as_json_holds_the_records(job, capsys):
    assert main.main(["status", "job", "--json", "--endpoint", job]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["generation"]["number"] == 3
    assert [node["id"] for node in body["nodes"]] == ["n1", "n2"]
    assert body["leader"] == "n2"
    assert body["closed"] is None


def test_status_of_an_unknown_job_is_one_error(job, capsys):
    assert main.main(["status", "other", "--endpoint", job]) == exit_codes.RENDEZVOUS
    assert "'other'" in capsys.readouterr().err


def test_to_ask_a_folder_does_not_make_a_store_there(tmp_path, capsys):
    for place in (tmp_path, tmp_path / "none"):
        assert main.main(["status", "job", "--endpoint", f"file://{place}"]) == exit_codes.RENDEZVOUS
        assert f"no store lies in {place}: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("1", "scaled to 1 node"), ("1:1", "scaled to 1 node"), ("3", "it is not so yet"),
        ("2:3", "it is not so yet"), ("4:5", "it is not so yet"),
    ],
)  # fmt: skip
def test_a_job_is_scaled_when_the_nodes_that_are_wanted_and_there_take_part(job, size, said, capsys):
    """Node n1 does; n2 is there and does not come."""
    code = main.main(["scale", "job", size, "--endpoint", job, "--timeout", "0.2"])
    assert said in capsys.readouterr().out
    assert code == (said == "it is not so yet")


def test_an_unknown_error_is_internal_and_a_usage_error_is_not():
    assert exit_codes.of(RuntimeError()) == exit_codes.INTERNAL
    assert exit_codes.of(UsageError("x")) == exit_codes.USAGE


@pytest.mark.parametrize("command", [["doctor"], ["trace", "--json"]], ids=lambda words: words[0])
def test_a_command_whose_output_nobody_reads_ends_quietly(command, tmp_path):
    recorder = Recorder(tmp_path / "one.flight", "here", 512)
    for number in range(400):  # more than a buffer of output
        recorder.start(recorder.begin(Place(b"default", 1, 0, 0, 1), b"barrier", b"x.py:1 f"), number)
    recorder.close()
    read, write = os.pipe()
    os.close(read)
    start = "from resilin.launcher.entry import resilin; import sys; sys.exit(resilin())"
    words = [*command, str(tmp_path)] if command[0] == "trace" else command
    ended = subprocess.run(
        [sys.executable, "-c", start, *words], stdout=write, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")
