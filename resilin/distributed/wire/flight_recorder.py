"""Record which collectives this process made, and where they stand, in the flight recorder of `_base.flight`.

Always on: in RESILIN_TRACE_DIR, which `elastic-run` sets for its workers, else in the user's folder of
`_base.flight_folder`; `resilin trace` reads both. RESILIN_TRACE_CALLS is the number of calls kept, 0 for none. A folder
that cannot be written is a warning, and nothing is recorded.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

import numpy as np

from resilin._base import env, flight_folder, log
from resilin._base.flight import MOST_CALLS, Recorder
from resilin._base.flight_record import GROUP_BYTES, JOIN, LINE_BYTES, Place, sealed
from resilin.distributed.wire import loader
from resilin.distributed.wire.frames import Kind
from resilin.distributed.wire.reduce_op import DTYPE_CODES, Array, ReduceOp
from resilin.errors import UsageError

CALLS = 2048  # kept by default: 0.9 MB a process

_LOG = logging.getLogger(__name__)
_MOST_LINES = 4096
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_KINDS = {kind: kind.name.lower().encode() for kind in Kind}
_OPS = {op: op.name.encode() for op in ReduceOp}
_DTYPES = {dtype: str(dtype).encode() for dtype in DTYPE_CODES}

_lock = threading.Lock()
_opened: tuple[Recorder, Any] | None = None  # of this process, and its native writer or None; guarded by _lock
_failed = False  # to open it; guarded by _lock
_inside: dict[CodeType, bool] = {}  # whether a function is the library's own
_lines: dict[tuple[CodeType, int], bytes] = {}


class FlightEntry(Protocol):
    """One recorded call."""

    def start(self, sequence: int = -1) -> None:
        """It runs, as number `sequence` of its group."""

    def describe(
        self,
        dtype: np.dtype[np.generic] | None,
        shape: tuple[int, ...],
        op: ReduceOp | None,
        root: int,
        shards: int = 0,
    ) -> None:
        """Note what it carries (None: nothing that has a dtype), of which the others are told now.

        Of a call made of others the first to say counts. UsageError for what no reader would believe.
        """

    def end(self, failed: bool) -> None:
        """It is over."""


class GroupLog(Protocol):
    """The calls of one rank of one group."""

    def collective(self, kind: Kind) -> FlightEntry:
        """A collective was called, by the nearest function outside this library."""

    def message(self, what: bytes, array: Array, peer: int, tag: int = 0) -> FlightEntry:
        """A message to or from `peer` is on its way."""

    def mark(self, what: bytes) -> FlightEntry:
        """Something else happened."""


class PythonLog:
    """The reference, and what records without native code: native/flight.cpp's FlightLog writes the same bytes."""

    __slots__ = ("_place", "_recorder")

    def __init__(self, recorder: Recorder, group: bytes, key: int, generation: int, rank: int, size: int) -> None:
        self._recorder, self._place = recorder, Place(group, key, generation, rank, size)

    def collective(self, kind: Kind) -> FlightEntry:
        """See GroupLog."""
        return self.mark(_KINDS[kind])

    def message(self, what: bytes, array: Array, peer: int, tag: int = 0) -> FlightEntry:
        """See GroupLog."""
        entry = self._begin(what, tag)
        entry.describe(array.dtype, array.shape, None, peer)
        entry.start()
        return entry

    def mark(self, what: bytes) -> FlightEntry:
        """See GroupLog."""
        return self._begin(what)

    def _begin(self, what: bytes, tag: int = 0) -> _PythonEntry:
        return _PythonEntry(self._recorder, self._recorder.begin(self._place, what, *_caller(), tag))


class _PythonEntry:
    __slots__ = ("_recorder", "_slot")

    def __init__(self, recorder: Recorder, slot: int) -> None:
        self._recorder, self._slot = recorder, slot

    def start(self, sequence: int = -1) -> None:
        self._recorder.start(self._slot, sequence)

    def describe(
        self,
        dtype: np.dtype[np.generic] | None,
        shape: tuple[int, ...],
        op: ReduceOp | None,
        root: int,
        shards: int = 0,
    ) -> None:
        name = b"" if dtype is None else _DTYPES[dtype]
        self._recorder.describe(self._slot, name, shape, b"" if op is None else _OPS[op], root, shards)

    def end(self, failed: bool) -> None:
        self._recorder.end(self._slot, failed)


