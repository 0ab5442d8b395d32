"""The ring of spans: both writers, what is lost when it is full, and what a reader makes of torn memory."""

import json
import multiprocessing
import os
import random
import signal
import threading
import time

import pytest

import resilin as torch
from resilin._base import trace, trace_ring
from resilin._base.trace import SpanKind
from resilin.core.kernels.loader import native
from resilin.core.machine import span_rings
from resilin.errors import UsageError

KIB = 1024


def in_python(buffer):
    return trace_ring.Ring(buffer)


def in_native(buffer):
    trace_ring.Ring(buffer)  # writes the head
    return native.Recorder(buffer)


WRITERS = [
    pytest.param(in_python, id="python"),
    pytest.param(
        in_native,
        id="native",
        marks=pytest.mark.skipif(native is None, reason="there are no native kernels here"),
    ),
]


@pytest.mark.parametrize("writer", WRITERS)
def test_times_are_those_of_the_monotonic_clock(writer):
    """Also where they are counted by something quicker, which the clock corrects: through some thousand corrections."""
    buffer = bytearray(16 << 20)
    recorder = writer(buffer)
    around = []
    for number in range(40_000):
        before = time.monotonic_ns()
        recorder.instant("now", SpanKind.USER)
        around.append((before, time.monotonic_ns()))
        if number % 100 == 0:
            pause = time.monotonic_ns() + 3_000_000  # longer than between two corrections
            while time.monotonic_ns() < pause:
                pass
    found = [span.start_ns for span in trace_ring.read(buffer).spans]
    assert len(found) == len(around)
    off_ns = max(max(before - at, at - after) for at, (before, after) in zip(found, around, strict=True))
    assert off_ns < 1000  # 20 us is what clocks of ranks may differ by
    assert found == sorted(found)


@pytest.mark.skipif(native is None, reason="there are no native kernels here")
def test_inputs_that_come_again_are_kept_once_and_anew_before_they_go():
    x, buffer, count = torch.ones(3, 4), bytearray(1 << 20), 30_000
    recorder = span_rings.make_recorder(buffer, record_shapes=True)
    trace.record_with(recorder)
    try:
        torch.relu(x)
        first = argument_bytes(buffer)
        for _ in range(100):
            torch.relu(x)
        assert argument_bytes(buffer) == first
        for number in range(count):  # what is always another one fills the ring of arguments some times
            torch.clamp(x, 0.0, float(number))
            torch.relu(x)
    finally:
        trace.record_with(None)
    recording = span_rings.read(buffer)
    kept = [span for span in recording.spans if span.name == "aten::relu"]
    assert len(kept) > 1000
    assert all(span.args == {"inputs": [trace_ring.TensorInput((3, 4), (4, 1), "f4")]} for span in kept)
    assert recording.lost_arguments == 0
    assert recording.spans == trace_ring.read(buffer).spans


def argument_bytes(buffer):
    """How many bytes of arguments were ever written."""
    return trace_ring._WRITTEN.unpack_from(buffer, trace_ring._WRITTEN_AT)[1]


@pytest.mark.skipif(native is None, reason="there are no native kernels here")
def test_a_forked_child_reads_the_clock_whoever_else_did_when_it_was_made():
    recorder = in_native(bytearray(1 << 20))
    stop = threading.Event()

    def read():
        while not stop.is_set():
            recorder.instant("now", SpanKind.USER)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if not child:
                deadline = time.monotonic_ns() + 5_000_000
                while time.monotonic_ns() < deadline:
                    recorder.instant("now", SpanKind.USER)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("writer", WRITERS)
def test_spans_come_back_as_they_were_recorded(writer):
    buffer = bytearray(256 * KIB)
    recorder = writer(buffer)
    outer = recorder.begin("outer", SpanKind.USER, args={"step": 3})
    inner = recorder.begin("inner", SpanKind.OP, 7)
    recorder.end(inner)
    recorder.instant("[memory]", SpanKind.MEMORY, 4096, -64)
    recorder.end(outer)
    recorder.complete("past", SpanKind.RPC, 10, 20, args={"peer": "w1"})
    still = recorder.begin("still open", SpanKind.COLLECTIVE, args={"Seq": 4})
    found = {span.name: span for span in trace_ring.read(buffer).spans}
    assert found["outer"].args == {"step": 3}
    assert found["outer"].start_ns <= found["inner"].start_ns <= found["inner"].end_ns <= found["outer"].end_ns
    assert (found["inner"].link, found["inner"].kind) == (7, SpanKind.OP)
    assert (found["[memory]"].link, found["[memory]"].value, found["[memory]"].instant) == (4096, -64, True)
    assert (found["past"].start_ns, found["past"].end_ns, found["past"].args) == (10, 20, {"peer": "w1"})
    assert (found["still open"].end_ns, found["still open"].args) == (None, {"Seq": 4})
    recorder.end(still, {"Seq": 4, "Failed": True})
    assert trace_ring.read(buffer).spans[-1].args == {"Seq": 4, "Failed": True}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_newest_stay_and_how_many_went_is_known(writer):
    buffer = bytearray(64 * KIB)
    recorder = writer(buffer)
    records = trace_ring.sizes(len(buffer))[0]
    outer = recorder.begin("outer", SpanKind.USER, args={"is": "kept"})
    for i in range(3 * records):
        recorder.end(recorder.begin(f"span {i % 5}", SpanKind.USER, args={"i": i}))
    recorder.end(outer)
    recording = trace_ring.read(buffer)
    assert recording.dropped == 2 * records + 2
    assert len(recording.spans) == records
    assert recording.spans[0].name == "outer"  # the others took its place while it was open: it is there again
    assert recording.spans[0].args == {"is": "kept"} or recording.spans[0].args is None
    assert [span.args["i"] for span in recording.spans[-50:]] == list(range(3 * records - 50, 3 * records))


