"""Cases of one rank that refuses, fails or is interrupted: what its peers raise, and whether the group lives on.

`TABLE` says it for errors before a collective, where the group stays usable; `IN_THE_MIDDLE` for those that come when
something is under way, where it is aborted. The last rank is the one that fails; `where` runs on all.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import resilin.distributed as dist
from resilin.distributed.agreement.exchange import on_all_ranks
from resilin.distributed.agreement.guard import abort_group_on_error
from resilin.distributed.agreement.refuse import propagate_errors, refuse
from resilin.distributed.wire.frames import Kind
from resilin.errors import (
    CheckpointMismatch,
    CorruptFile,
    GroupAborted,
    OutOfMemoryError,
    RemoteError,
    StorageMissing,
    UsageError,
    UsageTypeError,
)
from resilin.testing.check_group.cases import case


class Unknown(Exception):
    """A class of a program, which is not imported where the error arrives."""


class Unpicklable(ValueError):
    """A class that nothing can pickle or make of a text: it is known to other ranks by its name alone."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")
        self.held = open

    def __reduce__(self) -> Any:
        raise pickle.PicklingError("never")


@dataclass(frozen=True)
class Row:
    """One error, and what becomes of it. said: what peers read of it, beside the rank, with `: ` between two words."""

    error: Callable[[], BaseException]
    peers: type[Exception]
    said: str
    data: Callable[[Any], bool] = lambda error: True


TABLE: dict[str, Row] = {
    "UsageError": Row(lambda: UsageError("expected 3"), UsageError, "expected 3"),
    "UsageTypeError": Row(lambda: UsageTypeError("expected a list"), UsageTypeError, "expected a list"),
    "TypeError": Row(lambda: TypeError("'int' object is not iterable"), TypeError, "'int' object is not iterable"),
    "ValueError": Row(lambda: ValueError("not a number"), ValueError, "not a number"),
    "KeyError": Row(lambda: KeyError("lr"), KeyError, "lr"),
    "UnicodeDecodeError": Row(
        lambda: UnicodeDecodeError("ascii", b"\xff", 0, 1, "out of range"), UnicodeError, "out of range"
    ),
    "FileNotFoundError": Row(
        lambda: FileNotFoundError(2, "No such file", "a/b"), FileNotFoundError, "a/b", lambda error: error.errno == 2
    ),
    "MemoryError": Row(lambda: MemoryError("of 8 GB"), MemoryError, "of 8 GB"),
    "OutOfMemoryError": Row(lambda: OutOfMemoryError("of 8 GB"), OutOfMemoryError, "of 8 GB"),
    "StorageMissing": Row(
        lambda: StorageMissing("no folder", "/a", 2),
        StorageMissing,
        "no folder",
        lambda error: (error.path, error.errno) == ("/a", 2),
    ),
    "CheckpointMismatch": Row(
        lambda: CheckpointMismatch("two are missing", ["a", "b"], [], ["c: 1, 2"]),
        CheckpointMismatch,
        "two are missing",
        lambda error: (error.missing, error.unexpected, error.different) == (("a", "b"), (), ("c: 1, 2",)),
    ),
    "CorruptFile": Row(lambda: CorruptFile("cut", "/f"), CorruptFile, "cut", lambda error: error.path == "/f"),
    "a note": Row(lambda: _noted(ValueError("bad"), "in layer 3"), ValueError, "bad; in layer 3"),
    "no words": Row(ValueError, ValueError, "ValueError"),
    "StopIteration": Row(StopIteration, RemoteError, "StopIteration", lambda error: error.kind == "StopIteration"),
    "a class of the program": Row(
        lambda: Unknown("odd"),
        RemoteError,
        "check_group.agreement.Unknown: odd",
        lambda error: error.kind.endswith("Unknown") and "raise row.error()" in error.remote_traceback,
    ),
    "a class that cannot be pickled": Row(
        lambda: Unpicklable(1, 2), RemoteError, "Unpicklable: 1 and 2", lambda error: error.kind.endswith("Unpicklable")
    ),
}
"""Of an `Exception`: its class at the peers, before a collective, where the group stays usable."""

