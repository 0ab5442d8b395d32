"""Ranks that call different things: every one of them learns it at once, sees both sides, and can go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.distributed.api import coalescing
from resilin.distributed.backends import socket
from resilin.distributed.backends.socket import SocketBackend
from resilin.distributed.wire.reduce_op import _make_nccl_premul_sum
from resilin.distributed.wire.shard_tree import plan
from resilin.errors import CollectiveMismatch, CollectiveTimeout
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks

PLACES = [("shm", 2), ("shm", 4), ("unix", 2), ("tcp", 2), ("tcp", 3), ("hosts", 4)]
SIZES = (3, 3000)  # elements: what travels with the call, and what does not

Odd = bool  # whether this is the rank that does otherwise
Step = Callable[[Odd, int, int], Any]  # (odd, elements, ranks)


def _ones(count: int, dtype: Any = np.float32) -> Any:
    return np.ones(count, dtype)


def _rows(size: int, count: int, dtype: Any = np.float32) -> list[Any]:
    return [np.ones(count, dtype) for _ in range(size)]


def _at_root(root: int, rows: list[Any]) -> list[Any] | None:
    return rows if dist.get_rank() == root else None


def _last(size: int) -> int:
    return size - 1


WORDS: dict[str, tuple[Step, tuple[str, str]]] = {
    "shape of all_reduce": (lambda odd, n, size: dist.all_reduce(_ones(n + odd)), ("[{n}]", "[{n1}]")),
    "dimensions of all_reduce": (
        lambda odd, n, size: dist.all_reduce(np.ones((n, 1) if odd else (n,), np.float32)), ("[{n}]", "[{n}, 1]"),
    ),
    "dimensions beyond the eighth": (
        lambda odd, n, size: dist.all_reduce(np.ones((1,) * 7 + ((n, 2) if odd else (2, n)), np.float32)),
        ("1, 1, ...", "tensors are unchanged"),
    ),
    "nothing and something": (lambda odd, n, size: dist.all_reduce(_ones(0 if odd else n)), ("[{n}]", "[0]")),
    "dtype of all_reduce": (
        lambda odd, n, size: dist.all_reduce(_ones(n, np.int32 if odd else np.float32)), ("float32", "int32"),
    ),
    "op of all_reduce": (
        lambda odd, n, size: dist.all_reduce(_ones(n), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM), ("SUM", "MAX"),
    ),
    "SUM and AVG": (
        lambda odd, n, size: dist.all_reduce(_ones(n), dist.ReduceOp.AVG if odd else dist.ReduceOp.SUM), ("SUM", "AVG"),
    ),
    "SUM and PREMUL_SUM": (
        lambda odd, n, size: dist.all_reduce(_ones(n), _make_nccl_premul_sum(2.0) if odd else dist.ReduceOp.SUM),
        (" SUM", "PREMUL_SUM"),
    ),
    "kind": (
        lambda odd, n, size: dist.broadcast(_ones(n), 0) if odd else dist.all_reduce(_ones(n)),
        ("broadcast", "all_reduce"),
    ),
    "barrier and all_reduce": (
        lambda odd, n, size: dist.barrier() if odd else dist.all_reduce(_ones(n)), ("barrier", "all_reduce"),
    ),
    "all_gather and all_to_all": (
        lambda odd, n, size: dist.all_to_all(_rows(size, n), _rows(size, n)) if odd
        else dist.all_gather(_rows(size, n), _ones(n)),
        ("all_to_all", "all_gather"),
    ),
    "root of broadcast": (lambda odd, n, size: dist.broadcast(_ones(n), int(odd)), ("root 0", "root 1")),
    "shape of broadcast": (lambda odd, n, size: dist.broadcast(_ones(n + odd), 0), ("[{n}]", "[{n1}]")),
    "dtype of broadcast": (
        lambda odd, n, size: dist.broadcast(_ones(n, np.int32 if odd else np.float32), 0), ("float32", "int32"),
    ),
    "root of reduce": (lambda odd, n, size: dist.reduce(_ones(n), int(odd)), ("root 0", "root 1")),
    "op of reduce": (
        lambda odd, n, size: dist.reduce(_ones(n), 0, dist.ReduceOp.MIN if odd else dist.ReduceOp.SUM), ("SUM", "MIN"),
    ),
    "shape of all_gather": (
        lambda odd, n, size: dist.all_gather(_rows(size, n + odd), _ones(n + odd)), ("[{n}]", "[{n1}]"),
    ),
    "dtype of all_gather_into_tensor": (
        lambda odd, n, size: dist.all_gather_into_tensor(
            _ones(n * size, kind := np.int64 if odd else np.float32), _ones(n, kind)
        ),
        ("float32", "int64"),
    ),
    "shape of reduce_scatter": (
        lambda odd, n, size: dist.reduce_scatter(_ones(n + odd), _rows(size, n + odd)), ("[{n}]", "[{n1}]"),
    ),
    "op of reduce_scatter_tensor": (
        lambda odd, n, size: dist.reduce_scatter_tensor(
            _ones(n), _ones(n * size), dist.ReduceOp.PRODUCT if odd else dist.ReduceOp.SUM
        ),
        ("SUM", "PRODUCT"),
    ),
    "SUM and PREMUL_SUM of reduce_scatter_tensor": (
        lambda odd, n, size: dist.reduce_scatter_tensor(
            _ones(n), _ones(n * size), _make_nccl_premul_sum(2.0) if odd else dist.ReduceOp.SUM
        ),
        (" SUM", "PREMUL_SUM"),
    ),
    "root of gather": (
        lambda odd, n, size: dist.gather(_ones(n), _at_root(_last(size) * odd, _rows(size, n)), _last(size) * odd),
        ("root 0", "root {last}"),
    ),
    "shape of gather": (
        lambda odd, n, size: dist.gather(_ones(n + odd), _at_root(0, _rows(size, n + odd)), 0), ("[{n}]", "[{n1}]"),
    ),
    "root of scatter": (
        lambda odd, n, size: dist.scatter(_ones(n), _at_root(_last(size) * odd, _rows(size, n)), _last(size) * odd),
        ("root 0", "root {last}"),
    ),
    "shape of scatter": (
        lambda odd, n, size: dist.scatter(_ones(n + odd), _at_root(0, _rows(size, n + odd)), 0), ("[{n}]", "[{n1}]"),
    ),
    "dtype of all_to_all": (
        lambda odd, n, size: dist.all_to_all(
            _rows(size, n, kind := np.int32 if odd else np.float32), _rows(size, n, kind)
        ),
        ("float32", "int32"),
    ),
    "rows of all_to_all_single": (
        lambda odd, n, size: dist.all_to_all_single(
            rows := np.ones((n * size, 2) if odd else (n * size,), np.float32), rows.copy()
        ),
        ("float32[*]", "float32[*, 2]"),
    ),
    "split sizes of all_to_all": (
        lambda odd, n, size: dist.all_to_all([_ones(n + (odd and r == 0)) for r in range(size)], _rows(size, n)),
        ("rank 0 sends {bytes} bytes to rank {last}, which expects {bytes1}", "tensors are unchanged"),
    ),
    "split sizes of all_to_all_single": (
        lambda odd, n, size: dist.all_to_all_single(
            _ones(n * size + odd), _ones(n * size), [n + (odd and r == 0) for r in range(size)]
        ),
        ("rank 0 sends {bytes} bytes to rank {last}, which expects {bytes1}", "tensors are unchanged"),
    ),
    "order of a block's tensors": (
        lambda odd, n, size: coalescing.all_reduce_coalesced([_ones(2), _ones(6)] if odd else [_ones(6), _ones(2)]),
        ("ranks disagree", "tensors are unchanged"),
    ),
    "number of a block's tensors": (
        lambda odd, n, size: coalescing.all_reduce_coalesced([_ones(8)] if odd else [_ones(6), _ones(2)]),
        ("all_reduce", "float32[8]"),
    ),
    "all_gather_object and broadcast_object_list": (
        lambda odd, n, size: dist.broadcast_object_list(["x" * n]) if odd
        else dist.all_gather_object([None] * size, "x" * n),
        ("broadcast", "all_gather"),
    ),
    "all_gather_object and gather_object": (
        lambda odd, n, size: dist.gather_object("x" * n, _at_root(0, [None] * size)) if odd
        else dist.all_gather_object([None] * size, "x" * n),
        ("all_gather", "gather"),
    ),
}  # fmt: skip


def _attack(rank: int, what: str, ranks: int) -> list[str]:
    """What was not as it should be when the last rank did otherwise."""
    step, words = WORDS[what]
    odd, found = rank == ranks - 1, []
    for n in SIZES:
        begin, said = time.monotonic(), "nothing"
        try:
            step(odd, n, ranks)
        except CollectiveMismatch as error:
            said = str(error)
        if time.monotonic() - begin > PATIENCE_S:  # of twice that, the group's limit
            found.append(f"{what}, {n} elements: not prompt")
        values = {"n": n, "n1": n + 1, "bytes": 4 * n, "bytes1": 4 * n + 4, "last": ranks - 1}
        for word in words:
            if word.format(**values) not in said:
                found.append(f"{what}, {n} elements: expected {word.format(**values)!r}, got {said}")
        check = np.full(n, 2.0)
        dist.all_reduce(check)
        if not (check == 2.0 * ranks).all():
            found.append(f"{what}, {n} elements: the group computes nonsense afterwards")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "ranks"), PLACES)
def test_a_mismatch_raises_on_all_ranks_shows_both_sides_and_leaves_the_group_usable(
    transport: str, ranks: int
) -> None:
    problems: list[str] = []
    for what in WORDS:
        outcome = run_ranks(ranks, _attack, what, ranks, transport=transport, timeout_s=2 * PATIENCE_S)
        problems += [f"rank {rank}: {text}" for rank, found in outcome.values.items() for text in found]
        problems += [f"rank {rank}: {what}: {error!r}" for rank, error in outcome.errors.items()]
    assert problems == []


def _without_native_code(rank: int) -> None:
    """From here on this rank moves bytes as an installation without native code does."""
    group = dist.default_group()
    assert isinstance(group._host, SocketBackend)
    group._host._native = None


@pytest.mark.slow
@pytest.mark.parametrize("without", [{0}, {1}, {0, 1, 2}], ids=["first", "second", "all"])
def test_ranks_with_and_without_native_code_find_a_mismatch_alike(without: set[int]) -> None:
    def attack(rank: int, what: str) -> list[str]:
        if rank in without:
            _without_native_code(rank)
        return _attack(rank, what, 3)

    outcomes = [run_ranks(3, attack, what, transport="tcp", timeout_s=5.0) for what in WORDS]
    assert [found for outcome in outcomes for found in outcome.results()] == [[]] * 3 * len(WORDS)


@pytest.mark.slow
def test_a_mismatch_is_found_where_ranks_are_so_many_that_they_hear_through_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "TOGETHER", 2)
    for what in WORDS:
        assert run_ranks(3, _attack, what, 3, transport="tcp", timeout_s=5.0).results() == [[]] * 3, what


@pytest.mark.parametrize(("transport", "ranks"), PLACES)
def test_no_tensor_changes_where_ranks_disagree(transport: str, ranks: int) -> None:
    """Also not where data was on its way already: of more bytes than are sent before all agree."""

    def attack(rank: int) -> None:
        odd, n = rank == ranks - 1, 300_000
        mine, whole = np.full(n + odd, rank, np.float32), np.full(ranks * (n + odd), rank, np.float32)
        rows = np.split(np.full(ranks * (n + odd), rank, np.float32), ranks)
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_reduce(mine),
            lambda: dist.broadcast(mine, 0),
            lambda: dist.reduce(mine, 0),
            lambda: dist.all_gather_into_tensor(whole, mine),
            lambda: dist.all_gather(rows, mine),
            lambda: dist.reduce_scatter_tensor(mine, whole),
            lambda: dist.gather(mine, _at_root(0, rows), 0),
            lambda: dist.scatter(mine, _at_root(0, rows), 0),
            lambda: dist.all_to_all(rows, np.split(whole, ranks)),
        ]
        for call in calls:
            with pytest.raises(CollectiveMismatch):
                call()
            assert (mine == rank).all()
            assert (whole == rank).all()
            assert (np.stack(rows) == rank).all()
        check = np.full(n, 1.0 + rank)
        dist.all_reduce(check)
        assert (check == ranks * (ranks + 1) / 2).all()

    assert run_ranks(ranks, attack, transport=transport, timeout_s=10.0).results() == [None] * ranks


@pytest.mark.parametrize(("transport", "ranks"), [("shm", 3), ("tcp", 3), ("hosts", 4)])
def test_an_asynchronous_mismatch_is_raised_by_every_wait(transport: str, ranks: int) -> None:
    def attack(rank: int) -> None:
        odd = rank == ranks - 1
        works = [dist.all_reduce(_ones(9 + (odd and number == 1)), async_op=True) for number in range(3)]
        if odd:  # a call of another kind of waiting is no mismatch
            dist.barrier()
        else:
            works.append(dist.barrier(async_op=True))
        for number, work in enumerate(works):
            assert work is not None
            if number == 1:
                with pytest.raises(CollectiveMismatch, match=r"float32\[9\].*float32\[10\]"):
                    work.wait()
            else:
                work.wait()

    assert run_ranks(ranks, attack, transport=transport, timeout_s=5.0).results() == [None] * ranks


@pytest.mark.parametrize(("transport", "ranks"), PLACES)
def test_calls_in_another_order_mismatch_each_until_ranks_are_in_step_again(transport: str, ranks: int) -> None:
    def attack(rank: int) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_reduce(_ones(5)),
            lambda: dist.broadcast(_ones(5), 0),
        ]
        for call in calls if rank else reversed(calls):
            with pytest.raises(CollectiveMismatch, match=r"all_reduce.*broadcast|broadcast.*all_reduce"):
                call()
        dist.barrier()

    assert run_ranks(ranks, attack, transport=transport, timeout_s=5.0).results() == [None] * ranks


def test_subgroups_called_in_another_order_time_out_and_name_who_is_missing() -> None:
    """Each group sees one call only, so nothing can be compared: `resilin trace` shows the ring."""

    def attack(rank: int) -> None:
        first, second = dist.new_group([0, 1], timeout=0.5), dist.new_group([0, 1], timeout=0.5)
        group = first if rank == 0 else second
        with pytest.raises(CollectiveTimeout, match=f"rank {1 - rank} did not arrive"):
            dist.all_reduce(_ones(4), group=group)

    assert run_ranks(2, attack, timeout_s=5.0).results() == [None, None]


def test_a_new_group_that_not_all_ranks_make_is_refused_on_all_of_them_and_the_group_goes_on() -> None:
    def attack(rank: int) -> None:
        call: Callable[[], Any] = lambda: dist.all_reduce(_ones(4))  # noqa: E731
        if rank == 0:
            call = lambda: dist.new_group([0, 1], timeout=0.5)  # noqa: E731
        with pytest.raises(CollectiveMismatch, match=r"called new_group #0 of ranks \[0, 1\], rank 1 called all_"):
            call()
        dist.barrier()

    assert run_ranks(2, attack).results() == [None, None]


@pytest.mark.parametrize("descriptions", [("mine", None), ("mine", "yours")])
def test_groups_of_other_descriptions_are_refused_on_all_ranks(descriptions: tuple[str | None, str | None]) -> None:
    def attack(rank: int) -> None:
        with pytest.raises(CollectiveMismatch, match="the same groups in the same order, of one group_desc"):
            dist.new_group([0, 1], group_desc=descriptions[rank])
        made = dist.new_group([0, 1], group_desc="ours")
        assert made is not None
        dist.barrier(made)

    assert run_ranks(2, attack).results() == [None, None]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_message_of_another_shape_or_dtype_is_refused_where_it_is_received_and_the_group_goes_on(
    transport: str,
) -> None:
    """Who sends has gone on by then, as in PyTorch; nothing is written into the receiver's tensor."""

    def attack(rank: int) -> None:
        if rank == 0:
            dist.send(_ones(4), 1)
            dist.send(_ones(5, np.int32), 1)
            dist.send(_ones(5), 1)
        else:
            into = np.zeros(5, np.float32)
            for sent in (r"float32\[4\]", r"int32\[5\]"):
                with pytest.raises(CollectiveMismatch, match=rf"{sent}.*float32\[5\]|float32\[5\].*{sent}"):
                    dist.recv(into, 0)
                assert not into.any()
            dist.recv(into, 0)
            assert into.all()
        dist.barrier()

    assert run_ranks(2, attack, transport=transport, timeout_s=5.0).results() == [None, None]


