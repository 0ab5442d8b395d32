"""Cases of mistakes: arguments that are refused, ranks that disagree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin.distributed as dist
from resilin.distributed.wire.reduce_op import ReduceOp
from resilin.errors import CollectiveMismatch, UsageError
from resilin.testing.check_group.cases import case


@case
def arguments_of_a_wrong_type_are_refused_before_any_work(rank: int, size: int) -> None:
    array: Any = np.ones(3, np.float32)
    text: Any = "0"
    rank_alone: Any = 0
    sum_: Any = "sum"
    for call, said in (
        (lambda: dist.all_reduce(array, op=sum_), "expected a ReduceOp, as in op=ReduceOp.SUM, got 'sum'"),
        (lambda: dist.broadcast(array, group_src=text), "group_src: expected a rank in"),
        (lambda: dist.broadcast(array, src=text), "src: expected a rank, an integer, got '0'"),
        (lambda: dist.all_reduce(array, group=5), "group: expected a ProcessGroup"),
        (lambda: dist.new_group([text]), "must be distinct ranks"),
        (lambda: dist.new_group(rank_alone), "new_group: expected a list of ranks, got 0"),
        (lambda: dist.new_group([0, text]), "new_group: ranks .* must be distinct ranks"),
        (lambda: dist.new_subgroups_by_enumeration([rank_alone]), "new_subgroups_by_enumeration: expected a list of"),
        (lambda: dist.new_subgroups_by_enumeration(rank_alone + 1), "expected lists of ranks, got 1"),
    ):
        with pytest.raises(UsageError, match=said):
            call()


@case
def outputs_that_cannot_be_written_are_refused_with_what_to_pass(rank: int, size: int) -> None:
    wide = np.broadcast_to(np.ones(3, np.float32), (2, 3))
    frozen = np.ones(3)
    frozen.flags.writeable = False
    for tensor, said in (
        (wide, r": tensor is an expanded tensor, float32\[2, 3\].*pass tensor.contiguous\(\)"),
        (frozen, r": tensor is a read-only tensor, float64\[3\]"),
    ):
        with pytest.raises(UsageError, match="all_reduce" + said):
            dist.all_reduce(tensor)
        if size > 1:  # on its source it is only read: that rank hears of the others' mistake
            mistake: Any = pytest.raises(UsageError, match="broadcast" + said)
            with mistake if rank else pytest.raises(UsageError, match="rank [1-9] refused its arguments: .*" + said):
                dist.broadcast(tensor, src=0)
        received = tensor if rank == 0 else np.zeros(tensor.shape, tensor.dtype)
        dist.broadcast(received, src=0)
        assert (received == 1).all()
    dist.barrier()


@case
def sizes_of_parts_are_whole_and_not_negative(rank: int, size: int) -> None:
    array = np.ones(4, np.float32)
    rest: list[Any] = [0] * (size - 1)
    for sizes, said in (
        ([4.0, *rest], "expected whole numbers of rows, got 4.0"),
        ([5, -1, *rest[1:]], "from 0 on, got -1"),
        ("4", "expected a list of numbers"),
        (4, "expected a list of numbers"),
    ):
        wrong: Any = sizes
        with pytest.raises(UsageError, match=f"^all_to_all_single: input_split_sizes.*{said}"):
            dist.all_to_all_single(np.zeros(4, np.float32), array, [4, *rest], wrong)
        with pytest.raises(UsageError, match=f"^all_to_all_single: output_split_sizes.*{said}"):
            dist.all_to_all_single(np.zeros(4, np.float32), array, wrong, [4, *rest])
    dist.barrier()


@case
def all_to_all_names_split_sizes_that_do_not_fit(rank: int, size: int) -> None:
    if size < 2:
        return
    more = 1 if rank == 0 else 0  # rank 0 expects one element too many from everybody else
    sizes = [5 if r == rank else 5 + more for r in range(size)]
    outputs = [np.zeros(n, np.float32) for n in sizes]
    inputs = [np.ones(5, np.float32) for _ in range(size)]
    with pytest.raises(CollectiveMismatch, match="rank 1 sends 20 bytes to rank 0, which expects 24"):
        dist.all_to_all(outputs, inputs)
    assert not any(output.any() for output in outputs)
    dist.barrier()


@case
def a_mismatch_raises_on_all_ranks_shows_both_sides_and_leaves_the_group_usable(rank: int, size: int) -> None:
    if size < 2:
        return
    last = rank == size - 1

    def refused(call: Callable[[], Any], *words: str) -> None:
        with pytest.raises(CollectiveMismatch) as caught:
            call()
        for word in words:
            assert word in str(caught.value)

    for count in (10, 10_000):
        ours = np.ones(count, np.float32)
        refused(lambda n=count: dist.all_reduce(np.ones(n + last, np.float32)), f"[{count}]", f"[{count + 1}]")  # type: ignore[misc]
        kind = np.float64 if last else np.float32
        refused(lambda n=count, k=kind: dist.all_reduce(np.ones(n, k)), "float32", "float64")  # type: ignore[misc]
        refused(lambda o=ours: dist.all_reduce(o, ReduceOp.MAX if last else ReduceOp.SUM), "SUM", "MAX")  # type: ignore[misc]
        refused(lambda o=ours: dist.broadcast(o, 0) if last else dist.all_reduce(o), "broadcast", "all_reduce")  # type: ignore[misc]
        refused(lambda o=ours: dist.broadcast(o, 1 if last else 0), "root 0", "root 1")  # type: ignore[misc]
        pair = np.zeros((size * count, 2), kind)
        refused(lambda p=pair: dist.all_to_all_single(p, p), "float32[*, 2]", "float64[*, 2]")  # type: ignore[misc]
        refused(lambda p=pair: dist.all_to_all([*p[:size]], [*p[:size]]), "float32[*]", "float64[*]")  # type: ignore[misc]
        rows = np.zeros((size * count, 2) if last else size * count * 2, np.float32)
        refused(lambda r=rows: dist.all_to_all_single(r, r), "float32[*]", "float32[*, 2]")  # type: ignore[misc]
        assert (ours == 1).all()
        dist.all_reduce(ours)
        assert (ours == size).all()