ENDS: dict[str, Callable[[], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
}
"""What ends a program: its peers have GroupAborted, which names rank and class, wherever it comes."""


def _noted(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


def _fail(row: Row) -> None:
    raise row.error()


class _FailsInPickling:
    def __init__(self, error: Callable[[], BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error()


class _Fails(list[Any]):
    """A list of tensors that fails when it is looked at."""

    def __init__(self, row: Row) -> None:
        super().__init__([np.ones(1)])
        self.row = row

    def __iter__(self) -> Any:
        return _fail(self.row)


def _check(row: Row, fails: bool, rank: int, size: int, call: Callable[[], Any]) -> None:
    """`call` raises its own error where it fails, and on the others one of the class of the row; the group goes on."""
    if fails:
        own = row.error()
        with pytest.raises(type(own)) as mine:
            call()
        assert type(mine.value) is type(own)
        assert mine.value.args == own.args
    elif size > 1:
        with pytest.raises(row.peers) as caught:
            call()
        assert type(caught.value) is row.peers, (type(caught.value), row.peers)
        said = str(caught.value)
        assert f"rank {size - 1} " in said, said
        assert all(words in said for words in row.said.split(": ")), said
        assert row.data(caught.value), vars(caught.value)
        assert not isinstance(caught.value, GroupAborted)
    check = np.ones(2)
    dist.all_reduce(check)
    assert (check == size).all()


def _refused_call(row: Row, fails: bool) -> Callable[[], Any]:
    def call() -> None:
        group = dist.default_group()
        with propagate_errors(group, Kind.ALL_REDUCE):
            if fails:
                _fail(row)
        dist.all_reduce(np.ones(3))

    return call


def _work_of_all(row: Row, fails: bool) -> Callable[[], Any]:
    return lambda: on_all_ranks(
        dist.default_group(), "checkpoint.save", lambda: _fail(row) if fails else None, lambda _: 1
    )


def _listed(row: Row, fails: bool) -> Callable[[], Any]:
    return lambda: dist.all_reduce_coalesced(_Fails(row) if fails else [np.ones(1)])


def _asynchronous(row: Row, fails: bool) -> Callable[[], Any]:
    def call() -> None:
        work = dist.all_reduce_coalesced(_Fails(row) if fails else [np.ones(1)], async_op=True)
        assert work is not None
        work.wait()

    return call


def _block(row: Row, fails: bool) -> Callable[[], Any]:
    def call() -> None:
        with dist._coalescing_manager():
            dist.all_reduce(np.ones(3))
            if fails:
                _fail(row)

    return call


BEFORE: dict[str, Callable[[Row, bool], Callable[[], Any]]] = {
    "checks of a collective": _refused_call,
    "a list that a collective looks at": _listed,
    "the same, asynchronous": _asynchronous,
    "a coalescing block": _block,
    "work that all ranks do": _work_of_all,
}
"""Where an error may come before a collective."""


def _register() -> None:
    for name, row in TABLE.items():
        case(_named(f"peers of a rank that raises {name} raise it in the next collective", _before(row)))
        case(_named(f"peers of a rank that raises {name} half-way have the group aborted by it", _half_way(row)))
    for name, error in ENDS.items():
        case(_named(f"peers of a rank that {name} ends have the group aborted", _ended(name, error)))


def _named(name: str, fn: Callable[[int, int], None]) -> Callable[[int, int], None]:
    fn.__name__ = name.replace(" ", "_").replace("-", "_")
    return fn


def _before(row: Row) -> Callable[[int, int], None]:
    def run(rank: int, size: int) -> None:
        fails = rank == size - 1
        for where in BEFORE.values():
            _check(row, fails, rank, size, where(row, fails))

    return run


def _half_way(row: Row) -> Callable[[int, int], None]:
    """In a group of its own, which is aborted."""

    def run(rank: int, size: int) -> None:
        if size < 2:
            return
        own = row.error()
        for guarded in (_in_a_guard, _in_a_collective):
            group = _made(size)
            fails = rank == size - 1
            with pytest.raises(type(own) if fails else GroupAborted) as caught:
                guarded(row.error if fails else None, group)
            _check_abort(caught.value, None if fails else row, size - 1, row.said, type(own))
            with pytest.raises(GroupAborted) as later:
                dist.barrier(group)
            _check_abort(later.value, row, size - 1, row.said, type(own))
            assert type(pickle.loads(pickle.dumps(later.value))) is type(later.value)
            dist.destroy_process_group(group)
            dist.barrier()

    return run


def _check_abort(error: BaseException, row: Row | None, culprit: int, said: str, kind: type[BaseException]) -> None:
    if row is None:  # its own, unchanged
        assert type(error) is kind
        return
    assert isinstance(error, GroupAborted)
    assert isinstance(error, row.peers), (type(error), row.peers)
    assert f"rank {culprit} aborted the group: " in str(error)
    assert all(words in str(error) for words in said.split(": ")), error


def _made(size: int) -> Any:
    """A group of all ranks that all of them have: it can be aborted without disturbing who still makes it."""
    group = dist.new_group(list(range(size)))
    dist.barrier()
    return group


def _in_a_guard(error: Callable[[], BaseException] | None, group: Any) -> None:
    with abort_group_on_error(group, "a step"):
        if error is not None:
            raise error()
    dist.barrier(group)


def _in_a_collective(error: Callable[[], BaseException] | None, group: Any) -> None:
    """As an interrupt that comes in the middle of a call."""

    def task(call: Any) -> None:
        call.note(None, ())
        if error is not None:
            raise error()
        group.backend.barrier(call)

    group.run(Kind.BARRIER, task)


def _ended(name: str, error: Callable[[], BaseException]) -> Callable[[int, int], None]:
    row = Row(error, GroupAborted, name)

    def before(error: Callable[[], BaseException] | None, group: Any) -> None:
        with propagate_errors(group, Kind.BARRIER):
            if error is not None:
                raise error()
        dist.barrier(group)

    def objects(error: Callable[[], BaseException] | None, group: Any) -> None:
        thing = 1 if error is None else _FailsInPickling(error)
        dist.all_gather_object([None] * group.size(), thing, group)

    def run(rank: int, size: int) -> None:
        if size < 2:
            return
        for where in (before, objects, _in_a_guard, _in_a_collective):
            group = _made(size)
            fails = rank == size - 1
            with pytest.raises(type(error()) if fails else GroupAborted) as caught:
                where(error if fails else None, group)
            if not fails:
                assert type(caught.value) is GroupAborted
                _check_abort(caught.value, row, size - 1, name, type(error()))
            dist.destroy_process_group(group)
            dist.barrier()

    return run


_register()


@case
def a_refusal_in_the_middle_is_a_usage_error_here_and_aborts_the_group(rank: int, size: int) -> None:
    if size < 2:
        return
    group = _made(size)
    with pytest.raises(UsageError, match=r"a gradient came twice") as caught:
        dist.barrier(group) if rank else refuse(group, "Trainer", "a gradient came twice")
    assert isinstance(caught.value, GroupAborted) == (rank != 0)
    assert "rank 0" in str(caught.value)
    dist.destroy_process_group(group)
    dist.barrier()


@case
def objects_that_one_rank_cannot_send_are_its_error_on_all(rank: int, size: int) -> None:
    last = size - 1
    for function in ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"):
        thing: Any = _FailsInPickling(lambda: ValueError("odd")) if rank == last else 1
        calls: dict[str, Callable[[], Any]] = {
            "all_gather_object": lambda: dist.all_gather_object([None] * size, thing),  # noqa: B023
            "gather_object": lambda: dist.gather_object(thing, [None] * size if rank == 0 else None),  # noqa: B023
            "broadcast_object_list": lambda: dist.broadcast_object_list([thing], last),  # noqa: B023
            "scatter_object_list": lambda: dist.scatter_object_list([None], [thing] * size, last),  # noqa: B023
        }
        with pytest.raises(UsageError, match=r"expected an object that pickle can write.*odd") as caught:
            calls[function]()
        assert type(caught.value) is UsageError
        assert (f"rank {last} refused its arguments" in str(caught.value)) == (rank != last)
        dist.barrier()


@case
def memory_that_one_rank_lacks_for_its_object_is_its_error_on_all(rank: int, size: int) -> None:
    thing: Any = _FailsInPickling(lambda: MemoryError("of 8 GB")) if rank == size - 1 else 1
    with pytest.raises(MemoryError, match="of 8 GB") as caught:
        dist.all_gather_object([None] * size, thing)
    assert (f"rank {size - 1} refused its arguments" in str(caught.value)) == (rank != size - 1)
    dist.barrier()


@case
def objects_that_a_sender_cannot_send_are_its_error_where_they_are_awaited(rank: int, size: int) -> None:
    if size < 2:
        return
    for attempt in range(2):
        if rank == 0:
            with pytest.raises(UsageError, match="pickle can write"):
                dist.send_object_list([_FailsInPickling(lambda n=attempt: ValueError(f"odd {n}"))], 1)  # type: ignore[misc]
        if rank == 1:
            with pytest.raises(UsageError, match=rf"recv_object_list, .*: rank 0 refused .*odd {attempt}"):
                dist.recv_object_list([None], 0)
    dist.barrier()


@case
def a_limit_that_one_rank_refuses_is_its_error_at_a_monitored_barrier_of_all(rank: int, size: int) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match="timeout: expected") as caught:
            dist.monitored_barrier(timeout=-1 if rank == size - 1 else None)
        assert (f"rank {size - 1} refused its arguments" in str(caught.value)) == (rank != size - 1)
    dist.monitored_barrier(timeout=10.0)


@case
def an_error_that_is_raised_again_is_told_again(rank: int, size: int) -> None:
    same = ValueError("again")
    for where in (_refused_call, _work_of_all):
        for _ in range(2):
            _check(
                Row(lambda: same, ValueError, "again"),
                rank == size - 1,
                rank,
                size,
                where(Row(lambda: same, ValueError, "again"), rank == size - 1),
            )


@case
def an_error_of_work_inside_other_work_is_told_once(rank: int, size: int) -> None:
    row, fails = Row(lambda: KeyError("inner"), KeyError, "inner"), rank == size - 1
    inner = _work_of_all(row, fails)
    group = dist.default_group()

    def guarded() -> None:
        with abort_group_on_error(group, "a step"):
            on_all_ranks(group, "checkpoint.load", inner)

    _check(row, fails, rank, size, guarded)


@case
def a_call_that_one_rank_refuses_is_its_error_even_where_the_others_disagree(rank: int, size: int) -> None:
    if size < 3:
        return
    tensor: Any = None if rank == size - 1 else np.ones(3 + rank)
    with pytest.raises(UsageTypeError, match="expected a tensor") as caught:
        dist.all_reduce(tensor)
    assert ("refused its arguments" in str(caught.value)) == (rank != size - 1)
    dist.barrier()
