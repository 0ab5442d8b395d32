"""`save` and `save_async`: what ranks agree on, and who waits for whom."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, SupportsIndex

from resilin._base import log, trace
from resilin._base.clock import SYSTEM
from resilin._base.threads import OwnedThread
from resilin.checkpoint import folder, plan, replica_check
from resilin.checkpoint.collective import Ranks
from resilin.checkpoint.flatten_state import Gathered, gather
from resilin.checkpoint.folder import Root
from resilin.checkpoint.manifest import Head
from resilin.checkpoint.plan import Range
from resilin.checkpoint.snapshot import Snapshot
from resilin.checkpoint.storage import Storage
from resilin.checkpoint.writing import BLOCK_BYTES, Save, complete, discard, write_share
from resilin.core.argument_checks import flag
from resilin.distributed.wire import timeouts
from resilin.errors import CheckpointError, DistError, UsageError

_LOG = log.logger("checkpoint")
_NICE = 10  # of a thread that writes behind training


@dataclass(frozen=True)
class _Begun:
    """A save that all ranks have agreed on, with what this rank has to do."""

    ranks: Ranks
    save: Save
    gathered: Gathered
    files: list[list[Range]]

    def live(self, tensor: int, start: int, stop: int) -> tuple[Any, bool]:
        """For `write_share`: the state itself, where it lies so, else a copy."""
        first, flat = self.gathered.start(tensor), self.gathered.sources[tensor]
        view = flat.view(start - first, stop - first)
        return (flat.read(start - first, stop - first), False) if view is None else (view, True)


class SaveHandle:
    """A save that is being written behind training. `path`: where the checkpoint will lie."""

    def __init__(self, begun: _Begun, snapshot: Snapshot) -> None:
        self.path = begun.save.path
        self._ranks = begun.ranks
        self._error: BaseException | None = None
        self._told = False  # whether somebody has waited, or heard the error
        self._committed = False  # whether this rank found all parts, and wrote the manifest
        self._outcome: str | None = None
        self._work: tuple[Save, list[list[Range]], Snapshot] = begun.save, begun.files, snapshot
        _RUNNING.add(self)
        self._thread = OwnedThread("checkpoint", self._run)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # not allowed: then it competes with training
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        SYSTEM.sleep(0)  # gives the interpreter back to who saves, and waits for this thread to have begun
        save, files, snapshot = self._work
        try:
            with trace.span("checkpoint.write", trace.SpanKind.CHECKPOINT):
                self._committed = write_share(save, self._ranks.rank, files, snapshot.source)
        except BaseException as error:  # noqa: BLE001 - a thread's top: raised by whoever waits, or saves next
            self._error = error
            if self._ranks.size == 1:
                discard(save)

    @property
    def save(self) -> Save:
        """What all ranks have agreed on."""
        return self._work[0]

    def done(self) -> bool:
        """Whether this rank has nothing to do for it any more, be it that it failed. Of other ranks it says nothing."""
        return not self._thread.is_alive()

    def exception(self) -> BaseException | None:
        """What this rank's writing failed with; None while it runs, and when it did not fail."""
        return self._error if self.done() else None

    def wait(self, timeout: timedelta | float | None = None) -> str:
        """Wait until the checkpoint is complete, and return its path. Every rank of the group calls it.

        timeout: for this rank's own share, seconds or a timedelta; TimeoutError afterwards, while the writing goes on.
        Raises UsageError for another timeout, what this rank's writing failed with, an error of the same class that
        names the rank for another's failure, and what collectives raise when a rank is lost.
        """
        self._finish(timeouts.seconds(timeout, "SaveHandle.wait: timeout"))
        if self._outcome is None:
            with _discarding(self.save):
                _, committed = self._ranks.together("SaveHandle.wait", self._raise, lambda _: self._committed)
                _complete(self._ranks, self.save, committed)
            self._outcome = self.path
        return self._outcome

    def _finish(self, timeout: float | None = None) -> None:
        try:
            self._thread.join(timeout)
        except TimeoutError:
            raise TimeoutError(
                f"checkpoint.save_async: this rank's share of {self.path} is not written within {timeout} s; the "
                "writing goes on, wait() for it again"
            ) from None
        _RUNNING.discard(self)

    def _raise(self) -> None:
        self._told = True
        if self._error is not None:
            raise self._error

    def raise_once(self) -> bool | None:
        """Wait for this rank's writing, and raise what it failed with unless somebody has heard how it ended.

        Whether this rank has found the checkpoint complete; None when somebody has heard.
        """
        self._finish()
        if self._told:
            return None
        self._raise()
        return self._committed

    def is_of(self, ranks: Ranks) -> bool:
        """Whether these ranks write it, all of them and no others, and can still ask one another."""
        return self._ranks.group is ranks.group

    def __repr__(self) -> str:
        state = "running" if not self.done() else "failed" if self._error is not None else "written here"
        return f"<SaveHandle {self.path} {state}>"


