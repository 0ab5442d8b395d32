"""`resilin trace record`, `merge`, `analyse` and `why`: what they print and return."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys

import pytest

from resilin._base import env, span_file
from resilin.core.machine import standing_recording
from resilin.launcher import main, traces
from resilin.testing.patience import PATIENCE_S

START = "from resilin.launcher.entry import resilin; import sys; sys.exit(resilin())"
PROGRAM = """
import os, sys
import resilin
from resilin.profiler import profile, record_function
with record_function("work"):
    resilin.ones(4) + 1
with profile() as inner, record_function("profiled"):
    pass
assert [event.name for event in inner.events()] == ["profiled"]
with record_function("afterwards"):
    pass
child = os.fork()
with record_function("child" if child == 0 else "parent"):
    pass
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def _trace(capsys, *words):
    """The exit code, what was printed, and the error."""
    capsys.readouterr()
    code = main.main(["trace", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def _recorded(*words, **more):
    variables = env.snapshot(more)
    started = [sys.executable, "-c", START, "trace", "record", *map(str, words)]
    return subprocess.run(started, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.multiproc
def test_merge_writes_one_file_of_all_ranks(job, tmp_path, capsys):
    code, out, err = _trace(capsys, "merge", job.folder, "-o", tmp_path / "all.json.gz")
    assert (code, err) == (0, "")
    assert f"{tmp_path / 'all.json.gz'}: 3 ranks, " in out
    assert json.loads(gzip.decompress((tmp_path / "all.json.gz").read_bytes()))["traceEvents"]
    code, out, _ = _trace(capsys, "merge", job.folder, "-o", tmp_path / "all.json", "--json")
    assert code == 0
    assert json.loads(out)["ranks"] == [0, 1, 2]


@pytest.mark.multiproc
def test_merge_without_a_rank_returns_1_and_says_so(job, tmp_path, capsys):
    files = sorted(job.folder.iterdir())[:2]
    code, out, _ = _trace(capsys, "merge", *files, "-o", tmp_path / "some.json")
    assert code == 1
    assert "no trace of rank" in out


@pytest.mark.multiproc
def test_analyse_prints_the_tables(job, capsys):
    code, out, err = _trace(capsys, "analyse", job.folder, "--top", "3")
    assert (code, err) == (0, "")
    for table in ("temporal_breakdown:", "comm_comp_overlap:", "kernel_breakdown:", "potential_stragglers:"):
        assert table in out
    code, out, _ = _trace(capsys, "analyse", job.folder, "--json")
    found = json.loads(out)
    assert [row["rank"] for row in found["temporal_breakdown"]] == [0, 1, 2]
    assert {"idle_time(us)", "compute_time(us)", "non_compute_time(us)"} <= found["temporal_breakdown"][0].keys()


@pytest.mark.multiproc
def test_why_names_ranks_and_spans(job, capsys):
    code, out, err = _trace(capsys, "why", job.folder, "--least", "30", "--all")
    assert (code, err) == (0, "")
    _, rank, name = job.plan[0]
    assert f"rank {rank} was" in out
    assert f"ms longer in {name}" in out
    code, out, _ = _trace(capsys, "why", job.folder, "--json")
    assert {"hang", "causes", "totals", "notes"} == json.loads(out).keys()


def _exported(place, *ranks, **args):
    """Traces that profilers wrote of `ranks`, which were in one collective, each a second after the one before."""
    for rank in ranks:
        about = {"Collective name": "all_reduce", "Process Group Ranks": list(ranks), "Rank": rank, "Seq": 1, **args}
        end = 1e6 * (len(ranks) + 1)
        event = {"ph": "X", "name": "gloo:all_reduce", "tid": 1, "pid": rank, "ts": 1e6 * rank, "args": about}
        world = {"rank": rank, "world_size": len(ranks)}
        body = {"distributedInfo": world, "host_name": "h", "traceEvents": [{**event, "dur": end - event["ts"]}]}
        (place / f"{rank}.json").write_text(json.dumps(body))


def test_merge_says_one_line_when_all_is_well_and_writes_over_what_it_wrote(tmp_path, capsys):
    _exported(tmp_path, 0, 1)
    for _ in range(2):
        code, out, err = _trace(capsys, "merge", tmp_path, "-o", tmp_path / "all.json")
        assert (code, err, out.count("\n")) == (0, "", 1)


def test_merge_does_not_write_over_a_trace_that_lies_in_the_folder(tmp_path, capsys):
    _exported(tmp_path, 0, 1)
    before = (tmp_path / "0.json").read_bytes()
    code, _, err = _trace(capsys, "merge", tmp_path, "-o", tmp_path / "0.json")
    assert code == 2
    assert "it is one of the traces to be merged" in err
    assert (tmp_path / "0.json").read_bytes() == before


def test_why_names_few_of_many_ranks(tmp_path, capsys):
    _exported(tmp_path, *range(20))
    code, out, _ = _trace(capsys, "why", tmp_path)
    assert code == 0
    assert "rank 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 7 more waited" in out


def test_nothing_to_read_is_exit_code_2(tmp_path, capsys):
    for word in ("merge", "analyse", "why"):
        code, out, err = _trace(capsys, word, tmp_path)
        assert (code, out) == (2, "")
        assert f"resilin trace {word}: error: {tmp_path}: no traces" in err


def test_a_full_disk_is_exit_code_2(tmp_path, capsys):
    event = {"ph": "X", "name": "a", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [event]}))
    code, _, err = _trace(capsys, "merge", tmp_path, "-o", "/dev/full")
    assert code == 2
    assert "/dev/full: cannot be written: No space left on device" in err


def test_the_words_of_the_flight_recorder_stay(tmp_path, capsys):
    assert traces.joined(["trace", "logs"]) == ["trace", "logs"]
    assert traces.joined(["trace", "./merge"]) == ["trace", "./merge"]
    assert traces.joined(["trace", "merge", "logs"]) == ["trace merge", "logs"]
    code, _, err = _trace(capsys, tmp_path)
    assert code == 2
    assert "*.flight" in err


@pytest.mark.multiproc
def test_the_last_seconds_of_a_job_are_shown_alone(job, capsys):
    _, out, _ = _trace(capsys, "why", job.folder, "--json", "--least", "20")
    whole = json.loads(out)["causes"]
    _, out, _ = _trace(capsys, "why", job.folder, "--json", "--least", "20", "--last", "0.5")
    last = json.loads(out)["causes"]
    assert len(last) < len(whole)
    assert {each["at"] for each in last} <= {each["at"] for each in whole}


@pytest.mark.parametrize("word", ["-1", "soon", "inf"])
def test_seconds_that_make_no_sense_are_refused(tmp_path, capsys, word):
    with pytest.raises(SystemExit) as ended:
        _trace(capsys, "merge", tmp_path, f"--last={word}")
    assert ended.value.code == 2
    assert "expected a number, 0 or more" in capsys.readouterr().err


@pytest.mark.multiproc
def test_a_process_that_did_nothing_leaves_no_file(tmp_path):
    assert _recorded("--out", tmp_path, sys.executable, "-c", "import resilin.core").returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.multiproc
def test_record_runs_a_program_whose_spans_are_in_files_of_their_own(tmp_path):
    ended = _recorded("--out", tmp_path / "new" / "spans", "--", sys.executable, "-c", PROGRAM)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = [
        [span.name for span in span_file.read(path).recording.spans] for path in (tmp_path / "new/spans").iterdir()
    ]
    parent, child = sorted(found, key=len, reverse=True)
    assert [name for name in parent if not name.startswith("aten::")] == ["work", "afterwards", "parent"]
    assert child == ["child"]


@pytest.mark.multiproc
def test_of_many_forked_children_the_first_have_files_and_it_is_told(tmp_path):
    source = (
        "import logging, os, resilin\nlogging.basicConfig()\nfrom resilin.profiler import record_function\n"
        "for number in range(35):\n    child = os.fork()\n    if child == 0:\n"
        "        with record_function(f'child {number}'):\n            pass\n        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    ended = _recorded("--out", tmp_path, "--megabytes", "1", sys.executable, "-c", source)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("spans of further forked processes are not recorded") == 1
    spans = [span.name for path in tmp_path.iterdir() for span in span_file.read(path).recording.spans]
    assert sorted(spans) == sorted(f"child {number}" for number in range(standing_recording.MOST_CHILDREN))


@pytest.mark.multiproc
def test_the_spans_of_a_killed_process_are_kept(tmp_path):
    source = (
        "import os, resilin\nfrom resilin.profiler import record_function\n"
        "with record_function('last words'):\n    os.kill(os.getpid(), 9)\n"
    )
    ended = _recorded("--out", tmp_path, "--megabytes", "1", sys.executable, "-c", source)
    assert ended.returncode == -signal.SIGKILL
    (path,) = tmp_path.iterdir()
    found = span_file.read(path)
    assert path.stat().st_size == 1 << 20
    assert found.alive is False
    assert [(span.name, span.end_ns) for span in found.recording.spans] == [("last words", None)]


@pytest.mark.multiproc
def test_a_folder_that_cannot_be_written_is_a_warning_and_the_program_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    source = "import logging; logging.basicConfig(); import resilin.core; print('done')"
    ended = subprocess.run(
        [sys.executable, "-c", source], env=env.snapshot({"RESILIN_RECORD_DIR": str(tmp_path / "file" / "spans")}),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert "spans are not recorded" in ended.stderr


@pytest.mark.multiproc
@pytest.mark.parametrize("value", ["5", "many"])
def test_a_size_that_makes_no_sense_is_an_error_that_names_the_variable(tmp_path, value):
    variables = {"RESILIN_RECORD_DIR": str(tmp_path), "RESILIN_RECORD_BYTES": value}
    ended = subprocess.run(
        [sys.executable, "-c", "import resilin.core"], env=env.snapshot(variables),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "environment variable RESILIN_RECORD_BYTES: expected" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_record_without_a_program_or_with_one_that_is_not_there_is_exit_code_2(tmp_path, capsys):
    for words, said in (
        (["--out", tmp_path], "expected a program to run"),
        (["--out", tmp_path, "no-such-program-here"], "there is no program 'no-such-program-here'"),
        (["--out", tmp_path, "--megabytes", "0", "true"], "--megabytes: expected 1 to 4096, got 0"),
        (["--out", os.devnull, "true"], "cannot be made"),
    ):
        code, _, err = _trace(capsys, "record", *words)
        assert code == 2
        assert said in err
