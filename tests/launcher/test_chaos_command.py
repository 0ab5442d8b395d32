"""`resilin chaos`: what it refuses, what it shows, what it does to jobs of its own and to running ones."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from resilin.elastic import ledger
from resilin.elastic.chaos import judge
from resilin.elastic.chaos.schedule import Schedule
from resilin.launcher import exit_codes, main
from resilin.launcher.chaos import processes, report
from resilin.launcher.chaos.processes import Process
from resilin.launcher.chaos.run import ChaosJob, run_job
from resilin.testing.job_secret import SECRET

JOB = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "5", "-m", "resilin.testing.chaos_job", "{folder}")


def test_schedules_are_shown_without_running_anything(capsys):
    assert main.main(["chaos", "--seeds", "3:5", "--show", "--", *JOB]) == 0
    decoder, text = json.JSONDecoder(), capsys.readouterr().out
    first, end = decoder.raw_decode(text)
    second, _ = decoder.raw_decode(text[end:].lstrip())
    assert (first["seed"], second["seed"]) == (3, 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "0"], "which job? give its command after --"),
        (["--seeds", "x", "--", *JOB], "--seeds: expected FIRST:END with 0 <= FIRST < END, or a number, got 'x'"),
        (["--seeds", "3:3", "--", *JOB], "0 <= FIRST < END, or a number, got '3:3'"),
        (["--seeds", "0", "--expect", "zz", "--", *JOB], "--expect: expected 64 hexadecimal digits"),
        (["--seeds", "0", "--only", "melt", "--", *JOB], "--only: 'melt' cannot happen to this job"),
        (["--seeds", "0", "--only", "kill:store", "--", *JOB], "--only: 'kill:store' cannot happen to this job"),
        (["--seeds", "0", "--cut", "true", "--", *JOB], "--cut and --restore belong together"),
        (
            ["--seeds", "0", "--", "--nproc-per-node", "auto", "x.py"],
            "--nproc-per-node auto: faults are given to ranks",
        ),
        (["--seeds", "0", "--nodes", "2", "--", *JOB], "--nodes 2: expected how many nodes the job has and where they"),
        (["--attach", "x", "--seeds", "0"], "--attach JOB: expected --schedule FILE"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(capsys, words, said):
    assert main.main(["chaos", *words]) == exit_codes.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.multiproc
def test_a_program_that_is_not_elastic_is_refused(tmp_path, capsys):
    (tmp_path / "plain.py").write_text("print('no state')\n")
    assert main.main(["chaos", "--seeds", "0", "--", str(tmp_path / "plain.py")]) == exit_codes.USAGE
    assert "expected a program with @elastic.run and a State" in capsys.readouterr().err


@pytest.mark.multiproc
def test_a_schedule_is_replayed_and_a_wrong_end_is_kept_and_told(tmp_path, capsys):
    path = tmp_path / "one.toml"
    path.write_text('[[faults]]\ndo = "kill"\nrank = 1\nat = "optimizer"\nstep = 4\n')
    command = ["chaos", "--schedule", str(path), "--expect", "0" * 64, "--keep", str(tmp_path / "bad"), "--json"]
    assert main.main([*command, "--", *JOB, "--steps", "20"]) == exit_codes.FAILED
    row = json.loads(capsys.readouterr().out)
    assert (row["recovered"], row["same"], row["counted"], row["attributed"]) == (True, False, True, True)
    assert row["fired"] == [0]
    (kept,) = (tmp_path / "bad").iterdir()
    assert {"schedule.json", "fired-0.json", "ledger", "node-0.log"} <= {path.name for path in kept.iterdir()}


@pytest.mark.multiproc
def test_a_run_in_which_no_fault_came_about_has_shown_nothing_and_is_no_success(tmp_path, capsys):
    path = tmp_path / "one.toml"
    path.write_text('[[faults]]\ndo = "kill"\nrank = 1\nat = "optimizer"\nstep = 4000\n')
    assert main.main(["chaos", "--schedule", str(path), "--", *JOB, "--steps", "5"]) == exit_codes.FAILED
    head, fault = capsys.readouterr().out.splitlines()
    assert head.startswith("the schedule: NOT DISTURBED: no fault came about after ")
    assert fault.endswith("step 4000: did not come about")


@pytest.mark.multiproc
def test_a_torn_line_of_the_ledger_is_told_and_the_others_are_judged(tmp_path):
    line = ledger.Entry(0, 0, 0, 4, 1, 0, samples=4, length=4).to_line()
    (tmp_path / "lines").write_bytes(line[:20] + line)
    words = ("--standalone", "--no-python", "sh", "-c", f'cp {tmp_path}/lines "$RESILIN_LEDGER"')
    (tmp_path / "run").mkdir()
    found = judge.judge(run_job(ChaosJob(command=words), Schedule(faults=()), tmp_path / "run", 30.0), None)
    assert (found.ok, found.counted) == (True, True)
    (told,) = [text for text in report.lines(found) if "ledger" in text]
    assert re.fullmatch(r"  ledger: \S+/ledger, line 1: expected an object with epoch.* \(left out\)", told)


def test_nodes_that_did_not_end_well_say_why(tmp_path):
    said = "elastic-run: first\nelastic-run: error: no such flag\nnoise\n"
    run = judge.Run(
        schedule=Schedule(faults=()), codes=(2, None), said=(said, ""), agents=((1,), (2,)), fired=(), results=(),
        counted=None, seconds=1.0,
    )  # fmt: skip
    told = report.lines(judge.judge(run, "0" * 64))
    assert told[1:] == [
        "  not brought to its end: exit codes (2, None)",
        "  node 0: elastic-run: error: no such flag",
    ]


@pytest.mark.multiproc
def test_of_two_nodes_one_is_killed_named_by_the_other_and_started_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RESILIN_SECRET", SECRET)
    path = tmp_path / "one.toml"
    path.write_text('[[faults]]\ndo = "kill"\nto = "agent"\nnode = 1\nrank = 0\nat = "collective"\nstep = 6\n')
    place = ("--rdzv-backend", "file", "--rdzv-endpoint", "{folder}/meeting", "--rdzv-conf", "lease_ttl=1")
    job = ("--nnodes", "1:2", "--max-restarts", "5", *place, "-m", "resilin.testing.chaos_job", "{folder}")
    code = main.main(["chaos", "--schedule", str(path), "--nodes", "2", "--json", "--", *job, "--workers", "2"])
    row = json.loads(capsys.readouterr().out)
    assert code == 0, row
    assert re.search(r"node \S+ is gone, and with it rank [01]$", row["attributions"][0]["line"]), row
    assert row["attributed"]


@pytest.mark.multiproc
def test_sigterm_leaves_no_job_behind(tmp_path):
    (tmp_path / "none.json").write_text('{"faults": []}')
    words = [sys.executable, "-m", "resilin.launcher.main", "chaos", "--schedule", str(tmp_path / "none.json")]
    job = [*JOB[:-1], str(tmp_path), "--steps", "100000"]
    with subprocess.Popen([*words, "--expect", "0" * 64, "--", *job], stderr=subprocess.PIPE, text=True) as command:
        while not (tmp_path / "checkpoint").exists():
            assert command.poll() is None
        command.terminate()
        assert command.wait(timeout=60) == exit_codes.INTERRUPTED
    assert not _processes_with(str(tmp_path))


def _processes_with(word):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if int(path.parent.name) != os.getpid() and word.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.multiproc
def test_signals_from_outside_reach_a_running_job_and_it_says_so(tmp_path, capsys):
    (tmp_path / "one.toml").write_text('[[faults]]\ndo = "kill"\nrank = 1\nafter_s = 0.0\n')
    words = [sys.executable, "-m", "resilin.launcher.elastic_run", "--rdzv-id", f"chaos-{os.getpid()}", *JOB]
    command = [word.replace("{folder}", str(tmp_path)) for word in words]
    env = {**os.environ, "RESILIN_LEDGER": str(tmp_path / "ledger")}
    program = [*command, "--steps", "100000", "--pace", "0.005"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=env) as job:
        try:
            while not (tmp_path / "checkpoint").exists():
                assert job.poll() is None
            attach = ["chaos", "--attach", f"chaos-{os.getpid()}", "--schedule", str(tmp_path / "one.toml")]
            assert main.main(attach) == 0
            assert "SIGKILL to process" in capsys.readouterr().out
            assert "worker died: rank 1" in next(line for line in job.stderr if "worker died" in line)
        finally:
            job.send_signal(signal.SIGTERM)
            job.communicate(timeout=60)


def test_nobody_is_attached_to_when_there_is_no_such_job(tmp_path, capsys):
    (tmp_path / "one.toml").write_text('[[faults]]\ndo = "kill"\nafter_s = 0.0\n')
    code = main.main(["chaos", "--attach", "no such job", "--schedule", str(tmp_path / "one.toml")])
    assert code == exit_codes.RENDEZVOUS
    assert "'no such job'" in capsys.readouterr().err


def test_a_process_that_is_not_below_the_agent_is_never_touched():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        with processes.held(Process(pid=stranger.pid, rank=0, agent=1 << 22)) as descriptor:
            assert descriptor is None
        with processes.held(Process(pid=stranger.pid, rank=0, agent=os.getpid())) as descriptor:
            assert descriptor is not None
        stranger.stdin.close()
        stranger.wait(timeout=60)
    with processes.held(Process(pid=stranger.pid, rank=0, agent=os.getpid())) as descriptor:
        assert descriptor is None, "it has ended"