def native_flight(recorder: Recorder) -> Any:
    """The native writer of `recorder`'s file, for `loader.native.FlightLog`; `recorder` itself must not write then."""
    assert loader.native is not None
    return loader.native.Flight(recorder.map, _PACKAGE, _by_code(_KINDS), _by_code(_OPS), _DTYPES)


def native_log(flight: Any, group: bytes, key: int, generation: int, rank: int, size: int) -> GroupLog:
    """PythonLog's twin, which writes through `flight`."""
    assert loader.native is not None
    key = sealed(Place(group, key, generation, rank, size))
    log: GroupLog = loader.native.FlightLog(flight, group, key, generation, rank, size)
    return log


def _by_code(names: Mapping[Any, bytes]) -> list[str]:
    return [names.get(code, b"").decode() for code in range(1 + max(names))]


def log_of(name: str, generation: int, rank: int, endpoints: Sequence[str]) -> GroupLog | None:
    """The log of a new group of the ranks at `endpoints`; None where nothing is recorded."""
    with _lock:
        opened = _of_process()
    if opened is None:
        return None
    recorder, flight = opened
    key = zlib.crc32("\0".join([name, str(generation), *endpoints]).encode("utf-8", "replace"))
    place = _field(name), key, generation, rank, len(endpoints)
    made = PythonLog(recorder, *place) if flight is None else native_log(flight, *place)
    made.mark(JOIN.encode()).end(False)
    return made


def _field(name: str) -> bytes:
    """A group's name for its records: long ones that begin alike stay different, for readers go by them."""
    text = name.encode("utf-8", "replace")
    if len(text) <= GROUP_BYTES:
        return text
    mark = f"~{zlib.crc32(text):08x}".encode()
    return text[: GROUP_BYTES - len(mark)].decode("utf-8", "ignore").encode() + mark


def _of_process() -> tuple[Recorder, Any] | None:
    global _opened, _failed
    if _opened is None and not _failed:
        capacity = env.get_int("RESILIN_TRACE_CALLS", CALLS)
        if capacity == 0:
            return None
        if capacity is None or not 0 < capacity <= MOST_CALLS:
            raise UsageError(f"environment variable RESILIN_TRACE_CALLS: expected 0 to {MOST_CALLS}, got {capacity}")
        folder = env.get("RESILIN_TRACE_DIR")
        job = env.get("RESILIN_JOB") or env.get("TORCHELASTIC_RUN_ID") or ""
        try:
            recorder = flight_folder.open_in(folder, capacity, job)
        except OSError as error:  # a job does not end because what watches it finds no room
            _failed = True
            place = folder or str(flight_folder.default())
            log.event(_LOG, logging.WARNING, "collectives are not recorded", folder=place, reason=str(error))
            return None
        _opened = recorder, native_flight(recorder) if hasattr(loader.native, "Flight") else None
    return _opened


def _caller() -> tuple[bytes, bytes]:
    """file:line function of the nearest caller outside this library, and the function of the library that it called."""
    frame, by = sys._getframe(1), b""
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:  # what calls the recorder counts
        frame = frame.f_back
    while True:
        code = frame.f_code
        if len(_lines) >= _MOST_LINES:  # a program that makes its functions anew would fill memory
            _lines.clear()
            _inside.clear()
        inside = _inside.get(code)
        if inside is None:
            inside = _inside[code] = code.co_filename.startswith(_PACKAGE)
        outer = frame.f_back
        if not inside or outer is None:
            break
        frame, by = outer, code.co_qualname.encode("utf-8", "replace")
    key = (code, frame.f_lineno)
    line = _lines.get(key)
    if line is None:
        text = f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}".encode("utf-8", "replace")
        line = _lines[key] = text[-LINE_BYTES:]
    return line, by


def _forget_in_child() -> None:
    """A forked child is another process: were it to record, it would write into its parent's file."""
    global _opened, _failed, _lock
    if _opened is not None:
        recorder, flight = _opened
        recorder.close()
        if flight is not None:
            flight.stop()
    _opened, _failed, _lock = None, False, threading.Lock()  # another thread of the parent may have held the lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
