"""What a run writes of what was there before it: how it was is kept, so that a checkpoint's second run begins with the
state that the first began with, and leaves everything as it found it. Every in-place write tells the `Log`s of its
thread before it happens; so do assignments to modules.

What the run itself computes is no state: a tensor whose node is younger than the log is not kept, and of other memory
the log refers to weakly what it has copied, so that it goes with the memory.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from resilin.core.device import device
from resilin.core.state.versions import Versioned, View, share_version


class Stored(Versioned, Protocol):
    """What is used here of a tensor over memory of its own: the backend's array, and its place in the graph."""

    _array: Any
    _rg: bool


Whole = TypeVar("Whole", bound=Stored)


class Placed(Stored, Protocol[Whole]):
    """What is used here of any tensor: its device, too, and the whole that it may be a view of."""

    _dev: device
    _view: View[Whole] | None


LOGS: list[Any] = []  # the logs that are kept just now, of all threads: what every in-place write looks at


class _Here(threading.local):
    logs: tuple[Log, ...] = ()


_here = _Here()
_MISSING = object()


def before_write(tensor: Placed[Whole]) -> None:
    """Say that the elements of `tensor` are about to be written."""
    for log in _here.logs:
        log.keep_elements(tensor)


def before_move(tensor: Placed[Whole]) -> None:
    """Say that `tensor` is about to show other memory, or to show it in another way."""
    for log in _here.logs:
        log.keep_place(tensor)


def before_assignment(fields: dict[str, Any], name: str) -> None:
    """Say that `fields[name]`, which a module holds, is about to be set or deleted."""
    for log in _here.logs:
        log.keep_field(fields, name)


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """Inside, no log of this thread is told of anything: for what happens once and for good, as at a first call."""
    before, _here.logs = _here.logs, ()
    try:
        yield
    finally:
        _here.logs = before


def kept_here() -> bool:
    """Return whether a log of this thread is kept just now."""
    return bool(_here.logs)


class _Elements:
    """The elements of an array, with the count of writes and the node of the tensor over it."""

    def __init__(self, tensor: Stored, forget: Any) -> None:
        self.fresh = tensor._vc is None  # never written before
        self.array = weakref.ref(tensor._array, forget)
        self.count = share_version(tensor)
        self.owner = weakref.ref(tensor)
        self.was = self._now()

    def _now(self) -> Any:
        array, owner = self.array(), self.owner()
        node = None if owner is None else (owner._node, owner._rg)
        return None if array is None else (array.copy(), self.count[0], node)

    def exchange(self) -> None:
        """Put back what was, and keep what is now."""
        was, self.was = self.was, self._now()
        array, owner = self.array(), self.owner()
        if array is None or was is None:
            return
        array[...] = was[0]
        self.count[0] = was[1]
        if owner is not None and was[2] is not None:
            owner._node, owner._rg = was[2]


class _Place(Generic[Whole]):
    """Which memory a tensor shows, and as what."""

    def __init__(self, tensor: Placed[Whole], forget: Any) -> None:
        self.tensor = weakref.ref(tensor, forget)
        self.was = self._now()

    def _now(self) -> Any:
        tensor = self.tensor()
        if tensor is None:
            return None
        return tensor._array, tensor._dev, tensor._view, tensor._vc, tensor._node, tensor._rg

    def exchange(self) -> None:
        """Put back what was, and keep what is now."""
        was, self.was = self.was, self._now()
        tensor = self.tensor()
        if tensor is not None:
            tensor._array, tensor._dev, tensor._view, tensor._vc, tensor._node, tensor._rg = was


class _Field:
    """What a module holds under a name. A tensor in the graph is referred to weakly: the log must not keep the graphs
    of earlier steps alive, and what the run reads of them the graph itself keeps."""

    def __init__(self, fields: dict[str, Any], name: str) -> None:
        self.fields, self.name = fields, name
        value = fields.get(name, _MISSING)
        in_graph = getattr(value, "grad_fn", None) is not None
        self.was: Any = weakref.ref(value) if in_graph else lambda: value

    def exchange(self) -> None:
        """Put back what was, and keep what is now."""
        value, now = self.was(), self.fields.get(self.name, _MISSING)
        if value is None and isinstance(self.was, weakref.ref):
            value = now  # gone: nothing that runs can have read it
        self.was = lambda: now
        if value is _MISSING:
            self.fields.pop(self.name, None)
        else:
            self.fields[self.name] = value


class Log:
    """What was before the writes made while it is kept. `since`: the number of the first node made meanwhile."""

    def __init__(self, since: int) -> None:
        self._since = since
        self._entries: dict[Any, Any] = {}

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, writes of this thread are kept in this log."""
        before, _here.logs = _here.logs, (*_here.logs, self)
        LOGS.append(self)
        try:
            yield
        finally:
            LOGS.remove(self)
            _here.logs = before

    def keep_elements(self, tensor: Placed[Whole]) -> None:
        """Copy the elements of `tensor` (of the whole that it is a view of), unless that was done before."""
        whole: Stored = tensor if tensor._view is None else tensor._view.base
        key = id(whole._array)
        if key not in self._entries and not self._made_meanwhile(whole):
            self._entries[key] = _Elements(whole, self._forgetting(key))

    def keep_place(self, tensor: Placed[Whole]) -> None:
        """Note which memory `tensor` shows."""
        key = ("place", id(tensor))
        if key not in self._entries and not self._made_meanwhile(tensor):
            self._entries[key] = _Place(tensor, self._forgetting(key))

    def keep_field(self, fields: dict[str, Any], name: str) -> None:
        """Note what a module holds as `name`."""
        key = (id(fields), name)
        if key not in self._entries:
            self._entries[key] = _Field(fields, name)

    def _forgetting(self, key: Any) -> Any:
        """Drops the entry, without keeping this log alive."""
        here = weakref.ref(self)

        def forget(_: Any) -> None:
            log = here()
            if log is not None:
                log._entries.pop(key, None)

        return forget

    def _made_meanwhile(self, tensor: Versioned) -> bool:
        return tensor._node is not None and tensor._node.seq >= self._since

    def forget_results(self, results: list[Any]) -> None:
        """Drop the copies of memory that had never been written before and that `results` show: the run made it, and
        a copy would last as long as they do."""
        for tensor in results:
            whole = tensor if tensor._view is None else tensor._view.base
            entry = self._entries.get(id(whole._array))
            if entry is not None and entry.fresh:
                del self._entries[id(whole._array)]

    def exchange(self, back: bool) -> None:
        """Put everything as it was before the first write (`back`), or as it was when that was done."""
        entries = list(self._entries.values())
        for entry in reversed(entries) if back else entries:
            entry.exchange()

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Inside, everything is as it was before the first write; afterwards as it was when this was entered."""
        self.exchange(True)
        try:
            yield
        finally:
            self.exchange(False)

    def counts(self) -> list[tuple[list[Any], int]]:
        """The counters of writes of the memory that it keeps, each with the number that it puts back."""
        found = [entry for entry in list(self._entries.values()) if isinstance(entry, _Elements)]
        return [(entry.count, entry.was[1]) for entry in found if entry.was is not None]
