"""The flight recorder: what a process called last, in a file that outlives it, and what `resilin trace` makes of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilin._base.flight import Call, Flight, Recorder, State, read
from resilin.errors import UsageError
from resilin.launcher import flights, main
from resilin.testing.ranks import RankProcess, start_ranks


def _recorded(path: Path, calls: int, capacity: int = 4) -> Recorder:
    recorder = Recorder(path, "here", capacity)
    for number in range(calls):
        slot = recorder.begin(b"default", 2, 1, 3, -1, b"all_reduce", b"train.py:7 step")
        recorder.start(slot, number)
        recorder.describe(slot, b"float32", (number, 5), b"SUM", -1)
        recorder.end(slot, failed=number % 2 == 1)
    return recorder


def test_a_file_gives_back_what_was_recorded(tmp_path: Path) -> None:
    before = time.time()
    recorder = _recorded(tmp_path / "a.flight", 2)
    recorder.begin(b"default", 2, 1, 3, -1, b"barrier", b"train.py:8 step")
    flight = read(tmp_path / "a.flight")
    assert (flight.host, flight.pid, flight.recorded) == ("here", os.getpid(), 3)
    first, second, third = flight.calls
    assert str(second) == "all_reduce #1 float32[1, 5] SUM"
    assert (first.group, first.generation, first.rank, first.size) == ("default", 2, 1, 3)
    assert [call.state for call in flight.calls] == [State.DONE, State.FAILED, State.QUEUED]
    assert first.line == "train.py:7 step"
    assert before - 1 < first.made <= first.started <= first.ended < time.time() + 1
    assert (third.sequence, third.started, third.ended) == (-1, 0, 0)


def test_a_ring_keeps_the_newest_and_lets_no_older_call_write_into_them(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.flight", "here", 3)
    slots = [recorder.begin(b"g", 0, 0, 1, -1, b"barrier", str(number).encode()) for number in range(5)]
    for slot in slots[:2]:
        recorder.end(slot, failed=True)
    calls = read(tmp_path / "a.flight").calls
    assert [call.line for call in calls] == ["2", "3", "4"]
    assert {call.state for call in calls} == {State.QUEUED}


def test_texts_and_shapes_that_do_not_fit_are_cut(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.flight", "h" * 200, 1)
    slot = recorder.begin("größe".encode() * 40, 0, 0, 1, -1, b"x" * 99, b"y" * 999)
    recorder.describe(slot, b"float32", tuple(range(12)), b"SUM", -1)
    (call,) = read(tmp_path / "a.flight").calls
    assert call.shape == tuple(range(8))
    assert (len(call.what), len(call.line)) == (24, 96)
    assert call.group.startswith("größegröße")


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.flight").write_text("hello")
    _recorded(tmp_path / "cut.flight", 1).close()
    os.truncate(tmp_path / "cut.flight", 300)
    for name, said in (("text", "begins with"), ("cut", "it was cut")):
        with pytest.raises(UsageError, match=said):
            read(tmp_path / f"{name}.flight")
    with pytest.raises(UsageError, match="capacity of 0"):
        Recorder(tmp_path / "none.flight", "here", 0)


def test_a_closed_recorder_writes_no_more_and_leaves_its_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.flight", "here", 3)
    slot = recorder.begin(b"g", 0, 0, 1, -1, b"barrier", b"")
    recorder.close()
    recorder.end(slot, failed=False)
    assert read(tmp_path / "a.flight").calls[0].state == State.QUEUED


@contextlib.contextmanager
def _started(count: int, source: str, folder: Path) -> Iterator[list[RankProcess]]:
    ranks = start_ranks(count, source, str(folder), RESILIN_TRACE_DIR=str(folder / "trace"))
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.finish()


STUCK = """
import os, time
import numpy as np
from resilin import dist
from resilin.testing.ranks import join_from_environment
group = join_from_environment()
rank = dist.get_rank()
for step in range(3):
    dist.all_reduce(np.ones(7, np.float32))
def pause():
    print("here", flush=True)
    time.sleep(60)
if rank == 1:
    pause()
print("here", flush=True)
def train_step():
    dist.broadcast(np.ones((2, 3)), src=2)
train_step()
"""


def test_a_job_that_hangs_and_is_killed_says_who_was_missing_from_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _started(3, STUCK, tmp_path) as ranks:
        assert [rank.read_line() for rank in ranks] == ["here"] * 3
        time.sleep(0.5)
        assert main.main(["trace", str(tmp_path)]) == 0
        alive = capsys.readouterr().out
        for rank in ranks:
            os.kill(rank.pid, signal.SIGKILL)
    assert "group 'test' generation 1, 3 ranks: broadcast #3 float64[2, 3] root 2: rank 1 missing" in alive
    assert "rank 0 broadcast #3 float64[2, 3] root 2 waits since" in alive
    assert "train_step" in alive
    assert "rank 1 MISSING: its last was all_reduce #2 float32[7] SUM finished" in alive
    assert "its process is alive" in alive
    assert main.main(["trace", str(tmp_path), "--calls", "2"]) == 0
    dead = capsys.readouterr().out
    assert "rank 1 missing" in dead
    assert "its process is GONE" in dead
    assert dead.count("broadcast #3") >= 4
    assert main.main(["trace", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(len(one["calls"]) for one in found) == [3, 4, 4]


MESSAGES = """
import numpy as np
from resilin import dist
from resilin.testing.ranks import join_from_environment
join_from_environment()
if dist.get_rank() == 0:
    dist.send(np.ones(4), 1)
    works = [dist.all_reduce(np.ones(5), async_op=True) for _ in range(2)]
