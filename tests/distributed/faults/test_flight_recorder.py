"""The flight recorder: what a process called last, in a file that outlives it, by either writer."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilin._base import flight_folder
from resilin._base.flight import HEADER_BYTES, Recorder, read, running
from resilin._base.flight_record import RECORD_BYTES, CallState, Place
from resilin.distributed.wire import flight_recorder, loader
from resilin.distributed.wire.flight_recorder import GroupLog, PythonLog
from resilin.distributed.wire.frames import Kind
from resilin.distributed.wire.reduce_op import ReduceOp
from resilin.errors import UsageError
from resilin.testing.ranks import RankProcess, start_ranks

HERE = Place(b"default", 77, 2, 1, 3)
WRITERS = [
    "python",
    pytest.param("native", marks=pytest.mark.skipif(loader.native is None, reason="built without a C++ compiler")),
]


def _log(path: Path, writer: str, capacity: int = 4) -> GroupLog:
    made = Recorder(path, "here", capacity)
    if writer == "python":
        return PythonLog(made, b"default", 77, 2, 1, 3)
    return flight_recorder.native_log(flight_recorder.native_flight(made), b"default", 77, 2, 1, 3)


def _record(log: GroupLog, number: int) -> None:
    entry = log.collective(Kind.ALL_REDUCE)
    entry.start(number)
    entry.describe(np.dtype(np.float32), (number, 5), ReduceOp.SUM, -1)
    entry.describe(np.dtype(np.int8), (1,), None, 0)  # of a call made of others the first counts
    entry.end(number % 2 == 1)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_gives_back_what_was_recorded(tmp_path: Path, writer: str) -> None:
    before = time.time()
    log = _log(tmp_path / "a.flight", writer)
    for number in range(2):
        _record(log, number)
    log.collective(Kind.BARRIER)
    log.message(b"send", np.ones((2, 3)), 2).end(False)
    flight = read(tmp_path / "a.flight")
    assert (flight.host, flight.pid, flight.recorded, flight.damage) == ("here", os.getpid(), 4, "")
    first, _, third, _ = flight.calls
    assert [str(call) for call in flight.calls[1:]] == [
        "all_reduce #1 float32[1, 5] SUM",
        "barrier",
        "send float64[2, 3] to 2",
    ]
    assert (first.group, first.key, first.generation, first.rank, first.size) == ("default", 77, 2, 1, 3)
    assert [call.state for call in flight.calls] == [CallState.DONE, CallState.FAILED, CallState.QUEUED, CallState.DONE]
    assert first.line == f"{__file__}:{_line_of(_record, 1)} _record"[-144:]
    assert before - 1 < first.made <= first.started <= first.ended < time.time() + 1
    assert (third.sequence, third.started, third.ended) == (-1, 0, 0)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_message_has_its_tag_and_a_call_the_function_that_was_called(tmp_path: Path, writer: str) -> None:
    log = _log(tmp_path / "a.flight", writer, capacity=9)
    log.message(b"recv", np.ones(2), 1, 7)
    log.message(b"recv", np.ones(2), 1, -2)
    log.collective(Kind.BARRIER)
    inside = {"__name__": "resilin.made", "log": log, "kind": Kind.ALL_GATHER}
    source = "def all_gather_object():\n  return _inner()\ndef _inner():\n  log.collective(kind)"
    exec(compile(source, str(Path(flight_recorder.__file__).parent / "made.py"), "exec"), inside)
    inside["all_gather_object"]()
    first, own, barrier, gathered = read(tmp_path / "a.flight").calls
    assert (str(first), str(own)) == ("recv float64[2] from 1 tag 7", "recv float64[2] from 1")
    assert [call.tag for call in (first, own, barrier, gathered)] == [7, -2, 0, 0]
    assert gathered.by == "all_gather_object"
    assert gathered.within() == "all_gather in all_gather_object"
    assert gathered.line.endswith(" test_a_message_has_its_tag_and_a_call_the_function_that_was_called")
    assert barrier.within() == "barrier"


def test_of_a_file_the_calls_that_run_are_found_alone_and_in_order(tmp_path: Path) -> None:
    made = Recorder(tmp_path / "file", "here", 4)
    place = Place(b"default", 7, 1, 0, 2)
    slots = [made.begin(place, name, b"train.py:1") for name in (b"a", b"b", b"c", b"d", b"e")]  # e is over a
    for sequence, slot in ((1, slots[1]), (4, slots[4]), (2, slots[2])):
        made.start(slot, sequence)
    made.end(slots[2], failed=False)
    assert [(call.what, call.sequence) for call in running(tmp_path / "file")] == [("b", 1), ("e", 4)]
    made.close()
    (tmp_path / "file").write_bytes(b"something else")
    assert running(tmp_path / "file") == ()


def _line_of(function: Any, offset: int) -> int:
    return int(function.__code__.co_firstlineno) + offset


@pytest.mark.skipif(loader.native is None, reason="built without a C++ compiler")
def test_both_writers_write_equal_bytes_but_for_times(tmp_path: Path) -> None:
    made = {writer: _log(tmp_path / f"{writer}.flight", writer, capacity=5) for writer in ("python", "native")}

    def calls(log: GroupLog) -> None:  # the lines must be the same ones
        for number in range(6):
            _record(log, number)
        log.mark(b"join").end(False)
        log.message(b"recv", np.ones((2,) * 12, np.complex64), 0)
        wide = log.collective(Kind.TREE_ALL_REDUCE)
        wide.start()
        wide.describe(np.dtype(np.float16), (1 << 40, 0), ReduceOp.BXOR, 2, 1 << 20)
        log.collective(Kind.ALL_TO_ALL).describe(np.dtype(bool), (), None, -1)

    for log in made.values():
        calls(log)
    python, native = ((tmp_path / f"{writer}.flight").read_bytes() for writer in made)
    assert len(python) == len(native) == HEADER_BYTES + 5 * RECORD_BYTES
    for at in range(HEADER_BYTES, len(python), RECORD_BYTES):
        for start, end in ((0, 112), (136, RECORD_BYTES)):  # between them: made, started, ended
            assert python[at + start : at + end] == native[at + start : at + end]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_ring_keeps_the_newest_and_lets_no_older_call_write_into_them(tmp_path: Path, writer: str) -> None:
    log = _log(tmp_path / "a.flight", writer, capacity=3)
    entries = [log.mark(str(number).encode()) for number in range(5)]
    for entry in entries[:2]:
        entry.start(9)
        entry.describe(np.dtype(np.int8), (9,), None, 9)
        entry.end(True)
    calls = read(tmp_path / "a.flight").calls
    assert [str(call) for call in calls] == ["2", "3", "4"]
    assert {call.state for call in calls} == {CallState.QUEUED}


def test_texts_and_shapes_that_do_not_fit_are_cut(tmp_path: Path) -> None:
    made = Recorder(tmp_path / "a.flight", "h" * 200, 1)
    slot = made.begin(HERE._replace(group="größe".encode() * 40), b"x" * 99, b"y" * 999)
    made.describe(slot, b"float32", tuple(range(12)), b"SUM", -1)
    (call,) = read(tmp_path / "a.flight").calls
    assert call.shape == tuple(range(8))
    assert (len(call.what), len(call.line)) == (24, 144)
    assert call.group.startswith("größegröße")


def test_what_is_no_such_file_is_refused_and_of_a_cut_one_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "text.flight").write_text("hello")
    with pytest.raises(UsageError, match="begins with"):
        read(tmp_path / "text.flight")
    log = _log(tmp_path / "cut.flight", "python")
    for number in range(3):
        _record(log, number)
    os.truncate(tmp_path / "cut.flight", HEADER_BYTES + 2 * RECORD_BYTES + 100)
    found = read(tmp_path / "cut.flight")
    assert [call.sequence for call in found.calls] == [0, 1]
    assert found.damage == "it was cut: 2 of 4 records are there"
    with pytest.raises(UsageError, match="capacity of 0"):
        Recorder(tmp_path / "none.flight", "here", 0)
    with pytest.raises(FileExistsError):  # it may be another's, who has mapped it
        Recorder(tmp_path / "cut.flight", "here", 1)


def test_records_that_make_no_sense_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.flight"
    log = _log(path, "python")
    for number in range(4):
        _record(log, number)
    with open(path, "r+b") as file:
        file.seek(HEADER_BYTES + 8)
        file.write(b"\xff")  # no state
        file.seek(HEADER_BYTES + RECORD_BYTES)
        file.write(struct.pack("<Q", 99))  # a number that belongs elsewhere
        file.seek(HEADER_BYTES + 2 * RECORD_BYTES)
        file.write(struct.pack("<Q", 0))  # killed while the record was filled
    found = read(path)
    assert [call.sequence for call in found.calls] == [3]
    assert found.damage == "2 records make no sense"


def test_a_closed_recorder_writes_no_more_and_leaves_its_file(tmp_path: Path) -> None:
    made = Recorder(tmp_path / "a.flight", "here", 3)
    slot = made.begin(HERE, b"barrier", b"")
    made.close()
    made.end(slot, failed=False)
    assert made.begin(HERE, b"barrier", b"") == 0
    assert [call.state for call in read(tmp_path / "a.flight").calls] == [CallState.QUEUED]


@pytest.mark.parametrize("writer", WRITERS)
def test_many_threads_record_into_one_file(tmp_path: Path, writer: str) -> None:
    log = _log(tmp_path / "a.flight", writer, capacity=4096)

    def calls() -> None:
        for number in range(500):
            _record(log, number)

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(tmp_path / "a.flight")
    assert (found.recorded, len(found.calls), found.damage) == (2000, 2000, "")
    assert sorted(call.sequence for call in found.calls) == sorted(list(range(500)) * 4)
    assert all(call.state == (CallState.FAILED if call.sequence % 2 else CallState.DONE) for call in found.calls)


FRANTIC = """
import sys
from pathlib import Path
import numpy as np
from resilin._base.flight import Recorder
from resilin.distributed.wire import flight_recorder
from resilin.distributed.wire.frames import Kind
from resilin.distributed.wire.reduce_op import ReduceOp
made = Recorder(Path(sys.argv[1]), "here", 64)
log = flight_recorder.PythonLog(made, b"g", 1, 0, 0, 1)
if sys.argv[2] == "native":
    log = flight_recorder.native_log(flight_recorder.native_flight(made), b"g", 1, 0, 0, 1)
