"""The native reader of rings finds what the reference finds: in whole, live and torn memory."""

import random
import threading

import pytest

import resilin as torch
from resilin._base import trace, trace_ring
from resilin._base.trace import SpanKind
from resilin.core.kernels.loader import native
from resilin.core.machine import span_rings
from resilin.errors import UsageError

pytestmark = pytest.mark.skipif(native is None, reason="there are no native kernels here")
KINDS = [kind for kind in SpanKind if kind is not SpanKind.MEMORY]


def _same(buffer):
    """What both readers find; repr, because a torn number may be one that is unlike itself."""
    reference, quick = trace_ring.read(buffer), span_rings.read(buffer)
    assert repr(quick) == repr(reference)
    return quick


def _argument(random_, depth=0):
    choices = [None, True, False, -3, 0, 2.5, -0.0, 1e300, "text", "ünïcode", float("inf"), 1 << 70, -(1 << 60)]
    choices += [999_999_999_999_999_999, 'a "quoted" \\ one\n', "x" * 60, "\x7f", "", {}, {"k": {"": [{}]}}]
    if depth < 3 and random_.random() < 0.3:
        return [_argument(random_, depth + 1) for _ in range(random_.randrange(4))]
    return random_.choice(choices)


def _filled(seed, nbytes=64 << 10):
    """A ring in which spans were begun, ended, forgotten and overtaken, by both writers' calls and by operations."""
    random_ = random.Random(seed)
    buffer = bytearray(nbytes)
    trace_ring.Ring(buffer)
    recorder = native.Recorder(buffer, record_shapes=True, profile_memory=True)
    open_ = []
    for _ in range(random_.randrange(1, 1500)):
        name = f"name {random_.randrange(60)}" if random_.random() < 0.9 else "日本" * random_.randrange(9)
        args = {"a": _argument(random_), "b": _argument(random_)} if random_.random() < 0.3 else None
        what, kind, link = random_.randrange(4), random_.choice(KINDS), random_.randrange(-1, 1 << 40)
        if what == 0:
            open_.append(recorder.begin(name, kind, link, args))
        elif what == 1 and open_:
            recorder.end(open_.pop(random_.randrange(len(open_))), args)
        elif what == 2:
            start = random_.randrange(-5, 1 << 50)
            recorder.complete(name, kind, start, start + random_.randrange(2), link, args)
        else:
            recorder.instant(name, kind, link, random_.randrange(-(1 << 60), 1 << 60), args)
    trace.record_with(recorder)
    try:
        x = torch.ones(2, 3, requires_grad=True)
        y = torch.cat([x + 1.5, x * True], dim=0).reshape(3, -1)
        torch.einsum("ij,kj->ik", y, y).to(torch.float64).sum().backward()
    finally:
        trace.record_with(None)
    return buffer


@pytest.mark.parametrize("seed", range(12))
def test_it_reads_what_the_reference_reads(seed):
    found = _same(_filled(seed))
    assert found.spans
    shapes = [span.args["inputs"] for span in found.spans if span.kind is SpanKind.OP and "inputs" in (span.args or {})]
    assert any(isinstance(one, trace_ring.TensorInput) for inputs in shapes for one in inputs)


def test_it_reads_from_a_number_on():
    buffer = _filled(3)
    memory = memoryview(buffer)
    written = trace_ring.written(buffer)
    for first in (0, written - 20, written, written + 5):
        spans, lost = span_rings.spans_in(buffer, first)
        assert repr((spans, lost)) == repr(trace_ring.spans_in(memory, first))
        assert all(span.number >= first for span in spans)
    assert span_rings.spans_in(buffer, written)[0] == []


def test_it_reads_the_spans_of_one_thread():
    buffer = _filled(5)
    recorder = native.Recorder(buffer)  # goes on in the same ring
    other = threading.Thread(target=lambda: recorder.end(recorder.begin("of the other", SpanKind.USER)))
    other.start()
    other.join()
    recorder.end(recorder.begin("of this one", SpanKind.USER))
    theirs = span_rings.spans_in(buffer, 0, other.native_id)
    assert repr(theirs) == repr(trace_ring.spans_in(memoryview(buffer), 0, other.native_id))
    assert [span.name for span in theirs[0]] == ["of the other"]


@pytest.mark.parametrize("seed", range(6))
def test_it_reads_torn_and_scrambled_memory_as_the_reference_does(seed):
    buffer, random_ = _filled(seed), random.Random(seed)
    written = min(trace_ring.written(buffer), trace_ring.sizes(len(buffer))[0])
    for _ in range(30):
        torn = bytearray(buffer)
        for _ in range(60):
            torn[random_.randrange(trace_ring.HEAD_BYTES, len(torn))] = random_.randrange(256)
        for _ in range(30):  # records are few beside all else
            torn[trace_ring.HEAD_BYTES + random_.randrange(written * trace_ring.RECORD_BYTES)] = random_.randrange(256)
        _same(bytes(torn))


def test_what_is_no_ring_is_refused():
    buffer = _filled(1)
    for cut in (0, 100, trace_ring.HEAD_BYTES, len(buffer) - 1):
        with pytest.raises(UsageError):
            span_rings.read(bytes(buffer[:cut]))
        with pytest.raises(ValueError, match="trace buffer"):
            native.spans_in(bytes(buffer[:cut]), 0, 0, trace_ring.Span, {}, trace_ring.TensorInput, None)
    for place in (8, 16, 24):  # sizes in the head
        wrong = bytearray(buffer)
        wrong[place : place + 8] = b"\xff" * 8
        with pytest.raises(UsageError, match="speaks of more"):
            span_rings.read(wrong)
        with pytest.raises(ValueError, match="speaks of more"):
            native.spans_in(wrong, 0, 0, trace_ring.Span, {}, trace_ring.TensorInput, None)
