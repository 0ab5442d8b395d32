"""Reads a rank's trace from a file for chrome://tracing: ours, or PyTorch's."""

from __future__ import annotations

import gzip
import json
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

from resilin.errors import UsageError
from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent

_MOST_BYTES = 8 << 30  # of the text
_PART_BYTES = 16 << 20
_MOST_US = 1 << 60  # 36,000 years


def read(path: Path) -> RankTrace | None:
    """Read one trace; None: it is one of several ranks, which `merge` wrote.

    UsageError says what is wrong with the file; OSError when it cannot be read.
    """
    body = _body(path)
    events = body.get("traceEvents") if isinstance(body, dict) else body
    about = body if isinstance(body, dict) else {}
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise UsageError(f"{path}: expected a trace with a list of objects at traceEvents")
    if isinstance(about.get("resilin"), dict) and "ranks" in about["resilin"]:
        return None
    try:
        return _trace(path, about, events)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UsageError(
            f"{path}: expected a trace, an event of it makes no sense ({type(error).__name__}: {error})"
        ) from error


def _body(path: Path) -> Any:
    with open(path, "rb") as file:
        start = file.read(2)
        file.seek(0)
        try:
            if start == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=file) as packed:
                    text = _all(packed)
            else:
                text = _all(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{path}: its compressed data ends or breaks early ({error}): the file is torn") from None
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{path}: expected a trace of at most {_MOST_BYTES} bytes, got more: record fewer steps")
    try:
        return json.loads(text, parse_float=Decimal)  # microseconds with nanoseconds behind the point, exactly
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: expected JSON: {error}; a file that is torn ends like this") from None


def _all(file: BinaryIO | gzip.GzipFile) -> bytearray:
    """What is in a file, up to a bit more than a trace may have; in parts: memory is taken for as much as is asked."""
    text = bytearray()
    while len(text) <= _MOST_BYTES and (part := file.read(_PART_BYTES)):
        text += part
    return text


def _trace(path: Path, about: dict[str, Any], given: list[dict[str, Any]]) -> RankTrace:
    own: dict[str, Any] = about.get("resilin") or {}
    world: dict[str, Any] = about.get("distributedInfo") or {}
    host = str(about.get("host_name") or "")
    to_wall_ns = 0
    clock = f"wall clock of {host or path.name}"
    if own.get("boot"):  # then its times become those of the machine's monotonic clock
        clock = f"boot {own['boot']}"
        to_wall_ns = int(own["wall_minus_monotonic_ns"])
    shift_ns = int(about.get("baseTimeNanoseconds") or 0) - to_wall_ns
    events, others = [], []
    start_ns = stop_ns = None
    for one in given:
        if one.get("ph") == "X" and one.get("cat") == "Trace":
            start_ns, stop_ns = _ns(one["ts"]) + shift_ns, _ns(one["ts"]) + _ns(one.get("dur", 0)) + shift_ns
        elif one.get("ph") == "X":
            args = one.get("args") or {}
            start, length, thread = _ns(one["ts"]) + shift_ns, _ns(one.get("dur", 0)), one.get("tid", 0)
            if length < 0 or isinstance(thread, (list, dict)):
                raise ValueError(f"expected a dur of at least 0 and a number or text as tid, got {length}, {thread!r}")
            fields = (str(one["name"]), str(one.get("cat", "")), thread, start, start + length)
            events.append(TraceEvent(*fields, args, args.get("finished") is False))
        else:
            if "ts" in one:
                one["ts"] = _ns(one["ts"]) + shift_ns
            others.append(one)
    if start_ns is None or stop_ns is None:
        start_ns = min((event.start_ns for event in events), default=0)
        stop_ns = max((event.end_ns for event in events), default=0)
    found = RankTrace(
        path.name, int(world.get("rank", -1)), host, _process(given), clock, events, others, start_ns, stop_ns,
        to_wall_ns, int(world.get("world_size", -1)), dropped=int(own.get("dropped", 0)),
    )  # fmt: skip
    found.sort()
    if found.rank < 0:  # recorded from before there was a group
        found.learn_rank()
    return found


def _ns(microseconds: Any) -> int:
    if isinstance(microseconds, (int, Decimal)) and -_MOST_US < microseconds < _MOST_US:
        return int(microseconds * 1000)
    raise ValueError(f"expected a time in microseconds, got {microseconds!r:.40}")


def _process(given: list[dict[str, Any]]) -> int:
    return next((one["pid"] for one in given if one.get("ph") == "X" and isinstance(one.get("pid"), int)), 0)
