"""`resilin trace`: what it says of jobs that run, hang, disagree or are dead, and of what is no file of a job."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import extent
import pytest

from resilin._base.clock import Deadline
from resilin._base.flight import HEADER_BYTES, Flight, Recorder, read
from resilin._base.flight_record import RECORD_BYTES, Call, CallState, Place
from resilin.elastic.hangs import flight_analysis
from resilin.launcher import flight_report, main
from resilin.launcher.flight_report import Verdict
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import RankProcess, start_ranks

Said = pytest.CaptureFixture[str]


@contextlib.contextmanager
def _started(count: int, source: str, folder: Path, **variables: str) -> Iterator[list[RankProcess]]:
    """Ranks that run HEAD and then `source`, once each has printed "here"; `_trace` waits for what comes then."""
    ranks = start_ranks(count, HEAD + source, str(folder), RESILIN_TRACE_DIR=str(folder / "trace"), **variables)
    try:
        for rank in ranks:
            assert rank.read_line() == "here", rank.finish()
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.finish()


HEAD = """
import time
import numpy as np
from resilin import dist
from resilin.testing.ranks import join_from_environment
group = join_from_environment()
rank = dist.get_rank()
def here():
    print("here", flush=True)
def train_step(*shape):
    dist.all_reduce(np.ones(shape, np.float32))
for step in range(3):
    train_step(7)
"""

NEVER_CALLS = """
here()
if rank == 1:
    time.sleep(1000)
dist.broadcast(np.ones((2, 3)), src=2)
"""


def _trace(said: Said, *arguments: str | Path, first: str = "") -> tuple[int, list[str]]:
    """The exit code and the lines, as soon as they begin as `first` says; at last whatever they are."""
    deadline = Deadline(PATIENCE_S)
    while True:
        said.readouterr()
        code = main.main(["trace", *map(str, arguments)])
        out, err = said.readouterr()
        lines = (out + err).splitlines()
        if re.match(first, "\n".join(lines)) or deadline.passed():
            return code, lines
        time.sleep(0.1)  # looks at other processes, which cannot tell us


SUMS_ALONG_A_TREE = """
from resilin.testing.hangs import COLLECTIVES
COLLECTIVES["tree_all_reduce"](rank, np.asarray)
here()
if rank == 1:
    time.sleep(1000)
COLLECTIVES["tree_all_reduce"](rank, np.asarray)
"""


def test_a_sum_along_a_tree_has_shards_and_no_root_and_who_is_missing_from_it_is_said(
    tmp_path: Path, capsys: Said
) -> None:
    with _started(3, SUMS_ALONG_A_TREE, tmp_path):
        code, said = _trace(capsys, tmp_path, "--after", "0.2", first="STUCK: rank 1 of 3 is missing")
        what = r"tree_all_reduce #4 float64\[4\] SUM of 5 shards in _sum_along_tree"
        assert code == 1
        assert re.match(rf"STUCK: rank 1 of 3 is missing from {what} of group 'test' generation 1, waited", said[0])
        assert re.match(rf"  ranks 0, 2: {what} waits for ", said[1])
        assert re.match(
            r"  rank 1: MISSING: its last was tree_all_reduce #3 float64\[4\] SUM of 5 shards in _", said[2]
        )
        _, text = _trace(capsys, tmp_path, "--json")
        found = json.loads("\n".join(text))
        assert found["notes"] == []
        calls = [call for one in found["files"] for call in one["calls"] if call["what"] == "tree_all_reduce"]
        assert {(call["root"], call["shards"]) for call in calls} == {(-1, 5)}
        assert len(calls) == 5


def test_a_job_that_hangs_and_is_killed_says_who_was_missing_from_what(tmp_path: Path, capsys: Said) -> None:
    with _started(3, NEVER_CALLS, tmp_path) as ranks:
        code, alive = _trace(
            capsys, tmp_path, "--after", "1000", first="UNDER WAY: rank 1 of 3 is missing from broadcast #3"
        )
        assert code == 0  # this wait is nothing yet
        assert alive[0].startswith(
            "UNDER WAY: rank 1 of 3 is missing from broadcast #3 float64[2, 3] root 2 of group 'test' generation 1"
        )
        assert re.match(r"  ranks 0, 2: broadcast #3 float64\[2, 3\] root 2 waits for \d", alive[1])
        assert "<module>" in alive[1]
        assert re.match(r"  rank 1: MISSING: its last was all_reduce #2 float32\[7\] SUM finished \d", alive[2])
        assert "train_step; its process is alive" in alive[2]
        code, late = _trace(capsys, tmp_path, "--after", "0.2", first="STUCK")
        assert (code, late[0][:6]) == (1, "STUCK:")
        for number in (signal.SIGSTOP, signal.SIGKILL):  # at once: none hears of another's death
            for rank in ranks:
                os.kill(rank.pid, number)
    code, dead = _trace(capsys, tmp_path, "--calls", "2")
    assert code == 1
    assert dead[0].startswith("STUCK: rank 1 of 3 is missing from broadcast #3")
    assert sum("its process is GONE" in line for line in dead) == 2
    assert sum(line.startswith("  test/1 rank") for line in dead) == 6
    code, text = _trace(capsys, tmp_path, "--json")
    found = json.loads("\n".join(text))
    assert code == 1
    (group,) = found["groups"]
    assert (group["verdict"], group["sequence"], group["missing"], group["arrived"]) == ("stuck", 3, [1], [0, 2])
    assert sorted(len(one["calls"]) for one in found["files"]) == [4, 5, 5]
    assert found["files"][0]["alive"] is False


def test_a_healthy_job_is_in_step(tmp_path: Path, capsys: Said) -> None:
    with _started(2, "here()\ntime.sleep(1000)", tmp_path):
        assert _trace(capsys, tmp_path) == (
            0,
            ["IN STEP: group 'test' generation 1 (2 ranks): all ranks finished #2, nothing is under way"],
        )


IN_STEP = """
here()
if rank == 1:
    time.sleep(1)
