"""Spans of collectives and messages for `_base.trace`, made where the flight recorder is told of them.

A span is named after backend and call, as in "gloo:all_reduce". Its arguments have the names that a trace of PyTorch
gives them in `record_param_comms`, so that tools that read those find them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from resilin._base import trace
from resilin._base.clock import SYSTEM
from resilin.distributed.wire.flight_recorder import FlightEntry
from resilin.distributed.wire.reduce_op import Array, ReduceOp


@dataclass(frozen=True)
class GroupFacts:
    """What a span says of the group. `ranks` are those of the world."""

    name: str
    description: Callable[[], str]  # it may be given later
    backend: str
    rank: int
    ranks: Sequence[int]
    generation: int

    @cached_property
    def _lasting(self) -> dict[str, Any]:
        return {
            "Process Group Name": self.name,
            "Process Group Ranks": list(self.ranks),
            "Group size": len(self.ranks),
            "Rank": self.rank,
            "Generation": self.generation,
        }

    def args(self) -> dict[str, Any]:
        """The arguments that all spans of the group have."""
        return {**self._lasting, "Process Group Description": self.description()}


def traced(entry: FlightEntry | None, group: GroupFacts, what: str, asynchronous: bool) -> FlightEntry | None:
    """Return `entry` itself while nobody records, or one that also makes a span of the collective `what`."""
    recorder = trace.recorder
    if recorder is None:
        return entry
    return _TracedEntry(entry, recorder, group, what, {"Is asynchronized op": asynchronous})


def traced_message(
    entry: FlightEntry | None, group: GroupFacts, what: str, array: Array, peer: int, tag: int
) -> FlightEntry | None:
    """As `traced`, of a message to or from `peer`, which is on its way."""
    recorder = trace.recorder
    if recorder is None:
        return entry
    there = group.ranks[peer] if peer >= 0 else peer  # negative: from any
    peers = {"Src Rank": group.ranks[group.rank], "Dst Rank": there}
    if what == "recv":
        peers = {"Src Rank": there, "Dst Rank": group.ranks[group.rank]}
    made = _TracedEntry(entry, recorder, group, what, {**peers, "Tag": tag})
    made.carries(array.dtype, array.shape)
    made.opened()
    return made


class _TracedEntry:
    """A FlightEntry whose call is a span as well, from its description on: what is on its way shows what it carries."""

    __slots__ = ("_args", "_entry", "_group", "_recorder", "_start_ns", "_token", "_what")

    def __init__(
        self,
        entry: FlightEntry | None,
        recorder: trace.SpanRecorder,
        group: GroupFacts,
        what: str,
        args: dict[str, Any],
    ) -> None:
        self._entry, self._recorder, self._group, self._what = entry, recorder, group, what
        self._args: dict[str, Any] = {"Collective name": what, **group.args(), **args}
        self._start_ns = -1
        self._token = -1

    def start(self, sequence: int = -1) -> None:
        """See FlightEntry."""
        if self._entry is not None:
            self._entry.start(sequence)
        self._args["Seq"] = sequence
        self._start_ns = int(SYSTEM.monotonic() * 1e9)

    def describe(
        self,
        dtype: np.dtype[np.generic] | None,
        shape: tuple[int, ...],
        op: ReduceOp | None,
        root: int,
        shards: int = 0,
    ) -> None:
        """See FlightEntry."""
        if self._entry is not None:
            self._entry.describe(dtype, shape, op, root, shards)
        if self._token >= 0:  # a part of the call
            return
        if dtype is not None:
            self.carries(dtype, shape)
        if op is not None:
            self._args["Reduce op"] = op.name
        if root >= 0:
            self._args["Root rank"] = self._group.ranks[root] if root < len(self._group.ranks) else root
        if shards:
            self._args["Shards"] = shards
        self.opened()

    def carries(self, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
        """Say in the arguments what the call carries; extents that differ between ranks are negative."""
        known = [extent for extent in shape if extent >= 0]
        self._args["dtype"] = str(dtype)
        self._args["Shape"] = list(shape)
        if len(known) == len(shape):
            elements = math.prod(shape)
            self._args["In msg nelems"] = self._args["Out msg nelems"] = elements
            self._args["Bytes"] = elements * dtype.itemsize

    def opened(self) -> None:
        """The span begins."""
        self._token = self._recorder.begin(self._name(), trace.SpanKind.COLLECTIVE, args=self._args)

    def end(self, failed: bool) -> None:
        """See FlightEntry."""
        if self._entry is not None:
            self._entry.end(failed)
        if failed:
            self._args["Failed"] = True
        if self._token >= 0:
            self._recorder.end(self._token, self._args if failed else None)
            self._token = -1
        elif self._start_ns >= 0:  # it ended before it had anything to carry
            now = int(SYSTEM.monotonic() * 1e9)
            self._recorder.complete(self._name(), trace.SpanKind.COLLECTIVE, self._start_ns, now, args=self._args)
            self._start_ns = -1

    def _name(self) -> str:
        return f"{self._group.backend}:{self._what}"