number = 0
while True:
    if number == 200:
        print("here", flush=True)
    entry = log.collective(Kind.ALL_REDUCE)
    entry.start(number)
    entry.describe(np.dtype(np.float32), (number, number), ReduceOp.SUM, -1)
    entry.end(False)
    number += 1
"""


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_makes_sense_at_every_moment_and_after_a_kill(tmp_path: Path, writer: str) -> None:
    for attempt in range(2):
        path = tmp_path / f"{attempt}.flight"
        arguments = [sys.executable, "-c", FRANTIC, str(path), writer]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            found = [read(path) for _ in range(40)]
            assert found[-1].alive is None  # "here" is no name of a host
            assert flight_folder.is_held(path)
            process.send_signal(signal.SIGKILL)
        assert not flight_folder.is_held(path)
        for flight in [*found, read(path)]:
            assert flight.damage == ""
            calls = [call for call in flight.calls if call.sequence >= 0]
            numbers = [call.sequence for call in calls]
            assert numbers == sorted(set(numbers))
            assert all(call.shape in ((), (call.sequence, call.sequence)) for call in calls)
            assert all(call.ended >= call.started >= call.made for call in calls if call.state == CallState.DONE)
        assert read(path).recorded > 64
        assert len(read(path).calls) >= 63  # all but the one that was being filled


@contextlib.contextmanager
def _started(count: int, source: str, folder: Path, **variables: str) -> Iterator[list[RankProcess]]:
    ranks = start_ranks(count, source, str(folder), **{"RESILIN_TRACE_DIR": str(folder / "trace"), **variables})
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.finish()


ONE_CALL = """
import numpy as np
from resilin import dist
from resilin.testing.ranks import join_from_environment
group = join_from_environment()
dist.all_reduce(np.ones(5))
dist.new_group([0])
print("done", flush=True)
"""


def _warned(folder: Path, **variables: str) -> str:
    (rank,) = start_ranks(1, ONE_CALL, str(folder), **variables)
    code, out, said = rank.finish()
    assert (code, out) == (0, "done\n")
    return said


def test_a_folder_that_cannot_be_written_is_one_warning_and_no_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = _warned(tmp_path, RESILIN_TRACE_DIR=str(tmp_path / "file" / "trace"))
    assert said.count("collectives are not recorded") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device here that is always full")
def test_a_full_disk_is_an_error_when_the_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(full.fileno(), data, at))
        with pytest.raises(OSError, match="No space left"):
            Recorder(tmp_path / "a.flight", "here", 3)
    assert not (tmp_path / "a.flight").exists()


def test_the_number_of_calls_kept_is_a_variable_and_zero_records_nothing(tmp_path: Path) -> None:
    assert _warned(tmp_path, RESILIN_TRACE_DIR=str(tmp_path / "trace"), RESILIN_TRACE_CALLS="2") == ""
    (path,) = (tmp_path / "trace").iterdir()
    assert len(read(path).calls) == 2
    path.unlink()
    (tmp_path / "rendezvous").unlink(missing_ok=True)
    assert _warned(tmp_path, RESILIN_TRACE_DIR=str(tmp_path / "trace"), RESILIN_TRACE_CALLS="0") == ""
    assert list((tmp_path / "trace").iterdir()) == []
    (rank,) = start_ranks(1, ONE_CALL, str(tmp_path / "trace"), RESILIN_TRACE_CALLS="-3")
    assert "RESILIN_TRACE_CALLS: expected 0 to 1048576, got -3" in rank.finish()[2]


def test_without_a_folder_files_lie_in_one_of_the_users_own(tmp_path: Path) -> None:
    assert _warned(tmp_path, TMPDIR=str(tmp_path), RESILIN_TRACE_DIR="") == ""
    place = tmp_path / f"resilin-flights-{os.geteuid()}"
    assert place.stat().st_mode & 0o777 == 0o700
    (path,) = place.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [call.what for call in read(path).calls] == ["join", "all_reduce", "join"]


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    place = tmp_path / f"resilin-flights-{os.geteuid()}"
    place.mkdir()
    place.chmod(0o777)
    said = _warned(tmp_path, TMPDIR=str(tmp_path), RESILIN_TRACE_DIR="")
    assert said.count("collectives are not recorded") == 1
    assert list(place.iterdir()) == []


def test_the_oldest_files_of_the_dead_are_removed_and_those_of_the_living_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(flight_folder, "KEPT", 2)
    made = [flight_folder.open_in(None, 1, "") for _ in range(5)]
    for age, each in enumerate(made):
        os.utime(each.path, (1000 + age, 1000 + age))
    assert len({each.path for each in made}) == 5  # one process, five names
    for each in made[1:]:
        each.close()  # as its death would
    made.append(flight_folder.open_in(None, 1, ""))
    left = {path.name for path in flight_folder.default().iterdir()}
    assert left == {made[number].path.name for number in (0, 3, 4, 5)}


FORKED = """
import os
import numpy as np
from resilin import dist
from resilin.testing.ranks import join_from_environment
group = join_from_environment()
child = os.fork()
if child == 0:
    try:
        dist.all_reduce(np.ones(5), group=group)
    except Exception:
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
dist.barrier()
"""


def test_a_forked_child_writes_nothing_into_its_parents_file(tmp_path: Path) -> None:
    with _started(1, FORKED, tmp_path) as (rank,):
        assert rank.read_line() == "7"
        rank.finish()
    (path,) = (tmp_path / "trace").iterdir()
    assert [str(call) for call in read(path).calls] == ["join", "barrier #0"]


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
    assert [call.state for call in read(path).calls] == [CallState.DONE, CallState.FAILED, CallState.FAILED]
