"""Traces have PyTorch's form, are whole, and nest exactly in any reader's arithmetic."""

from __future__ import annotations

import errno
import gzip
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilin._base.trace import SpanKind
from resilin._base.trace_ring import Recording, Span, TensorInput
from resilin.profiler import chrome_trace
from resilin.profiler.chrome_trace import About
from resilin.profiler.recorded import Recorded

X = TensorInput((2, 3), (3, 1), "f4")


def written(recorded, tmp_path, about=None, name="trace.json"):
    path = tmp_path / name
    chrome_trace.write(recorded, path, about or About("ID", {}))
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if name.endswith(".gz") else data)


def named(trace, name, letter="X"):
    return next(event for event in trace["traceEvents"] if event["name"] == name and event["ph"] == letter)


@pytest.fixture
def step(made):
    """A step of training: a region, an operation in it, its node of backward on another thread, memory."""
    made.span("ProfilerStep#3", 0, 900, SpanKind.STEP)
    made.span("nn.Module: Linear_2", 5, 400, SpanKind.MODULE)
    made.span("train.py(7): step", 8, 390, SpanKind.PYTHON)
    made.span("aten::addmm", 10, 300, link=5, inputs=[X, [X, X], 2, 0.5, True, None, [1, 2], "mean"])
    made.span("AddmmBackward0", 400, 600, SpanKind.BACKWARD, thread=2, link=5)
    made.span("gloo:all_reduce", 350, 500, SpanKind.COLLECTIVE, thread=2, **{"Group size": 2, "Seq": 9})
    made.memory(20, 64, address=4096).memory(500, -64, address=4096, thread=2)
    return made


def test_the_head_says_what_pytorchs_says(step, tmp_path, pytorch):
    about = About(
        "ID", dict.fromkeys(("with_stack", "profile_memory", "record_shapes", "with_modules", "with_flops"), "1")
    )
    trace = written(step.recorded(), tmp_path, about)
    expected = pytorch["trace"]["head"]
    assert {key: type(trace[key]).__name__ for key in expected} == expected
    assert set(trace) - set(expected) == {"resilin", "traceEvents"}
    assert trace["trace_id"] == "ID"
    assert trace["traceName"].endswith("trace.json")
    assert trace["resilin"]["dropped"] == 0


def test_times_count_from_the_start_of_pytorchs_quarter_of_a_year(step, tmp_path):
    trace = written(step.recorded(), tmp_path)
    assert trace["baseTimeNanoseconds"] == 1_700_000_000 // 7889238 * 7889238 * 10**9
    start = named(trace, "aten::addmm")["ts"] * 1000 + trace["baseTimeNanoseconds"]
    assert start == pytest.approx(1_700_000_000 * 10**9 + 10_000, abs=1000)


def test_events_have_the_keys_and_arguments_of_pytorchs(step, tmp_path, pytorch):
    trace = written(step.recorded(), tmp_path)
    for form, expected in pytorch["trace"]["events"].items():
        category, letter, name = form.split(" ", 2)
        found = [
            event
            for event in trace["traceEvents"]
            if event.get("cat", "") == category and event["ph"] == letter and (event["name"] == name or not name)
        ]
        assert found, form
        assert {key for event in found for key in event} == set(expected["keys"]), form
        names = {key for event in found for key in event.get("args", ())} - {"Group size", "Seq"}
        assert names == set(expected["args"]), form


def test_inputs_are_said_in_pytorchs_words(step, tmp_path):
    args = named(written(step.recorded(), tmp_path), "aten::addmm")["args"]
    assert args["Input Dims"] == [[2, 3], [[2, 3], [2, 3]], [], [], [], [], [], []]
    assert args["Input Strides"] == [[3, 1], [[3, 1], [3, 1]], [], [], [], [], [], []]
    assert args["Input type"] == ["float", "TensorList", "Scalar", "Scalar", "Scalar", "", "ScalarList", ""]
    assert args["Concrete Inputs"] == ["", "", "2", "0.5", "True", "", "[1, 2]", "mean"]
    assert args["Sequence number"] == 5


def test_a_collective_keeps_its_arguments(step, tmp_path):
    event = named(written(step.recorded(), tmp_path), "gloo:all_reduce")
    assert event["cat"] == "user_annotation"
    assert (event["args"]["Group size"], event["args"]["Seq"]) == (2, 9)


def test_an_arrow_leads_from_an_operation_to_its_node_of_backward(step, tmp_path):
    trace = written(step.recorded(), tmp_path)
    start, end = named(trace, "fwdbwd", "s"), named(trace, "fwdbwd", "f")
    assert start["id"] == end["id"]
    assert (start["ts"], start["tid"]) == (named(trace, "aten::addmm")["ts"], 1)
    assert (end["ts"], end["tid"], end["bp"]) == (named(trace, "AddmmBackward0")["ts"], 2, "e")
    assert named(trace, "AddmmBackward0")["args"]["Fwd thread id"] == 1