while True:
    train_step(7)
"""


def test_a_stopped_rank_is_named_though_its_calls_look_like_those_of_the_others(tmp_path: Path, capsys: Said) -> None:
    with _started(3, IN_STEP, tmp_path) as ranks:
        os.kill(ranks[1].pid, signal.SIGSTOP)
        time.sleep(1.0)
        code, lines = _trace(capsys, tmp_path, "--after", "0.2", first="STUCK")
        os.kill(ranks[1].pid, signal.SIGCONT)
    assert code == 1
    assert lines[0].startswith("STUCK: ")
    assert lines[0].endswith("; STOPPED: rank 1")
    assert sum("its process is STOPPED" in line for line in lines) >= 1
    assert all(line.startswith("  rank 1: ") for line in lines[1:] if "STOPPED" in line)


DEAD = """
here()
if rank == 1:
    for other in (0, 2):
        dist.recv(np.ones(1), other)
    time.sleep(0.5)  # by then what the others have queued has begun
    raise ValueError("a bug of the program")
try:
    work = dist.all_reduce(np.ones(7, np.float32), async_op=True)
    dist.send(np.ones(1), 1)  # it is gone only when both have begun
    work.wait()
finally:
    time.sleep(1000)
"""


def test_a_rank_that_raised_is_found_by_the_file_it_left(tmp_path: Path, capsys: Said) -> None:
    with _started(3, DEAD, tmp_path):
        code, lines = _trace(capsys, tmp_path, first=".*failed on ranks 0, 2; GONE")
    assert code == 1
    assert lines[0].startswith("FAILED: rank 1 of 3 is missing from all_reduce #3 float32[7] SUM of group 'test'")
    assert lines[0].endswith("; it failed on ranks 0, 2; GONE: rank 1")
    assert any(line.startswith("  rank 1: MISSING: its last was all_reduce #2") and "GONE" in line for line in lines)


MISMATCH = """
try:
    if rank == 1:
        dist.broadcast(np.ones(7, np.float32), src=0)
    else:
        train_step(7 + rank)
except dist.DistError:
    pass
here()
time.sleep(1000)
"""


def test_ranks_in_different_collectives_are_shown_side_by_side(tmp_path: Path, capsys: Said) -> None:
    with _started(3, MISMATCH, tmp_path):
        code, lines = _trace(capsys, tmp_path)
    assert code == 1
    assert lines[0] == "DISAGREE: ranks of group 'test' generation 1 (3 ranks) called different things as #3"
    told = [line.partition(" failed ")[0] for line in lines[1:]]
    assert told == [
        "  rank 0: all_reduce #3 float32[7] SUM",
        "  rank 1: broadcast #3 float32[7] root 0",
        "  rank 2: all_reduce #3 float32[9] SUM",
    ]


CROSSED = """
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
here()
for group in (first, second) if rank == 0 else (second, first):
    dist.barrier(group=group)
