"""Facts that go with a collective: equal ones cost nothing, of others every rank hears which, before data moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.distributed.agreement import compare
from resilin.distributed.agreement.compare import Facts
from resilin.errors import CollectiveMismatch
from resilin.testing.ranks import run_ranks

WORLD = 3


def facts(**values: Any) -> Facts:
    return Facts("Thing", [("", values)], "all must set the same")


def gather(rank: int, said: Facts, async_op: bool) -> np.ndarray:
    out = np.zeros(WORLD, np.float32)
    group = dist.default_group()
    work = compare.all_gather_into_tensor(out, np.full(1, rank + 1, np.float32), said, group, async_op)
    if work is not None:
        work.wait()
    return out


def send(rank: int, said: Facts, async_op: bool) -> np.ndarray:
    out = np.full(WORLD, rank, np.float32)
    compare.broadcast(out, 1, said, dist.default_group())
    return out


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("call", [gather, send])
@pytest.mark.parametrize(
    ("zero", "last", "says"),
    [
        ({"lr": 0.1}, {"lr": 0.2}, r"Thing: lr is 0\.1 on rank 0 and 0\.2 on rank 2; all must set the same"),
        ({"lr": 0.1}, {}, r"lr is 0\.1 on rank 0 and absent on rank 2"),
        ({}, {"lr": 0.1}, r"lr is absent on rank 0 and 0\.1 on rank 2"),
        ({"a": [1, 2.0]}, {"a": [1, 3.0]}, r"a is \[1, 2\.0\] on rank 0 and \[1, 3\.0\] on rank 2"),
        ({"a": None, "b": float("nan")}, {"a": "x", "b": float("nan")}, "a is None on rank 0 and x on rank 2"),
    ],
)
def test_facts_that_differ_are_named_on_all_ranks_before_data_moves(
    zero: Mapping[str, Any], last: Mapping[str, Any], says: str, call: Any, async_op: bool
) -> None:
    def work(rank: int) -> None:
        with pytest.raises(CollectiveMismatch, match=says):
            call(rank, facts(**(last if rank == 2 else zero)), async_op)
        assert call(rank, facts(**zero), async_op).tolist() == ([1, 2, 3] if call is gather else [1, 1, 1])

    run_ranks(WORLD, work).results()


@pytest.mark.parametrize("call", [gather, send])
def test_facts_that_differ_by_rounding_are_alike(call: Any) -> None:
    near = 0.1, float(np.nextafter(0.1, 1))

    def work(rank: int) -> None:
        said = facts(lr=near[rank == 1], other=[near[rank == 2]])
        assert call(rank, said, False).tolist() == ([1, 2, 3] if call is gather else [1, 1, 1])

    run_ranks(WORLD, work).results()


def test_other_calls_are_told_apart_as_ever() -> None:
    def wrong(rank: int) -> None:
        kind = np.float64 if rank else np.float32
        group = dist.default_group()
        compare.all_gather_into_tensor(np.zeros(WORLD, kind), np.zeros(1, kind), facts(lr=rank), group)

    def work(rank: int) -> None:
        with pytest.raises(CollectiveMismatch, match=r"rank 0 called all_gather .* called barrier"):
            dist.barrier() if rank else gather(rank, facts(lr=0.1), False)
        with pytest.raises(CollectiveMismatch, match=r"float32.*float64"):
            wrong(rank)
        dist.barrier()

    run_ranks(WORLD, work).results()