def test_memory_is_summed_up(step, tmp_path):
    moments = [event for event in written(step.recorded(), tmp_path)["traceEvents"] if event["name"] == "[memory]"]
    assert [(event["args"]["Bytes"], event["args"]["Total Allocated"]) for event in moments] == [(64, 64), (-64, 0)]
    assert {event["args"]["Addr"] for event in moments} == {4096}


def test_threads_have_names(step, tmp_path):
    trace = written(step.recorded(), tmp_path)
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert names == {1: "thread 1 (MainThread)", 2: "thread 2 (backward)", 2001: "thread 2 (backward), beside it 1"}


def test_what_overlaps_lies_beside_its_thread(made, tmp_path):
    made.span("gloo:all_reduce", 0, 100, SpanKind.COLLECTIVE).span("aten::mm", 50, 150).span("aten::t", 60, 70)
    trace = written(made.recorded(), tmp_path)
    assert [named(trace, name)["tid"] for name in ("gloo:all_reduce", "aten::mm", "aten::t")] == [1001, 1, 1]


def test_what_has_not_ended_ends_with_the_recording_and_says_so(made, tmp_path):
    made.span("open", 100, None, SpanKind.USER).span("late", 200, 1200, SpanKind.USER, thread=2).span(
        "over", 100, 200, thread=3
    )
    trace = written(made.recorded(stop=1000), tmp_path)
    assert named(trace, "open")["dur"] == 900
    assert named(trace, "late")["dur"] == 800
    assert [named(trace, name)["args"].get("finished") for name in ("open", "late", "over")] == [False, False, None]


def test_a_rank_is_found_by_the_pattern_that_other_tools_use(made, tmp_path):
    info = json.dumps({"backend": "gloo", "rank": 3, "world_size": 4})
    path = tmp_path / "trace.json"
    chrome_trace.write(made.span("aten::mm", 0, 1).recorded(), path, About("ID", {"distributedInfo": info}))
    assert re.search(r'"rank":\s+(\d+)', path.read_text())[1] == "3"
    assert json.loads(path.read_text())["distributedInfo"]["world_size"] == 4


def test_a_compressed_trace_is_the_same(step, tmp_path):
    plain, packed = written(step.recorded(), tmp_path), written(step.recorded(), tmp_path, name="trace.json.gz")
    assert packed["traceEvents"] == plain["traceEvents"]


def test_names_of_any_letters_are_written(made, tmp_path):
    name = 'a "quoted"\n\\ name, ä 漢 \x00'
    assert named(written(made.span(name, 0, 1, SpanKind.USER).recorded(), tmp_path), name)


def test_nothing_recorded_is_a_whole_trace(made, tmp_path):
    trace = written(made.recorded(), tmp_path)
    assert [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"] == ["PyTorch Profiler (0)"]


def test_a_full_disk_leaves_the_old_file_and_no_other(made, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("the one before")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("resilin.core.whole_file.os.fsync", full)
    with pytest.raises(OSError, match=r"No space left.*trace\.json"):
        chrome_trace.write(made.recorded(), path, About())
    assert path.read_text() == "the one before"
    assert [one.name for one in tmp_path.iterdir()] == ["trace.json"]


def test_a_missing_folder_is_named(made, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        chrome_trace.write(made.recorded(), tmp_path / "not there" / "trace.json", About())


TIMES = st.integers(0, 10**7)


@given(st.integers(10**9, 10**15), st.lists(st.tuples(TIMES, TIMES, st.booleans()), max_size=30))
def test_children_end_within_their_parents_as_readers_add_up(shift_ns, times):
    spans = [
        Span(
            number,
            f"{number}",
            SpanKind.COLLECTIVE if loose else SpanKind.OP,
            min(a, b),
            max(a, b),
            1,
            -1,
            0,
            None,
            False,
        )
        for number, (a, b, loose) in enumerate(times)
    ]
    recorded = Recorded(Recording(spans, {}, 0, 0, 0, 0, shift_ns, 1), 0, 10**7)
    text = "".join(chrome_trace._texts(recorded, "trace.json", About()))
    events = [event for event in json.loads(text)["traceEvents"] if event.get("cat") in ("cpu_op", "user_annotation")]
    assert len(events) == len(spans)
    lanes = {}
    for event in events:
        lanes.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for lane in lanes.values():
        around = []
        for start, end in lane:
            while around and around[-1] <= start and around[-1] < end:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)