@pytest.mark.parametrize("writer", WRITERS)
def test_threads_are_named_even_when_their_first_spans_have_gone(writer):
    buffer = bytearray(64 * KIB)
    recorder = writer(buffer)

    def work():
        for _ in range(5000):
            recorder.end(recorder.begin("work", SpanKind.USER))

    threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recording = trace_ring.read(buffer)
    assert set(recording.threads.values()) == {"worker 0", "worker 1", "worker 2"}
    assert {span.thread for span in recording.spans} <= set(recording.threads)


def _on_another_thread(call, *args):
    thread = threading.Thread(target=call, args=args, name="closes")
    thread.start()
    thread.join()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_span_stays_with_the_thread_that_opened_it_whoever_closes_it(writer):
    buffer = bytearray(64 * KIB)
    recorder = writer(buffer)
    plain, changed, overtaken, both = (recorder.begin(name, SpanKind.RPC) for name in ("a", "b", "c", "d"))
    _on_another_thread(recorder.end, plain)
    _on_another_thread(recorder.end, changed, {"Failed": True})
    own = threading.get_native_id()
    assert {span.thread for span in trace_ring.read(buffer).spans} == {own}
    assert trace_ring.read(buffer).spans[1].args == {"Failed": True}
    for _ in range(trace_ring.sizes(len(buffer))[0] + 1):
        recorder.instant("goes round", SpanKind.USER)
    _on_another_thread(recorder.end, overtaken)
    _on_another_thread(recorder.end, both, {"Failed": True})
    found = {span.name: span for span in trace_ring.read(buffer).spans}
    assert (found["c"].thread, found["d"].thread, found["d"].args) == (own, own, {"Failed": True})


@pytest.mark.parametrize("writer", WRITERS)
def test_names_that_find_no_room_are_counted_and_arguments_that_json_cannot_say_are_left_out(writer):
    buffer = bytearray(64 * KIB)
    recorder = writer(buffer)
    for i in range(2000):
        recorder.end(recorder.begin(f"name {i}", SpanKind.USER))
    recording = trace_ring.read(buffer)
    assert recording.lost_names > 0
    assert recording.spans[-1].name == "(unnamed)"
    circle = {}
    circle["itself"] = circle
    recorder.end(recorder.begin("name 0", SpanKind.USER, args=circle))
    recorder.end(recorder.begin("name 1", SpanKind.USER, args={"object": object}))
    assert [span.args for span in trace_ring.read(buffer).spans[-2:]] == [None, {"object": "<class 'object'>"}]


def test_what_is_no_buffer_is_refused():
    with pytest.raises(UsageError, match="begins with RSLSPAN1"):
        trace_ring.read(b"")
    with pytest.raises(UsageError, match="begins with RSLSPAN1"):
        trace_ring.read(bytes(8192))
    with pytest.raises(UsageError, match="at least 65536 bytes, got 100"):
        trace_ring.Ring(bytearray(100))
    buffer = bytearray(64 * KIB)
    trace_ring.Ring(buffer)
    with pytest.raises(UsageError, match="more than the 10000 bytes"):
        trace_ring.read(bytes(buffer[:10000]))


def test_torn_and_scrambled_memory_gives_fewer_spans_but_no_error():
    buffer = bytearray(64 * KIB)
    recorder = trace_ring.Ring(buffer)
    for i in range(500):
        recorder.end(recorder.begin(f"span {i % 9}", SpanKind.USER, args={"i": i}))
    random_ = random.Random(1)
    for _ in range(200):
        torn = bytearray(buffer)
        for _ in range(40):
            torn[random_.randrange(trace_ring.HEAD_BYTES, len(torn))] = random_.randrange(256)
        assert len(trace_ring.read(torn).spans) <= 500


def _dies(path, ready):
    import mmap

    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    recorder = in_native(memory) if native is not None else in_python(memory)
    recorder.end(recorder.begin("done", SpanKind.USER))
    recorder.begin("in the middle of", SpanKind.COLLECTIVE, args={"Seq": 12, "Dst Rank": 3})
    ready.set()
    threading.Event().wait(60)


def test_the_last_spans_of_a_process_that_is_killed_are_in_its_file(tmp_path):
    path = tmp_path / "spans"
    path.write_bytes(bytes(64 * KIB))
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_dies, args=(path, ready))
    process.start()
    assert ready.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    done, last = trace_ring.read(path.read_bytes()).spans
    assert done.name == "done"
    assert done.end_ns is not None
    assert (last.name, last.end_ns, last.args) == ("in the middle of", None, {"Seq": 12, "Dst Rank": 3})


def test_a_span_is_free_when_nobody_records_and_goes_to_who_records_at_its_start():
    assert trace.recorder is None
    buffer = bytearray(64 * KIB)
    with trace.span("before"):
        trace.record_with(trace_ring.Ring(buffer))
    try:
        with (
            trace.span("inside", SpanKind.CHECKPOINT, folder="x"),
            pytest.raises(ZeroDivisionError),
            trace.span("raises"),
        ):
            1 / 0  # noqa: B018
    finally:
        assert trace.record_with(None) is not None
    with trace.span("after"):
        pass
    recording = trace_ring.read(buffer)
    assert [(span.name, span.kind, span.args) for span in recording.spans] == [
        ("inside", SpanKind.CHECKPOINT, {"folder": "x"}),
        ("raises", SpanKind.USER, None),
    ]
    json.dumps([span.args for span in recording.spans])