def _calls(size: int) -> dict[str, Callable[[int], Any]]:
    """One call of every kind, for a number of elements."""
    return {
        "barrier": lambda n: dist.barrier(),
        "all_reduce": lambda n: dist.all_reduce(_ones(n)),
        "broadcast": lambda n: dist.broadcast(_ones(n), 0),
        "reduce": lambda n: dist.reduce(_ones(n), 0),
        "all_gather": lambda n: dist.all_gather(_rows(size, n), _ones(n)),
        "reduce_scatter": lambda n: dist.reduce_scatter(_ones(n), _rows(size, n)),
        "gather": lambda n: dist.gather(_ones(n), _at_root(0, _rows(size, n)), 0),
        "scatter": lambda n: dist.scatter(_ones(n), _at_root(0, _rows(size, n)), 0),
        "all_to_all": lambda n: dist.all_to_all(_rows(size, n), _rows(size, n)),
        "tree_all_reduce": lambda n: dist.tree_all_reduce(
            {node: _ones(n) for node in plan(size, size).subtrees(dist.get_rank())}, _ones(n), plan(size, size)
        ),
    }


@pytest.mark.parametrize(("transport", "ranks"), PLACES)
def test_every_kind_against_every_other_of_any_size_raises_on_all_ranks(transport: str, ranks: int) -> None:
    def attack(rank: int) -> list[str]:
        found, calls = [], _calls(ranks)
        for (one, other), (n, m) in product(permutations(calls, 2), product((3, 30_000), repeat=2)):
            try:
                calls[other](m) if rank == ranks - 1 else calls[one](n)
                found.append(f"{one} of {n} and {other} of {m}: nothing was raised")
            except CollectiveMismatch as error:
                if one not in str(error) or other not in str(error):
                    found.append(f"{one} of {n} and {other} of {m}: {error}")
        check = np.ones(4)
        dist.all_reduce(check)
        assert (check == ranks).all()
        return found

    outcome = run_ranks(ranks, attack, transport=transport, timeout_s=10.0)
    assert [problem for found in outcome.results() for problem in found] == []


