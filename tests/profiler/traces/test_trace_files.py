"""Files of traces: read whole, torn, cut, doubled, of nobody; and who is told what."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import shutil
import threading
from pathlib import Path

import pytest

from resilin._base import span_file, trace_ring
from resilin._base.span_file import About, Writer
from resilin._base.trace import SpanKind
from resilin.errors import UsageError
from resilin.profiler.traces import chrome_file, folder, memory_file, merged_file, reports

ABOUT = About(host="elsewhere", boot="b1", rank=3, world_size=4, job="j")


def _memory_file(place, about=ABOUT, spans=("load",)):
    writer = Writer(place, 1 << 16, about)
    ring = trace_ring.Ring(writer.buffer)
    for name in spans:
        ring.end(ring.begin(name, SpanKind.USER))
    writer.close()
    return writer.path


def _chrome(path, rank=0, pid=11, ts=5, **more):
    body = {
        "distributedInfo": {"rank": rank, "world_size": 2},
        "host_name": "h",
        "baseTimeNanoseconds": 10**18,
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": 1, "ts": ts, "dur": 2.5, "args": {}},
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": 1, "args": {"name": "main"}},
        ],
        **more,
    }
    path.write_text(json.dumps(body))
    return path


def test_a_memory_file_says_whose_it_is(tmp_path):
    found = span_file.read(_memory_file(tmp_path))
    assert found.about == ABOUT
    assert found.alive is None  # another host's
    assert [span.name for span in found.recording.spans] == ["load"]


def test_a_memory_file_becomes_a_rank_s_trace(tmp_path):
    trace = memory_file.read(_memory_file(tmp_path))
    assert trace is not None
    assert (trace.rank, trace.world_size, trace.host, trace.clock) == (3, 4, "elsewhere", "boot b1")
    assert [event.name for event in trace.events] == ["load"]
    assert trace.unfinished


def test_a_memory_file_without_spans_is_no_rank(tmp_path):
    assert memory_file.read(_memory_file(tmp_path, spans=())) is None
    with pytest.raises(UsageError, match="no process has recorded a span yet"):
        folder.read([tmp_path])


def test_two_processes_of_one_number_have_two_files(tmp_path):
    first, second = _memory_file(tmp_path), _memory_file(tmp_path)
    assert first != second
    assert first.name.endswith(".spans")


@pytest.mark.parametrize("keep", [0, 100, 4096, 20_000])
def test_a_memory_file_that_was_cut_is_refused_with_its_name(tmp_path, keep):
    path = _memory_file(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=path.name) as told:
        span_file.read(path)
    assert "cut" in str(told.value) or "damaged" in str(told.value)


def test_a_memory_file_in_which_nothing_was_written_yet_is_refused(tmp_path):
    writer = Writer(tmp_path, 1 << 16, ABOUT)
    writer.close()
    with pytest.raises(UsageError, match="ended before it recorded anything"):
        span_file.read(writer.path)


def test_any_damage_of_a_memory_file_is_refused_or_read(tmp_path, turns):
    path = _memory_file(tmp_path, spans=("a", "b", "c"))
    whole = path.read_bytes()
    for turn in range(turns(short=200, full=5_000)):
        data = bytearray(whole)
        data[turn * 37 % (6000 if turn % 2 else len(data))] ^= 1 << turn % 8
        path.write_bytes(data)
        with contextlib.suppress(UsageError):  # any other error fails
            assert len(span_file.read(path).recording.spans) <= 3


def test_a_small_memory_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="at least 65536"):
        Writer(tmp_path, 1000, ABOUT)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        Writer(tmp_path / "file", 1 << 16, ABOUT)


def test_a_chrome_trace_is_read_with_whole_nanoseconds(tmp_path):
    trace = chrome_file.read(_chrome(tmp_path / "a.json", ts=5.001))
    (event,) = trace.events
    assert (event.start_ns - 10**18, event.duration_ns) == (5001, 2500)
    assert (trace.rank, trace.process, trace.clock) == (0, 11, "wall clock of h")
    assert not trace.unfinished


def test_a_chrome_trace_that_is_a_list_is_read(tmp_path):
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"ph": "X", "name": "a", "ts": 1, "dur": 2}]))
    assert chrome_file.read(path).rank == -1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"traceEvents": [{"ph": "X"', "torn"),
        (b"", "torn"),
        (b'{"traceEvents": 5}', "expected a trace with a list"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1}]}', "makes no sense"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": "x"}]}', "makes no sense"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": "4"}]}', "expected a time in microseconds, got '4'"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": NaN}]}', "expected a time in microseconds, got nan"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1e300}]}', "expected a time in microseconds"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": -2}]}', "expected a dur of at least 0"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "tid": [1]}]}', "number or text as tid"),
        (b"\xff\xfe", "expected JSON"),
        (gzip.compress(b'{"traceEvents": []}' * 100)[:-20], "torn"),
        (b"[" * 100_000, "expected JSON"),
    ],
    ids=[
        "torn",
        "empty",
        "no-list",
        "no-name",
        "no-time",
        "text-time",
        "nan",
        "far",
        "negative",
        "thread",
        "no-text",
        "torn-gz",
        "deep",
    ],
)
def test_what_is_no_trace_is_refused_with_its_name(tmp_path, text, said):
    path = tmp_path / "rank7.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=said) as told:
        chrome_file.read(path)
    assert "rank7.json" in str(told.value)


def test_what_cannot_be_read_is_told_and_the_rest_is_used(tmp_path):
    _chrome(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{")
    found = folder.read([tmp_path])
    assert [trace.rank for trace in found.ranks] == [0]
    assert any("b.json" in note and "not read" in note for note in found.notes)
    assert any("no trace of rank 1, of 2" in note for note in found.notes)


def test_a_file_that_speaks_of_a_billion_ranks_costs_nothing(tmp_path):
    _chrome(tmp_path / "a.json", distributedInfo={"rank": 0, "world_size": 10**9})
    with pytest.raises(UsageError, match="rank or world size 1000000000"):
        folder.read([tmp_path])


def test_of_a_million_ranks_without_a_trace_a_few_are_named(tmp_path):
    _chrome(tmp_path / "a.json", distributedInfo={"rank": 0, "world_size": 10**6})
    (note,) = folder.read([tmp_path]).notes
    assert "no trace of rank 1, 2, 3" in note
    assert "and 999987 more, of 1000000" in note


def test_a_small_file_is_read_in_little_memory(tmp_path):
    path = _chrome(tmp_path / "a.json")
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), before[1]))
    try:
        assert chrome_file.read(path).rank == 0
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"expected at most 0 MiB of text.*\(--megabytes\)"):
        chrome_file.read_each(_chrome(tmp_path / "a.json"), 20)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    _chrome(tmp_path / "a.json", distributedInfo={"rank": 0, "world_size": 1})
    os.mkfifo(tmp_path / "b.json")
    assert folder.read([tmp_path]).notes == []


@pytest.mark.parametrize("key", ["Process Group Name", "Generation", "Src Rank", "Tag", "Root rank", "Seq"])
@pytest.mark.parametrize("value", [[1], {}, "x"])
def test_a_collective_that_is_damaged_is_taken_for_another_span(tmp_path, key, value):
    args = {"Collective name": "broadcast", "Process Group Ranks": [0, 1], "Rank": 0, "Seq": 1, key: value}
    event = {"ph": "X", "name": "gloo:broadcast", "tid": 1, "ts": 5, "dur": 2.5, "args": args}
    for rank in range(2):
        _chrome(tmp_path / f"{rank}.json", rank=rank, pid=rank, traceEvents=[event])
    assert reports.why([tmp_path], 0, 0)["hang"]["waits"] == []
    assert len(reports.analyse([tmp_path], 5)["temporal_breakdown"]) == 2


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no traces"):
        folder.read([tmp_path])
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(UsageError, match=r"b\.json"):
        folder.read([tmp_path])


def test_a_copy_of_a_trace_is_left_out(tmp_path):
    _chrome(tmp_path / "a.json")
    shutil.copy(tmp_path / "a.json", tmp_path / "b.json")
    found = folder.read([tmp_path])
    assert len(found.ranks) == 1
    assert any("b.json: left out, a.json is of the same process" in note for note in found.notes)


def test_a_rank_that_began_again_is_there_twice_and_told(tmp_path):
    _chrome(tmp_path / "a.json", rank=1)
    _chrome(tmp_path / "b.json", rank=1, pid=12, ts=100)
    found = folder.read([tmp_path])
    assert [trace.rank for trace in found.ranks] == [1, 1]
    assert any("rank 1 is there twice" in note and "when the first had ended" in note for note in found.notes)


def test_a_trace_that_names_no_rank_gets_a_free_one(tmp_path):
    _chrome(tmp_path / "a.json", rank=0)
    _chrome(tmp_path / "b.json", pid=12, distributedInfo=None)
    found = folder.read([tmp_path])
    assert [trace.rank for trace in found.ranks] == [0, 1]
    assert any("b.json: it does not say which rank" in note for note in found.notes)


def test_a_trace_from_before_there_was_a_group_takes_its_rank_from_a_collective(tmp_path):
    args = {"Collective name": "all_reduce", "Process Group Ranks": [0, 3, 5], "Rank": 2, "Seq": 1}
    event = {"ph": "X", "name": "gloo:all_reduce", "tid": 1, "ts": 5, "dur": 2.5, "args": args}
    trace = chrome_file.read(_chrome(tmp_path / "a.json", distributedInfo=None, traceEvents=[event]))
    assert (trace.rank, trace.world_size) == (5, 3)


def test_a_merged_file_among_the_traces_is_no_rank(made, tmp_path):
    _chrome(tmp_path / "a.json", distributedInfo={"rank": 0, "world_size": 1})
    merged_file.write([made(0).span("load", 0, 10).ready()], tmp_path / "merged.json")
    found = folder.read([tmp_path])
    assert ([trace.source for trace in found.ranks], found.notes) == (["a.json"], [])


def test_a_merged_file_that_is_given_itself_is_all_its_ranks_again(made, tmp_path):
    ranks = (0, 1)
    traces = [
        made(0).span("load", 0, 10).collective(10, 40, 0, ranks).ready(),
        made(1, clock="another").span("load", 5, 30).collective(30, 40, 0, ranks).ready(),
    ]
    merged_file.write(traces, tmp_path / "merged.json")
    found = folder.read([tmp_path / "merged.json"])
    assert found.notes == []
    assert [(one.rank, one.host, one.process, one.source) for one in found.ranks] == [
        (0, "host", 100, "rank0.json"),
        (1, "host", 101, "rank1.json"),
    ]
    assert {one.clock for one in found.ranks} == {"merged in merged.json"}
    for before, after in zip(traces, found.ranks, strict=True):
        assert [(event.name, event.start_ns, event.end_ns) for event in after.events] == [
            (event.name, event.start_ns, event.end_ns) for event in before.events
        ]


@pytest.mark.parametrize("ranks", [[{}], [{"rank": 0}], [{"rank": "x", "pid": 0}], 5, [5]])
def test_a_merged_file_whose_head_makes_no_sense_is_refused(tmp_path, ranks):
    (tmp_path / "merged.json").write_text(json.dumps({"resilin": {"ranks": ranks}, "traceEvents": []}))
    with pytest.raises(UsageError, match=r"merged\.json: expected what merge writes"):
        folder.read([tmp_path / "merged.json"])


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_text_longer_than_what_is_read_is_refused_with_what_to_do(tmp_path, name):
    text = json.dumps({"traceEvents": [{"ph": "X", "name": "a" * (2 << 20), "ts": 1, "dur": 2}]}).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    with pytest.raises(UsageError, match=f"{name}: expected at most 1 MiB of text, got more: record fewer steps"):
        chrome_file.read_each(tmp_path / name, 1 << 20)
    assert len(chrome_file.read_each(tmp_path / name, 3 << 20)) == 1


@pytest.mark.parametrize("wrong", [{"ts": 1e300}, {"ts": "x"}, {"dur": -1e300}, {"args": 5}])
def test_values_that_no_trace_has_are_refused(tmp_path, wrong):
    event = {"ph": "X", "name": "a", "ts": 1, "dur": 2, **wrong}
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [event]}))
    with pytest.raises(UsageError, match="makes no sense"):
        folder.read([tmp_path / "a.json"])


def test_a_thread_may_have_any_name(tmp_path):
    event = {"ph": "X", "name": "a", "ts": 1, "dur": 2, "tid": "loader"}
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [event]}))
    assert list(chrome_file.read(tmp_path / "a.json").by_thread) == ["loader"]


def test_a_rank_beyond_all_worlds_is_refused(tmp_path):
    _chrome(tmp_path / "a.json", rank=10**12)
    with pytest.raises(UsageError, match="makes no sense"):
        folder.read([tmp_path])


def test_a_memory_file_is_read_while_its_ring_goes_round(tmp_path):
    writer = Writer(tmp_path, 1 << 16, ABOUT)
    ring = trace_ring.Ring(writer.buffer)
    ring.end(ring.begin("first", SpanKind.USER, args={"number": -1}))
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            ring.end(ring.begin(f"span {number % 10}", SpanKind.USER, args={"number": number}))
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(30):
            found = span_file.read(writer.path).recording.spans
            assert all(span.end_ns is None or span.start_ns <= span.end_ns for span in found)
            assert all(span.name == "first" or span.name.startswith("span ") for span in found)
    finally:
        stop.set()
        thread.join()
    last = span_file.read(writer.path).recording
    assert last.dropped > 0
    numbers = [span.args["number"] for span in last.spans if span.args]
    assert numbers == sorted(numbers)
