"""Which collectives this process made, and where they stand: written to the flight recorder of `_base.flight`.

On where RESILIN_TRACE_DIR names a folder, as `elastic-run` does for its workers; `resilin trace FOLDER` reads it. A
folder that cannot be written is a warning, and nothing is recorded.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from pathlib import Path
from types import CodeType

import numpy as np

from resilin._base import env, log
from resilin._base.flight import SUFFIX, Recorder
from resilin.dist.message import Kind
from resilin.dist.reduce_op import DTYPE_CODES, Array, ReduceOp

_LOG = logging.getLogger(__name__)
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_KINDS = {kind: kind.name.lower().encode() for kind in Kind}
_OPS = {op: op.name.encode() for op in ReduceOp}
_DTYPES = {dtype: str(dtype).encode() for dtype in DTYPE_CODES}
_LINE_BYTES = 96

_lock = threading.Lock()
_opened: Recorder | None = None  # of this process; guarded by _lock
_failed = False  # to open it; guarded by _lock
_inside: dict[CodeType, bool] = {}  # whether a function is the library's own
_lines: dict[tuple[CodeType, int], bytes] = {}


class GroupLog:
    """The calls of one group."""

    __slots__ = ("_generation", "_name", "_rank", "_recorder", "_size")

    def __init__(self, recorder: Recorder, name: str, generation: int, rank: int, size: int) -> None:
        self._recorder, self._name = recorder, name.encode()
        self._generation, self._rank, self._size = generation, rank, size

    def collective(self, kind: Kind) -> Entry:
        """A collective was called, by the nearest function outside this library."""
        return self._begin(_KINDS[kind])

    def message(self, what: bytes, array: Array, peer: int) -> Entry:
        """A message to or from `peer` is on its way."""
        entry = self._begin(what)
        entry.describe(array.dtype, array.shape, None, peer)
        entry.start()
        return entry

    def _begin(self, what: bytes) -> Entry:
        recorder = self._recorder
        return Entry(
            recorder,
            recorder.begin(self._name, self._generation, self._rank, self._size, -1, what, _caller()),
        )


class Entry:
    """One recorded call."""

    __slots__ = ("_described", "_recorder", "_slot")

    def __init__(self, recorder: Recorder, slot: int) -> None:
        self._recorder, self._slot, self._described = recorder, slot, False

    def start(self, sequence: int = -1) -> None:
        """It runs, as number `sequence` of its group."""
        self._recorder.start(self._slot, sequence)

    def describe(self, dtype: np.dtype[np.generic], shape: tuple[int, ...], op: ReduceOp | None, root: int) -> None:
        """What it carries; of a call made of others the first to say counts."""
        if not self._described:
            self._described = True
            self._recorder.describe(self._slot, _DTYPES[dtype], shape, b"" if op is None else _OPS[op], root)

    def end(self, failed: bool) -> None:
        """It is over."""
        self._recorder.end(self._slot, failed)


def log_of(name: str, generation: int, rank: int, size: int) -> GroupLog | None:
    """The log of a new group; None where RESILIN_TRACE_DIR names no folder."""
    recorder = _of_process()
    return None if recorder is None else GroupLog(recorder, name, generation, rank, size)


def _of_process() -> Recorder | None:
    global _opened, _failed
    folder = env.get("RESILIN_TRACE_DIR")
    if folder is None:
        return None
    with _lock:
        if _opened is None and not _failed:
            capacity, host = env.get_int("RESILIN_TRACE_CALLS", 2048) or 2048, socket.gethostname()
            try:
                os.makedirs(folder, exist_ok=True)
                _opened = Recorder(Path(folder, f"{host}_{os.getpid()}{SUFFIX}"), host, capacity)
            except OSError as error:  # a job does not end because what watches it finds no room
                _failed = True
                log.event(_LOG, logging.WARNING, "collectives are not recorded", folder=folder, reason=str(error))
        return _opened


def _caller() -> bytes:
    """file:line function of the nearest caller outside this library."""
    frame = sys._getframe(1)
    while True:
        code = frame.f_code
        inside = _inside.get(code)
        if inside is None:
            inside = _inside[code] = code.co_filename.startswith(_PACKAGE)
        outer = frame.f_back
        if not inside or outer is None:
            break
        frame = outer
    key = (code, frame.f_lineno)
    line = _lines.get(key)
    if line is None:
        text = f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}".encode("utf-8", "replace")
        line = _lines[key] = text[-_LINE_BYTES:]
    return line


def _forget_in_child() -> None:
    """A forked child is another process: were it to record, it would write into its parent's file."""
    global _opened, _failed
    _opened, _failed = None, False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
