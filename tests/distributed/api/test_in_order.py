"""Calls that wait for their turn work on what the calls before them wrote, also where memory is not contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import distributed as dist
from resilin.distributed.agreement import compare
from resilin.distributed.wire.shard_tree import Plan
from resilin.testing.ranks import TRANSPORTS, run_ranks

SIZE = 2
TOTAL = 3.0  # of what the ranks bring


def _strided(value: float) -> Any:
    return np.full((4, 2), value, np.float32)[:, 1]


def _contiguous(value: float) -> Any:
    return np.full(4, value, np.float32)


def _column(value: float) -> Any:
    return resilin.full((4, 3), value)[:, 1]


def _zeros(rows: int = 1) -> Any:
    return np.zeros(4 * rows, np.float32)


def _at(root: int, given: Any) -> Any:
    return given if dist.get_rank() == root else None


def _tree(a: Any, out: Any) -> Any:
    plan = Plan(SIZE, SIZE)
    parts = {node: a for node in plan.subtrees(dist.get_rank())}
    return dist.tree_all_reduce(parts, out, plan, async_op=True)


# starts a call that reads `a`, into `out` of two rows where it writes elsewhere; what `out[0]`, or `a[0]`, is then
Start = Callable[[Any, Any], Any]
READERS: dict[str, tuple[Start, float]] = {
    "all_reduce": (lambda a, out: dist.all_reduce(a, async_op=True), 2 * TOTAL),
    "broadcast": (lambda a, out: dist.broadcast(a, 1, async_op=True), TOTAL),
    "reduce": (lambda a, out: dist.reduce(a, 0, async_op=True), 2 * TOTAL),
    "all_gather": (lambda a, out: dist.all_gather(list(out.reshape(2, 4)), a, async_op=True), TOTAL),
    "all_gather_into_tensor": (lambda a, out: dist.all_gather_into_tensor(out, a, async_op=True), TOTAL),
    "reduce_scatter": (lambda a, out: dist.reduce_scatter(out[:4], [a, a], async_op=True), 2 * TOTAL),
    "reduce_scatter_tensor": (lambda a, out: dist.reduce_scatter_tensor(out[:2], a, async_op=True), 2 * TOTAL),
    "gather": (lambda a, out: dist.gather(a, _at(0, list(out.reshape(2, 4))), async_op=True), TOTAL),
    "gather_single": (lambda a, out: dist.gather_single(a, _at(0, out), async_op=True), TOTAL),
    "scatter": (lambda a, out: dist.scatter(out[:4], _at(0, [a, a]), async_op=True), TOTAL),
    "all_to_all": (lambda a, out: dist.all_to_all(list(out.reshape(2, 4)), [a, a], async_op=True), TOTAL),
    "all_to_all_single": (lambda a, out: dist.all_to_all_single(out[:4], a, async_op=True), TOTAL),
    "tree_all_reduce": (lambda a, out: _tree(a, out[:4]), 2 * TOTAL),
}  # fmt: skip
ELSEWHERE = set(READERS) - {"all_reduce", "broadcast", "reduce"}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("in_a_block", [False, True])
@pytest.mark.parametrize("made", [_contiguous, _strided, _column])
def test_a_call_reads_what_the_call_before_it_wrote(made: Any, in_a_block: bool, transport: str) -> None:
    def work(rank: int) -> None:
        for name, (start, expected) in READERS.items():
            a, out = made(rank + 1.0), _zeros(2)
            if in_a_block:
                with dist._coalescing_manager():
                    dist.all_reduce(a)
                    start(a, out)
            else:
                works = [dist.all_reduce(a, async_op=True), start(a, out)]
                for one in works:
                    one.wait()
            if rank == 0:
                assert float(out[0] if name in ELSEWHERE else a[0]) == expected, name

    run_ranks(SIZE, work, transport=transport).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_views_that_overlap_are_reduced_one_after_the_other(transport: str) -> None:
    def work(rank: int) -> None:
        one_by_one, together, later = (np.arange(12, dtype=np.float32) for _ in range(3))

        def views(of: Any) -> list[Any]:
            return [of[:8], of[4:], of[::2], of[1::2]]

        for view in views(one_by_one):
            dist.all_reduce(view)
        with dist._coalescing_manager():
            for view in views(together):
                dist.all_reduce(view)
        works: list[Any] = [dist.all_reduce(view, async_op=True) for view in views(later)]
        for each in works:
            each.wait()
        assert together.tolist() == later.tolist() == one_by_one.tolist()

    run_ranks(SIZE, work, transport=transport).results()


def test_a_call_that_compares_facts_reads_late_too() -> None:
    def work(rank: int) -> None:
        a, out = _strided(rank + 1.0), _zeros(2)
        first: Any = dist.all_reduce(a, async_op=True)
        facts = compare.Facts("this test", [], "nothing")
        second: Any = compare.all_gather_into_tensor(out, a, facts, dist.default_group(), async_op=True)
        first.wait()
        second.wait()
        assert (out == TOTAL).all()

    run_ranks(SIZE, work).results()