"""


def test_groups_called_in_another_order_are_a_deadlock_that_names_the_ring(tmp_path: Path, capsys: Said) -> None:
    with _started(2, CROSSED, tmp_path):
        code, lines = _trace(capsys, tmp_path, first="DEADLOCK")
    assert code == 1
    assert lines[0].startswith("DEADLOCK: each waits for the next: rank ")
    assert lines[0].count(" waits in barrier #0 for rank ") == 2
    assert sum("MISSING" in line and "now in barrier #0 of group" in line for line in lines) == 2


def test_a_chain_of_receives_says_who_waits_for_whom_and_who_is_idle(tmp_path: Path, capsys: Said) -> None:
    source = "here()\ntime.sleep(1000) if rank == 1 else dist.recv(np.ones(4), 1 if rank == 0 else 0)"
    chain = (
        r"STUCK: group 'test' generation 1 \(3 ranks\): rank 0 waits in recv float64\[4\] from 1, "
        r"rank 2 waits in recv float64\[4\] from 0, for \d"
    )
    with _started(3, source, tmp_path):
        code, lines = _trace(capsys, tmp_path, "--after", "0.2", first=chain)
    assert code == 1
    assert re.match(chain, lines[0])
    assert lines[0].endswith("; rank 1 is in no message")


def test_a_ring_of_receives_is_a_deadlock(tmp_path: Path, capsys: Said) -> None:
    with _started(3, "here()\ndist.recv(np.ones(4), (rank + 1) % 3)", tmp_path):
        code, lines = _trace(capsys, tmp_path, "--after", "0.2", first="DEADLOCK")
        _, text = _trace(capsys, tmp_path, "--after", "0.2", "--json")
    assert code == 1
    assert lines[0].startswith("DEADLOCK: each waits for the next: rank ")
    assert lines[0].count(" waits in recv float64[4] from ") == 3
    assert sorted((step["rank"], step["waits_for"]) for step in json.loads("\n".join(text))["deadlock"]) == [
        (0, 1),
        (1, 2),
        (2, 0),
    ]


def test_a_receive_and_a_collective_may_wait_for_one_another(tmp_path: Path, capsys: Said) -> None:
    with _started(2, "here()\ndist.recv(np.ones(4), 1) if rank == 0 else train_step(7)", tmp_path):
        _, lines = _trace(capsys, tmp_path, "--after", "0.2", first="DEADLOCK")
    assert lines[0].startswith("DEADLOCK: ")
    assert "waits in recv float64[4] from 1 for rank 1" in lines[0]
    assert "waits in all_reduce #3 float32[7] SUM for rank 0" in lines[0]


def test_receives_posted_before_other_calls_are_no_deadlock() -> None:
    def posted(rank: int) -> Call:
        return _call(rank, -1, CallState.RUNNING, what="recv", root=1 - rank, size=2, op="")

    assert len(flight_analysis.cycle(_groups(posted(0), posted(1)))) == 2
    assert not flight_analysis.cycle(_groups(posted(0), posted(1)), before=0.5)
    assert not flight_analysis.cycle(_groups(posted(0), posted(1), _call(1, 0, CallState.DONE, size=2)))


MESSAGES = """
if rank == 0:
    dist.send(np.ones(4), 1)
    for work in [dist.all_reduce(np.ones(5), async_op=True) for _ in range(2)]:
        work.wait()
else:
    dist.recv(np.ones(4), 0)
    waiting = dist.irecv(np.ones(6), 0, tag=9)
    dist.all_reduce(np.ones(5))
    dist.all_reduce(np.ones(5), async_op=True).wait()
here()
time.sleep(1000)
"""


def test_messages_and_asynchronous_collectives_are_recorded(tmp_path: Path, capsys: Said) -> None:
    with _started(2, MESSAGES, tmp_path) as ranks:
        _, lines = _trace(capsys, tmp_path)
        assert lines[1].startswith("  rank 1: recv float64[6] from 0 tag 9 waits for")
        calls = {one.pid: [str(call) for call in one.calls] for one in map(read, tmp_path.rglob("*.flight"))}
    assert calls[ranks[0].pid][4:] == [
        "send float64[4] to 1",
        "all_reduce #3 float64[5] SUM",
        "all_reduce #4 float64[5] SUM",
    ]


WITHIN = """
import resilin
here()
if rank == 0:
    time.sleep(1000)