else:
    dist.recv(np.ones(4), 0)
    waiting = dist.irecv(np.ones(6), 0, tag=9)
    dist.all_reduce(np.ones(5))
    works = [dist.all_reduce(np.ones(5), async_op=True)]
for work in works:
    work.wait()
print("done", flush=True)
input()
"""


def test_messages_and_asynchronous_collectives_are_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _started(2, MESSAGES, tmp_path) as ranks:
        assert [rank.read_line() for rank in ranks] == ["done"] * 2
        assert main.main(["trace", str(tmp_path)]) == 0
        text = capsys.readouterr().out
        for rank in ranks:
            os.kill(rank.pid, signal.SIGKILL)
    assert "all ranks finished #1, nothing is under way" in text
    assert "rank 1 recv float64[6] from 0 waits since" in text
    calls = {one.pid: [str(call) for call in one.calls] for one in map(read, tmp_path.rglob("*.flight"))}
    assert calls[ranks[0].pid] == ["send float64[4] to 1", "all_reduce #0 float64[5] SUM", "all_reduce #1 float64[5] SUM"]


UNWRITABLE = """
import numpy as np
from resilin import dist
from resilin.testing.ranks import join_from_environment
group = join_from_environment()
dist.all_reduce(np.ones(5))
dist.new_group([0])
print("done", flush=True)
"""


def test_a_folder_that_cannot_be_written_is_a_warning_and_no_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (rank,) = start_ranks(1, UNWRITABLE, str(tmp_path), RESILIN_TRACE_DIR=str(tmp_path / "file" / "trace"))
    code, out, said = rank.finish()
    assert (code, out) == (0, "done\n")
    assert said.count("collectives are not recorded") == 1


FAILED = """
import numpy as np, pytest
from resilin import dist
from resilin.testing.ranks import join_from_environment
join_from_environment()
dist.default_group().abort()
for asynchronous in (False, True):
    with pytest.raises(dist.DistError):
        work = dist.all_reduce(np.ones(5), async_op=asynchronous)
        work.wait()
print("done", flush=True)
"""


def test_a_call_of_a_group_that_has_failed_is_recorded_as_failed(tmp_path: Path) -> None:
    with _started(1, FAILED, tmp_path) as (rank,):
        assert rank.read_line() == "done"
        rank.finish()
    (path,) = tmp_path.rglob("*.flight")
    assert [call.state for call in read(path).calls] == [State.FAILED, State.FAILED]


def _call(rank: int, sequence: int, state: State, **changes: Any) -> Call:
    given: dict[str, Any] = {
        "state": state, "group": "default", "generation": 1, "rank": rank, "size": 3, "sequence": sequence,
        "what": "all_reduce", "dtype": "float32", "shape": (8,), "op": "SUM", "root": -1, "line": "a.py:1 f",
        "made": 1.0, "started": 1.0, "ended": 1.5,
    }  # fmt: skip
    return Call(**{**given, **changes})


def _report(*calls: Call) -> str:
    by_rank: dict[int, list[Call]] = {}
    for call in calls:
        by_rank.setdefault(call.rank, []).append(call)
    files = [
        Flight(path=Path(str(rank)), host="h", pid=rank, recorded=len(made), calls=tuple(made))
        for rank, made in by_rank.items()
    ]
    (group,) = flights.groups(files)
    return "\n".join(flights.report(group, 2.0, lambda flight: None))


def test_ranks_that_call_different_things_are_shown_side_by_side() -> None:
    text = _report(
        _call(0, 4, State.RUNNING), _call(1, 4, State.FAILED, shape=(9,)), _call(2, 3, State.DONE)
    )
    assert "ranks DISAGREE on #4" in text
    assert "rank 0 all_reduce #4 float32[8] SUM waits since" in text
    assert "rank 1 all_reduce #4 float32[9] SUM failed" in text
    assert "rank 2 MISSING" in text


def test_a_rank_without_a_file_and_a_group_in_step_are_named() -> None:
    text = _report(_call(0, 4, State.DONE), _call(2, 4, State.DONE))
    assert "all ranks finished #4, nothing is under way" in text
    assert "rank 1: no file here" in text


def test_calls_that_wait_for_their_turn_are_told_apart_from_calls_never_made() -> None:
    text = _report(_call(0, 2, State.RUNNING), _call(1, 1, State.RUNNING), _call(1, -1, State.QUEUED), _call(2, 2, State.RUNNING))
    assert "all_reduce #1 float32[8] SUM" in text
    assert "no file" not in text


def test_a_folder_without_files_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["trace", str(tmp_path)]) == 2
    assert "no *.flight files" in capsys.readouterr().err
