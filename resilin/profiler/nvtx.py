"""Ranges for NVIDIA's tools: the names of what runs, as Nsight Systems shows them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

from resilin._base import trace
from resilin.cuda.nvtx import load
from resilin.errors import UsageError
from resilin.profiler.inputs import Inputs


class _Ranges:
    """A recorder that pushes a range when a span begins and pops it when it ends."""

    def __init__(self, library: Any, record_shapes: bool) -> None:
        self._library, self._record_shapes = library, record_shapes
        self._local = threading.local()

    def begin(self, name: str, kind: int, link: int = -1, args: Mapping[str, Any] | None = None) -> int:
        """Push a range called as the span, with its sequence number and the sizes of its inputs."""
        if link >= 0:
            name += f", {'stashed seq' if kind == trace.SpanKind.BACKWARD else 'seq'} = {link}"
        if self._record_shapes and args and args.get("inputs"):
            name += f", sizes = {Inputs(args['inputs']).structured_shapes}"
        self._library.nvtxRangePushA(name.encode())
        return 0

    def end(self, token: int, args: Mapping[str, Any] | None = None) -> None:
        """Pop the range."""
        self._library.nvtxRangePop()

    def complete(
        self, name: str, kind: int, start_ns: int, end_ns: int, link: int = -1, args: Mapping[str, Any] | None = None
    ) -> None:
        """Mark that it is over: ranges cannot be added later."""
        self._library.nvtxMarkA(f"{name} ({(end_ns - start_ns) / 1000:.1f} us)".encode())

    def instant(
        self, name: str, kind: int, link: int = -1, value: int = 0, args: Mapping[str, Any] | None = None
    ) -> None:
        """Mark the moment, of memory not."""
        if kind != trace.SpanKind.MEMORY:
            self._library.nvtxMarkA(name.encode())


class emit_nvtx:
    """Let operations, and everything else that profiles tell of, be ranges for NVIDIA's tools while it is entered.

    enabled: with False it does nothing. record_shapes: with the sizes of inputs. A range's name ends in `seq = N` for
    an operation, in `stashed seq = N` for its node of backward.

    Raises on entering: RuntimeError inside itself, UsageError without NVIDIA's library, or while a profile records.
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled = enabled
        self.record_shapes = record_shapes
        self.entered = False

    def __enter__(self) -> emit_nvtx | None:
        if not self.enabled:
            return None
        if self.entered:
            raise RuntimeError("NVTX annotation context manager is not reentrant")
        if trace.recorder_of(trace.Layer.PROFILE) is not None:
            raise UsageError("emit_nvtx: a profile is recording in this process; stop it first")
        trace.record_with(_Ranges(load(), self.record_shapes))
        self.entered = True
        return self

    def __exit__(self, *exc: object) -> Literal[False]:
        if self.enabled:
            trace.record_with(None)
        return False


class emit_itt:
    """Ranges for Intel's VTune: they are not there, entering it raises UsageError."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled = enabled
        self.record_shapes = record_shapes

    def __enter__(self) -> emit_itt | None:
        if not self.enabled:
            return None
        raise UsageError("emit_itt: ranges for Intel's VTune are not supported; use resilin.profiler.profile")

    def __exit__(self, *exc: object) -> Literal[False]:
        return False


def load_nvprof(path: Any) -> NoReturn:
    """Raise UsageError: files of nvprof, which ended with CUDA 12, are not read."""
    raise UsageError(
        f"load_nvprof: {path}: files of nvprof are not read, it is no part of CUDA any more; open the trace that "
        "profile.export_chrome_trace wrote"
    )