%s
"""


@pytest.mark.parametrize(
    ("call", "said"),
    extent.short(
        [
            ("dist.all_gather_object([None] * 3, 'x')", "all_gather #3 int64[1] in all_gather_object"),
            ("dist.monitored_barrier(timeout=1000.0)", "recv int64[1] from 0 in monitored_barrier"),
            ("dist.all_reduce_coalesced([np.ones(3)])", "all_reduce #3 float64[3] SUM in all_reduce_coalesced"),
            ("dist.all_reduce(np.ones(3))", "all_reduce #3 float64[3] SUM"),
            ("dist.irecv(np.ones(3), 0).wait()", "recv float64[3] from 0"),
        ],
        of=lambda call, said: " in " in said and "coalesced" not in said,
    ),
)  # fmt: skip
def test_the_function_that_the_program_called_is_told(call: str, said: str, tmp_path: Path, capsys: Said) -> None:
    told = rf"STUCK(.|\n)*\n  ranks 1, 2: {re.escape(said)} waits for "
    with _started(3, WITHIN % call, tmp_path):
        code, lines = _trace(capsys, tmp_path, "--after", "0.2", first=told)
    assert code == 1
    assert any(line.startswith(f"  ranks 1, 2: {said} waits for ") for line in lines), lines


def test_files_of_two_hosts_are_read_together_and_what_is_damaged_is_said(tmp_path: Path, capsys: Said) -> None:
    with _started(3, NEVER_CALLS, tmp_path):
        _trace(capsys, tmp_path, "--after", "1000", first="UNDER WAY: rank 1 of 3 is missing from broadcast #3")
    one, two = sorted((tmp_path / "trace").iterdir())[:2], sorted((tmp_path / "trace").iterdir())[2:]
    for name, files in (("one", one), ("two", two)):
        (tmp_path / name).mkdir()
        for file in files:
            shutil.copy(file, tmp_path / name)
    (tmp_path / "two" / "text.flight").write_text("hello")
    (cut,) = [tmp_path / "two" / file.name for file in two]
    os.truncate(cut, HEADER_BYTES + 100 * RECORD_BYTES)
    code, lines = _trace(capsys, tmp_path / "one", tmp_path / "two")
    assert code == 1
    assert lines[0].startswith("STUCK: rank 1 of 3 is missing from broadcast #3")
    assert any(line.startswith("not read:") and "text.flight" in line for line in lines)
    assert any("it was cut: 100 of 2048 records are there" in line for line in lines)
    code, lines = _trace(capsys, *(tmp_path / "two").iterdir())  # one rank's file by name
    assert any("no file here" in line for line in lines)


def test_a_folder_without_files_or_with_strangers_only_is_a_usage_error(tmp_path: Path, capsys: Said) -> None:
    code, lines = _trace(capsys, tmp_path)
    assert code == 2
    assert "no *.flight files" in lines[0]
    (tmp_path / "text.flight").write_text("hello")
    code, lines = _trace(capsys, tmp_path)
    assert code == 2
    assert "begins with" in lines[0]


def test_without_a_folder_the_users_own_is_read_and_old_jobs_are_left_out(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    place = tmp_path / f"resilin-flights-{os.geteuid()}"
    place.mkdir()
    assert _trace(capsys)[0] == 2
    for number, sequence in ((1, 4), (2, 9)):  # two jobs, whose groups have the same name
        made = Recorder(place / f"{number}.flight", "elsewhere", 8)
        slot = made.begin(Place(b"default", number, 0, 0, 1), b"barrier", b"x.py:1 f")
        made.start(slot, sequence)
        made.end(slot, failed=False)
        made.close()
    code, lines = _trace(capsys)
    assert code == 0
    assert lines == [
        "IN STEP: group 'default' generation 0 (1 ranks): all ranks finished #9, nothing is under way",
        "older jobs in these files: 1, shown with --all",
    ]
    assert len(_trace(capsys, "--all")[1]) == 2


def _call(rank: int, sequence: int, state: CallState, **changes: Any) -> Call:
    given: dict[str, Any] = {
        "state": state, "group": "default", "key": 1, "generation": 1, "rank": rank, "size": 3, "sequence": sequence,
        "what": "all_reduce", "dtype": "float32", "shape": (8,), "op": "SUM", "root": -1, "line": "a.py:1 f",
        "tag": 0, "by": "all_reduce", "made": 1.0, "started": 1.0, "ended": 1.5,
    }  # fmt: skip
    return Call(**{**given, **changes})


def _groups(*calls: Call, alive: bool | None = None) -> list[flight_analysis.Group]:
    """The groups of one process for each rank."""
    by_rank: dict[int, list[Call]] = {}
    for call in calls:
        by_rank.setdefault(call.rank, []).append(call)
    return flight_analysis.groups(
        [
            Flight(
                path=Path(str(rank)), host="h", pid=rank, job="", recorded=len(made), alive=alive, stopped=False,
                damage="", calls=tuple(made),
            )
            for rank, made in by_rank.items()
        ]
    )  # fmt: skip


def _report(*calls: Call, alive: bool | None = None, after_s: float = 0.5) -> list[str]:
    found = _groups(*calls, alive=alive)
    return flight_report.report(found[0], 2.0, found, after_s)


def test_a_rank_without_a_file_and_a_group_in_step_are_named() -> None:
    lines = _report(_call(0, 4, CallState.DONE), _call(2, 4, CallState.DONE))
    assert lines[0].endswith("all ranks finished #4, nothing is under way")
    assert lines[1].startswith("  rank 1: no file here")


def test_calls_that_wait_for_their_turn_are_told_apart_from_calls_never_made() -> None:
    lines = _report(
        _call(0, 2, CallState.RUNNING),
        _call(1, 1, CallState.RUNNING),
        _call(1, -1, CallState.QUEUED),
        _call(2, 2, CallState.RUNNING),
    )
    assert lines[0].startswith("STUCK: ranks 0, 2 of 3 are missing from all_reduce #1 float32[8] SUM")


def test_a_rank_that_has_not_said_yet_what_it_carries_does_not_disagree() -> None:
    (group,) = _groups(_call(0, 4, CallState.RUNNING), _call(1, 4, CallState.RUNNING, dtype="", shape=(), op=""))
    assert not group.disagree()
    assert flight_report.verdict(group, 2.0, 5.0) == Verdict.UNDER_WAY
    (group,) = _groups(
        _call(0, 4, CallState.RUNNING), _call(1, 4, CallState.RUNNING, what="barrier", dtype="", shape=(), op="")
    )
    assert flight_report.verdict(group, 2.0, 5.0) == Verdict.DISAGREE


def test_a_group_of_which_a_ring_kept_nothing_but_messages_accuses_nobody() -> None:
    (group,) = _groups(_call(0, 4, CallState.RUNNING), _call(1, -1, CallState.DONE, what="send"))
    assert group.missing() == []


def test_the_group_in_which_the_cause_lies_comes_before_the_groups_that_wait_for_it(
    tmp_path: Path, capsys: Said
) -> None:
    """Rank 2 is missing from 'b'; rank 1 waits there, so rank 0 waits for it in 'a'."""
    for rank, members in ((0, (("a", 0),)), (1, (("a", None), ("b", 0))), (2, (("b", None),))):
        made = Recorder(tmp_path / f"{rank}.flight", "elsewhere", 8)
        for name, sequence in members:
            place = Place(name.encode(), 1, 0, rank, 3)
            made.end(made.begin(place, b"join", b""), failed=False)
            if sequence is not None:
                made.start(made.begin(place, b"barrier", b"x.py:1 f"), sequence)
        made.close()
    code, lines = _trace(capsys, tmp_path, "--after", "0")
    assert code == 1
    heads = [line for line in lines if line.startswith("STUCK")]
    assert heads[0].startswith("STUCK: rank 2 of 3 is missing from barrier #0 of group 'b'")
    assert heads[1].startswith("STUCK: rank 1 of 3 is missing from barrier #0 of group 'a'")
    only = _trace(capsys, tmp_path, "--group", "a", "--ranks", "1", "-v")[1]
    assert only[0].startswith("STUCK: rank 1 of 3 is missing from barrier #0 of group 'a'") or len(only) == 2
    assert "[elsewhere pid" in only[1]


def test_of_many_groups_in_step_only_a_few_are_listed(tmp_path: Path, capsys: Said) -> None:
    made = Recorder(tmp_path / "0.flight", "elsewhere", 64)
    for number in range(20):
        made.end(made.begin(Place(f"group {number}".encode(), number, 0, 0, 1), b"join", b""), failed=False)
    made.close()
    code, lines = _trace(capsys, tmp_path)
    assert (code, len(lines), lines[-1]) == (0, 9, "IN STEP: 12 more groups, shown with --verbose")
    assert len(_trace(capsys, tmp_path, "-v")[1]) == 20
    assert len(_trace(capsys, tmp_path, "--group", "group 19")[1]) == 1


def test_a_group_that_is_not_there_and_numbers_that_mean_nothing_are_refused(tmp_path: Path, capsys: Said) -> None:
    made = Recorder(tmp_path / "0.flight", "elsewhere", 64)
    for name in ("one", "two"):
        made.end(made.begin(Place(name.encode(), 1, 0, 0, 1), b"join", b""), failed=False)
    made.close()
    code, lines = _trace(capsys, tmp_path, "--group", "one", "--group", "tow")
    assert code == 2
    assert "--group 'tow': no such group is recorded; there are: 'one', 'two'" in lines[-1]
    code, lines = _trace(capsys, tmp_path, "--ranks", "0,3-5")
    assert code == 2
    assert "--ranks 3: no such rank is recorded; groups have up to 1 ranks, from 0 on" in lines[-1]
    for wrong in (["--calls", "-4"], ["--calls", "x"], ["--after", "-1"], ["--after", "nan"]):
        with pytest.raises(SystemExit) as ended:
            main.main(["trace", str(tmp_path), *wrong])
        assert ended.value.code == 2
        assert re.search(rf"argument {wrong[0]}: expected .*, 0 or more, got '{wrong[1]}'", capsys.readouterr().err)


def test_thousands_of_calls_on_hundreds_of_ranks_make_a_few_lines() -> None:
    calls = [_call(rank, sequence, CallState.DONE, size=300) for rank in range(300) for sequence in range(40, 60)]
    calls += [_call(rank, 60, CallState.RUNNING, size=300) for rank in range(300) if rank != 123]
    lines = _report(*calls, after_s=0.0)
    assert len(lines) == 3
    assert lines[0].startswith("STUCK: rank 123 of 300 is missing from all_reduce #60")
    assert lines[1].startswith("  ranks 0-122, 124-299: all_reduce #60")


def test_the_newest_generation_of_a_group_counts() -> None:
    found = _groups(_call(0, 4, CallState.RUNNING), _call(0, 1, CallState.DONE, generation=2, key=2))
    (job,) = flight_analysis.jobs(found)
    assert [group.generation for group in flight_analysis.newest(job)] == [2]


def _recorded(folder: Path, calls: dict[int, list[tuple[int, str]]]) -> None:
    """By rank, the numbers of its all_reduces and how far each has come: told, untold or done."""
    for rank, made in calls.items():
        with contextlib.closing(Recorder(folder / f"{rank}.flight", "here", 8)) as file:
            place = Place(b"g", 5, 1, rank, len(calls))
            file.end(file.begin(place, b"join", b"a.py:1 f"), failed=False)
            for sequence, state in made:
                slot = file.begin(place, b"all_reduce", b"a.py:2 f")
                file.start(slot, sequence)
                if state != "untold":
                    file.describe(slot, b"float32", (3,), b"SUM", -1)
                if state == "done":
                    file.end(slot, failed=False)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            {0: [(0, "told")], 1: [(0, "untold")], 2: [(0, "told")]},
            r"ranks 0-2 of 3 came to all_reduce #0 float32\[3\] SUM of .*; rank 1 has not told the others of it yet",
        ),
        (
            {0: [(0, "done"), (1, "told")], 1: [(0, "told")], 2: [(0, "done"), (1, "told")]},
            r"ranks 0-2 of 3 came to all_reduce #0 float32\[3\] SUM of .*"
            r"; ranks 0, 2 have finished it and wait in all_reduce #1 float32\[3\] SUM",
        ),
    ],
)
def test_who_hangs_inside_a_collective_is_told_from_those_that_wait_in_it(
    calls: dict[int, list[tuple[int, str]]], said: str, tmp_path: Path, capsys: Said
) -> None:
    _recorded(tmp_path, calls)
    code, lines = _trace(capsys, tmp_path, "--after", "0")
    assert code == 1
    assert re.match(rf"STUCK: {said}", lines[0]), lines
