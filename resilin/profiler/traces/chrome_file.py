"""Reads the trace of a rank, or of several that were merged, from a file for chrome://tracing: ours, or PyTorch's."""

from __future__ import annotations

import gzip
import json
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

from resilin.errors import UsageError
from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent

MOST_BYTES = 8 << 30
"""Of the text of one file."""
_PART_BYTES = 16 << 20
_LATEST_US = 1 << 52  # more than a century
_MOST_RANKS = 1 << 20


def read(path: Path) -> RankTrace | None:
    """Read one trace; None: it is one of several ranks, which `merge` wrote.

    UsageError says what is wrong with the file; OSError when it cannot be read.
    """
    found = read_each(path, merged=False)
    return found[0] if found else None


def read_each(path: Path, most_bytes: int = MOST_BYTES, *, merged: bool = True) -> list[RankTrace]:
    """Read a trace, or of a file that `merge` wrote those of all ranks if `merged`, else none. Errors are `read`'s.

    most_bytes: of text. A longer one is refused.
    """
    body = _body(path, most_bytes)
    events = body.get("traceEvents") if isinstance(body, dict) else body
    about = body if isinstance(body, dict) else {}
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise UsageError(f"{path}: expected a trace with a list of objects at traceEvents")
    if isinstance(about.get("resilin"), dict) and "ranks" in about["resilin"]:
        return _each(path, about, events) if merged else []
    try:
        return [_trace(path, about, events)]
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UsageError(
            f"{path}: expected a trace, an event of it makes no sense ({type(error).__name__}: {error})"
        ) from error


def _each(path: Path, about: dict[str, Any], events: list[dict[str, Any]]) -> list[RankTrace]:
    """The traces of a merged file: each process number in it is one, and their times are of one clock."""
    by_number: dict[Any, list[dict[str, Any]]] = {}
    try:
        for event in events:
            by_number.setdefault(event.get("pid"), []).append(event)
        found = []
        for one in about["resilin"]["ranks"]:
            world = {
                "rank": int(one["rank"]),
                "world_size": 1 + max(int(each["rank"]) for each in about["resilin"]["ranks"]),
            }
            head = {
                **about,
                "distributedInfo": world,
                "host_name": one["host"],
                "resilin": {"owners": one.get("owners")},
            }
            trace = _trace(path, head, by_number.get(one["pid"], []))
            trace.source, trace.process, trace.clock = str(one["file"]), int(one["process"]), f"merged in {path.name}"
            found.append(trace)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UsageError(f"{path}: expected what merge writes ({type(error).__name__}: {error})") from error
    return found


def _body(path: Path, most_bytes: int) -> Any:
    with open(path, "rb") as file:
        start = file.read(2)
        file.seek(0)
        try:
            if start == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=file) as packed:
                    text = _all(packed, most_bytes)
            else:
                text = _all(file, most_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{path}: its compressed data ends or breaks early ({error}): the file is torn") from None
    if len(text) > most_bytes:
        allow = "" if most_bytes == MOST_BYTES else ", or allow more (--megabytes)"
        raise UsageError(
            f"{path}: expected at most {most_bytes >> 20} MiB of text, got more: record fewer steps (`active` of a "
            f"schedule){allow}"
        )
    try:
        return json.loads(text, parse_float=Decimal)  # microseconds with nanoseconds behind the point, exactly
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: expected JSON: {error}; a file that is torn ends like this") from None


def _all(file: BinaryIO | gzip.GzipFile, most_bytes: int) -> bytearray:
    """What is in a file, up to a bit more than `most_bytes`; in parts: memory is taken for as much as is asked."""
    text = bytearray()
    while len(text) <= most_bytes and (part := file.read(_PART_BYTES)):
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
            if args.get("is_remote"):  # another rank's, whose own trace has it
                continue
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
        path.name, _of_world(world.get("rank", -1)), host, _process(given), clock, events, others, start_ns, stop_ns,
        to_wall_ns, _of_world(world.get("world_size", -1)), dropped=int(own.get("dropped", 0)),
        owners=[(int(at), int(size), int(kind)) for at, size, kind in own.get("owners") or ()],
    )  # fmt: skip
    found.sort()
    if found.rank < 0:  # recorded from before there was a group
        found.learn_rank()
    return found


def _ns(microseconds: Any) -> int:
    if isinstance(microseconds, (int, Decimal)) and -_LATEST_US < microseconds < _LATEST_US:
        return int(microseconds * 1000)
    raise ValueError(f"expected a time in microseconds, got {microseconds!r:.40}")


def _of_world(value: Any) -> int:
    """A rank, or how many there are."""
    number = int(value)
    if not -1 <= number <= _MOST_RANKS:
        raise ValueError(f"rank or world size {number}")
    return number


def _process(given: list[dict[str, Any]]) -> int:
    return next((one["pid"] for one in given if one.get("ph") == "X" and isinstance(one.get("pid"), int)), 0)
