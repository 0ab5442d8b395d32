"""A storage that fails as planned: full disks, lost servers, writers that die in the middle of a file.

faults = StorageFaults().fail("write", nth=3, error=no_space())          # the fourth piece does not fit
faults = StorageFaults().kill("commit", nth=0)                           # dies before the first file has its name
storage = FaultyStorage(LocalStorage(folder), faults)
with pytest.raises(Killed):
    checkpoint.save(storage, ...)
assert faults.all_fired()

`at="any"` counts all operations together: a test that kills at every one of `faults.count("any")` finds every gap.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilin._base.clock import SYSTEM
from resilin.checkpoint.storage import Item, Storage, Writing
from resilin.errors import StorageError, UsageError
from resilin.testing.faults import Killed

OPERATIONS = ("open", "write", "commit", "create", "read", "size", "list", "delete", "delete_tree", "sync", "any")
"""What a fault can be planned in. "open" and "commit" begin and end a file; "write" is one piece of it."""


def no_space(path: str = "a file") -> StorageError:
    """What a full disk answers."""
    return StorageError(f"{path} cannot be written: No space left on device", path, errno.ENOSPC)


@dataclass
class _Fault:
    at: str
    nth: int
    strike: Callable[[], None]
    part: str
    keep: int | None = None
    fired: bool = False


@dataclass
class StorageFaults:
    """Faults by operation, number of that operation (from 0), and part of the file's name. Thread-safe.

    `name` counts only operations whose file's or folder's name contains it. A fault strikes before its operation.
    """

    _faults: list[_Fault] = field(default_factory=list)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # guarded by _lock: by operation and name's part
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _abandoned: list[Any] = field(default_factory=list)  # what a killed writer had open stays as it is until `bury`
    _dead: bool = False

    def fail(self, at: str, nth: int = 0, error: BaseException | None = None, name: str = "") -> StorageFaults:
        """The operation raises `error` (a StorageError); the storage works on."""

        def strike() -> None:
            raise error or StorageError(f"planned fault in {at} #{nth}", errno=errno.EIO)

        return self._add(at, nth, strike, name)

    def kill(self, at: str, nth: int = 0, name: str = "", keep: int | None = None) -> StorageFaults:
        """The writer dies: `Killed` (no Exception) comes out of this operation and all later ones.

        Files that were being written stay as they are under their other names, until `bury`. keep: of a "write", so
        many of its bytes are written before.
        """
        return self._add(at, nth, self._die, name, keep)

    def cut(self, nth: int = 0, keep: int = 0, name: str = "") -> StorageFaults:
        """The nth file has its name and only its first `keep` bytes, as after a power cut without a flush."""
        return self._add("commit", nth, _nothing, name, keep)

    def delay(self, at: str, nth: int = 0, seconds: float = 0.1, name: str = "") -> StorageFaults:
        """The operation begins late."""
        return self._add(at, nth, lambda: SYSTEM.sleep(seconds), name)

    def signal(self, number: int, at: str, nth: int = 0, name: str = "") -> StorageFaults:
        """This process sends itself signal `number`, as SIGKILL."""
        return self._add(at, nth, lambda: os.kill(os.getpid(), number), name)

    def bury(self) -> None:
        """End what a killed writer had open, here and now: the files have been looked at.

        Left to the collector of garbage, a file of fsspec is closed, and so completed, in whichever thread that runs.
        """
        while self._abandoned:
            self._abandoned.pop().__exit__(Killed, Killed(), None)

    def all_fired(self) -> bool:
        """Whether every planned fault has happened."""
        with self._lock:
            return all(fault.fired for fault in self._faults)

    def count(self, at: str, name: str = "") -> int:
        """How many operations there were; of those with a part of a name only if a fault was planned with it."""
        with self._lock:
            return self._counts[at, name]

    def _add(self, at: str, nth: int, strike: Callable[[], None], part: str, keep: int | None = None) -> StorageFaults:
        if at not in OPERATIONS:
            raise UsageError(f"StorageFaults: at={at!r}: expected one of {', '.join(OPERATIONS)}")
        self._faults.append(_Fault(at, nth, strike, part, keep))
        return self

    def _die(self) -> None:
        self._dead = True
        raise Killed

    def _reached(self, at: str, name: str, before: Callable[[int], None] = lambda keep: None) -> int | None:
        """Count an operation, and strike; how many bytes the file is cut to, if so.

        before: writes so many bytes of what was going to be written.
        """
        if self._dead:
            raise Killed
        with self._lock:
            due = [fault for fault in self._faults if self._is_due(fault, at, name)]
            for key in {(what, part) for what in (at, "any") for part in ("", *(f.part for f in self._faults))}:
                self._counts[key] += key[1] in name
            for fault in due:
                fault.fired = True
        keep = None
        for fault in due:
            if fault.keep is not None and at == "write":
                before(fault.keep)
            elif fault.keep is not None:
                keep = fault.keep
            fault.strike()
        return keep

    def _is_due(self, fault: _Fault, at: str, name: str) -> bool:
        return fault.at in (at, "any") and fault.part in name and self._counts[fault.at, fault.part] == fault.nth


def _nothing() -> None:
    pass


class FaultyStorage(Storage):
    """`inner` with the faults of a plan."""

    def __init__(self, inner: Storage, faults: StorageFaults) -> None:
        self._inner, self._faults = inner, faults
        self.root = inner.root

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Writing]:
        """As `Storage.writing`."""
        self._faults._reached("open", name)
        context = self._inner.writing(name)
        file = _Faulty(context.__enter__(), name, self._faults)
        try:
            yield file
            keep = self._faults._reached("commit", name)
        except Killed:
            self._faults._abandoned.append(context)
            raise
        except BaseException as error:
            if not context.__exit__(type(error), error, error.__traceback__):
                raise
            return
        context.__exit__(None, None, None)
        if keep is not None:
            self._inner.write(name, self._inner.read(name)[:keep])

    def create(self, name: str, data: bytes) -> None:
        """As `Storage.create`."""
        self._faults._reached("create", name)
        self._inner.create(name, data)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """As `Storage.read`."""
        self._faults._reached("read", name)
        return self._inner.read(name, start, stop)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """As `Storage.read_into`."""
        self._faults._reached("read", name)
        self._inner.read_into(name, start, buffer)

    def size(self, name: str) -> int:
        """As `Storage.size`."""
        self._faults._reached("size", name)
        return self._inner.size(name)

    def version(self, name: str) -> str:
        """As `Storage.version`."""
        self._faults._reached("size", name)
        return self._inner.version(name)

    def list(self, folder: str = "") -> Sequence[Item]:
        """As `Storage.list`."""
        self._faults._reached("list", folder)
        return self._inner.list(folder)

    def delete(self, name: str) -> None:
        """As `Storage.delete`."""
        self._faults._reached("delete", name)
        self._inner.delete(name)

    def delete_tree(self, folder: str) -> None:
        """As `Storage.delete_tree`."""
        self._faults._reached("delete_tree", folder)
        self._inner.delete_tree(folder)

    def is_link(self, folder: str) -> bool:
        """As `Storage.is_link`."""
        return self._inner.is_link(folder)

    def is_something_else(self, name: str) -> bool:
        """As `Storage.is_something_else`."""
        return self._inner.is_something_else(name)

    def missing_folders(self, folder: str = "") -> int:
        """As `Storage.missing_folders`."""
        return self._inner.missing_folders(folder)

    def remove_empty(self, folder: str, count: int = 1) -> None:
        """As `Storage.remove_empty`."""
        self._faults._reached("delete", folder)
        self._inner.remove_empty(folder, count)

    def leftovers(self, name: str) -> Sequence[Item]:
        """As `Storage.leftovers`."""
        self._faults._reached("list", name)
        return self._inner.leftovers(name)

    def delete_leftover(self, name: str) -> None:
        """As `Storage.delete_leftover`."""
        self._faults._reached("delete", name)
        self._inner.delete_leftover(name)

    def sync(self, folder: str = "") -> None:
        """As `Storage.sync`."""
        self._faults._reached("sync", folder)
        self._inner.sync(folder)

    def map(self, name: str) -> Any:
        """As `Storage.map`."""
        self._faults._reached("read", name)
        return self._inner.map(name)


class _Faulty(Writing):
    def __init__(self, inner: Writing, name: str, faults: StorageFaults) -> None:
        self._inner, self._name, self._faults = inner, name, faults

    def write(self, data: Any) -> None:
        """As `Writing.write`."""
        view = memoryview(data).cast("B")
        self._faults._reached("write", self._name, lambda keep: self._inner.write(view[:keep]))
        self._inner.write(view)