_RUNNING: weakref.WeakSet[SaveHandle] = weakref.WeakSet()


class _Lane(threading.local):
    """What a thread that saves keeps from one save to the next: the last one, and its memory."""

    def __init__(self) -> None:
        self.last: SaveHandle | None = None
        self.snapshot = Snapshot()


_LANE = _Lane()


def save(
    path: Root,
    state: Any,
    *,
    step: SupportsIndex | None = None,
    keep_last: SupportsIndex = 0,
    compare: bool = False,
    group: Any = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Write `state` as a checkpoint, and return its path when it is complete. Every rank of the group calls it.

    path:      a folder, which is made, or a URL. Equal on all ranks: all must see the same files.
    state:     tensors, `Sliced`, numbers, text, bytes, numpy scalars and arrays, None, and objects with a state
               (`sharded_state_dict`, else `state_dict`, else that of a Generator), in dicts, lists, tuples and sets.
               Equal on all ranks, but for what a Sliced holds. Tensors that are no Sliced should have equal elements
               on all: those of up to 256 KiB (with one dimension 16 MiB) are rank 0's, of larger ones each rank
               writes a part.
               Nothing is pickled; what shares memory as a whole is stored once.
    step:      write to `path/step-<step>` and make `path/latest` name it; None: `path` itself is the checkpoint.
    keep_last: with a step: how many complete checkpoints `path` keeps, this one included; older and torn ones are
               deleted when this one is complete. 0: all.
    compare:   hash all tensors on all ranks first; CollectiveMismatch names those that differ, and where.
    group:     default: the default group; where there is none, this process alone.
    options:   for the storage of a URL, see `open_storage`.

    What is at the place already stays valid until the new checkpoint is complete, and is then replaced at once: who is
    killed at any moment leaves the one or the other. Each rank writes its share: of what all hold, ranges that even out
    what each writes. Memory: two blocks of 16 MiB at the most, where tensors do not lie contiguous in host memory. No
    other thread may write to `state` before it returns: what is written is hashed a little later.
    A `save_async` of this thread that still runs is waited for.

    Raises on all ranks: UsageError for what cannot be saved, CollectiveMismatch when ranks differ (it shows both
    sides), what writing fails with on any of them (CheckpointError and its kinds, as a rule; on the others an error of
    the same class that names the rank), and what collectives raise when a rank is lost. The checkpoints before stay as
    they were. What a save that failed has written is deleted, unless a rank is lost or interrupted: then nobody knows
    what that one is about to do, and the checkpoint is torn.
    """
    with trace.span("checkpoint.save", trace.SpanKind.CHECKPOINT):
        begun = _begin(path, state, step, keep_last, compare, group, options)
        rank = begun.ranks.rank
        with _discarding(begun.save, alone=begun.ranks.size == 1):
            _, committed = begun.ranks.together(
                "checkpoint.save", lambda: write_share(begun.save, rank, begun.files, begun.live), bool
            )
            _complete(begun.ranks, begun.save, committed)
    return begun.save.path


def save_async(
    path: Root,
    state: Any,
    *,
    step: SupportsIndex | None = None,
    keep_last: SupportsIndex = 0,
    compare: bool = False,
    group: Any = None,
    options: Mapping[str, Any] | None = None,
) -> SaveHandle:
    """Copy this rank's share of `state` and write it behind training; arguments and errors as `save`.

    It returns once the copy is made; the state may change then. The memory of the copy is kept for the next save of
    this thread. One save at a time: while one runs, the next waits for it, so that no second copy is needed. An error
    of the writing is raised, on all ranks, by `wait` of the handle or else by the next save. When the process exits,
    also by SystemExit, what is being written is finished first, and an error that nobody has heard of is logged; a
    process that is killed leaves the checkpoint torn and those before it valid.
    """
    with trace.span("checkpoint.snapshot", trace.SpanKind.CHECKPOINT):
        begun = _begin(path, state, step, keep_last, compare, group, options)
        snapshot = _LANE.snapshot
        begun.ranks.together(
            "checkpoint.save_async",
            lambda: snapshot.take([one for file in begun.files for one in file], begun.gathered),
        )
    _LANE.last = SaveHandle(begun, snapshot)
    return _LANE.last


def _begin(
    path: Root,
    state: Any,
    step: SupportsIndex | None,
    keep_last: SupportsIndex,
    compare: bool,
    group: Any,
    options: Mapping[str, Any] | None,
) -> _Begun:
    ranks = Ranks.of(group)
    asked, told = _looked(ranks, path, state, step, keep_last, compare, options)
    storage, gathered, number, keep = asked.storage, asked.gathered, asked.step, asked.keep_last
    facts = {"path": storage.root, "step": number, "keep_last": keep, "compare": asked.compare, "state": gathered.tree}
    ranks.agree("checkpoint.save", facts | {"tensors": _kinds(gathered)})
    if asked.compare:
        replica_check.compare(ranks, gathered)
    where = "" if number is None else folder.step_name(number)
    save_id, serial, replaces, before, missing = ranks.of_first("checkpoint.save", lambda: _new(storage, where))
    head = Head(save_id, serial, number, ranks.size, BLOCK_BYTES)
    agreed = Save(storage, where, head, gathered.tree, tuple(gathered.tensors), replaces, before, missing, keep)
    return _Begun(ranks, agreed, gathered, _files(ranks, gathered, told))


@dataclass(frozen=True)
class _Asked:
    """The arguments of a save, looked at."""

    storage: Storage
    gathered: Gathered
    step: int | None
    keep_last: int
    compare: bool
    ended: bool | None  # whether this rank found the save before it complete, where these ranks made that one


_Held = dict[str, list[int]]  # of each divided tensor, by number, which elements a rank holds: [start, stop]


def _looked(
    ranks: Ranks,
    path: Root,
    state: Any,
    step: SupportsIndex | None,
    keep_last: SupportsIndex,
    compare: bool,
    options: Mapping[str, Any] | None,
) -> tuple[_Asked, list[_Held]]:
    """The arguments of a save, looked at on every rank once this thread's save before it has ended; and who holds what.

    An error of the one before is raised, too.
    """
    earlier, _LANE.last = _LANE.last, None
    behind = earlier if earlier is not None and earlier.is_of(ranks) else None

    def look() -> _Asked:
        ended = None if earlier is None else earlier.raise_once()
        number, keep = folder.checked_step(step), folder.checked_count(keep_last)
        if keep is None or (keep and number is None):
            raise UsageError(f"checkpoint.save: keep_last is a number of steps to keep, with a step; got {keep_last!r}")
        compares = flag("checkpoint.save: compare", compare)
        storage = folder.opened_to_save(path, options)
        return _Asked(storage, gather(state), number, keep, compares, ended if behind else None)

    def give(asked: _Asked) -> tuple[bool | None, _Held]:
        return asked.ended, {str(number): list(part) for number, part in asked.gathered.held.items()}

    with _discarding(None if behind is None else behind.save):  # its ranks are these: it has ended on all of them
        asked, told = ranks.together("checkpoint.save", look, give)
        if behind is not None:
            _complete(ranks, behind.save, [ended for ended, _ in told])
    return asked, [held for _, held in told]


def _files(ranks: Ranks, gathered: Gathered, told: list[_Held]) -> list[list[Range]]:
    """What this rank writes. told: what each rank holds."""
    held = {
        number: [(rank, parts[str(number)][0], parts[str(number)][1]) for rank, parts in enumerate(told)]
        for number in sorted(gathered.held)
    }
    return plan.files(plan.shares(gathered.tensors, held, ranks.size)[ranks.rank], gathered.tensors)


def _kinds(gathered: Gathered) -> dict[str, str]:
    """By name, what a tensor is on this rank."""
    return {
        one.name: f"{one.dtype.name}{list(one.shape)}, {'divided' if number in gathered.held else 'whole'}"
        for number, one in enumerate(gathered.tensors)
    }


def _new(storage: Storage, where: str) -> tuple[str, int, str | None, folder.Before, int]:
    """Of a save that begins now: its id, its serial, the id of the checkpoint that it replaces, what else is there, and
    how many folders are not."""
    missing = storage.missing_folders(where)
    head = folder.read_head(storage, where)
    serial, before = folder.survey(storage, where)
    return os.urandom(8).hex(), serial, None if head is None else head.id, before, missing


def _complete(ranks: Ranks, save: Save, committed: list[bool | None]) -> None:
    """See to it that a save is complete that all ranks have written; CheckpointError on all when it cannot be.

    committed: of each rank, whether it has found it complete; None: nobody asks.
    """
    if all(one is False for one in committed):
        ranks.of_first("checkpoint.save", lambda: complete(save))


@contextlib.contextmanager
def _discarding(save: Save | None, alone: bool = False) -> Iterator[None]:
    """Around what raises when a save has failed on some rank and ended on all: nothing of it stays. So when it is
    interrupted that writes `alone`, and here; the interrupt of one of several ranks ends that one only."""
    try:
        yield
    except DistError:  # a rank is lost: perhaps another is about to complete it
        raise
    except BaseException as error:
        if save is not None and (alone or isinstance(error, Exception)):
            discard(save)
        raise


def _finish_all() -> None:
    """At exit: what is being written becomes complete."""
    for handle in list(_RUNNING):
        try:
            handle.raise_once()
        except CheckpointError as error:
            log.event(_LOG, logging.ERROR, "a checkpoint failed", path=handle.path, error=str(error))


atexit.register(_finish_all)