class Breaks(list):
    """A list that cannot be read."""

    def __iter__(self) -> Iterator[Any]:
        raise ZeroDivisionError("a list of one's own")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (
            lambda: dist.all_gather(Breaks([np.ones(3)] * 2), np.ones(3)),
            lambda: dist.all_gather([np.ones(3), np.ones(3)], np.ones(3)),
        ),
        (
            lambda: dist.reduce_scatter(np.ones(3), Breaks([np.ones(3)] * 2)),
            lambda: dist.reduce_scatter(np.ones(3), [np.ones(3), np.ones(3)]),
        ),
        (
            lambda: dist.all_to_all([np.ones(3), np.ones(3)], Breaks([np.ones(3)] * 2)),
            lambda: dist.all_to_all([np.ones(3), np.ones(3)], [np.ones(3), np.ones(3)]),
        ),
    ],
)
def test_an_argument_that_cannot_be_looked_at_on_one_rank_is_told_to_all_of_them(wrong: Any, right: Any) -> None:
    def work(rank: int) -> None:
        said = "a list of one's own" if rank == 0 else "rank 0 refused its arguments: a list of one's own"
        with pytest.raises(ZeroDivisionError, match=said):
            wrong() if rank == 0 else right()
        dist.barrier()

    run_ranks(2, work, timeout_s=2 * PATIENCE_S).results()
