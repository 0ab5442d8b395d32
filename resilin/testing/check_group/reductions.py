"""Cases of what is reduced: every op and dtype, sizes and layouts, equal bits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.distributed.wire.reduce_op import DTYPES, ReduceOp
from resilin.errors import UsageError
from resilin.testing.check_group.cases import SIZES, case
from resilin.testing.rank_data import data, defined, expected, same


@case
def all_reduce_gives_the_documented_result_for_every_op_and_dtype(rank: int, size: int) -> None:
    for dtype in DTYPES:
        for op in ReduceOp:
            if not defined(op, dtype):
                with pytest.raises(UsageError):
                    dist.all_reduce(data(rank, 3, dtype), op)
                continue
            for count in (33, 4097):
                array = data(rank, count, dtype)
                dist.all_reduce(array, op)
                same(array, expected(op, [data(r, count, dtype) for r in range(size)]))


@case
def all_reduce_takes_any_size_and_layout(rank: int, size: int) -> None:
    float32 = np.dtype(np.float32)
    for count in (*SIZES, 400_000):
        array = data(rank, count, float32)
        dist.all_reduce(array)
        same(array, expected(ReduceOp.SUM, [data(r, count, float32) for r in range(size)]))
    strided = data(rank, (200, 90), float32).T[::2]
    dist.all_reduce(strided)
    same(strided, expected(ReduceOp.SUM, [data(r, (200, 90), float32).T[::2] for r in range(size)]))
    scalar = np.array(float(rank))
    dist.all_reduce(scalar, ReduceOp.MAX)
    assert scalar == size - 1
    foreign = np.frombuffer(bytearray(80_000), np.float64)  # not in an arena: staged
    foreign += rank
    dist.all_reduce(foreign)
    assert (foreign == sum(range(size))).all()


@case
def all_reduce_gives_equal_bits_on_all_ranks(rank: int, size: int) -> None:
    for count in (100, 5000, 300_000):
        array = np.random.default_rng(rank).standard_normal(count).astype(np.float32)
        dist.all_reduce(array, ReduceOp.AVG)
        digests: list[Any] = [None] * size
        dist.all_gather_object(digests, hashlib.sha256(array.tobytes()).hexdigest())
        assert len(set(digests)) == 1


@case
def nan_wins_min_and_max(rank: int, size: int) -> None:
    for count in (8, 5000):
        array = np.full(count, float(rank), np.float32)
        array[rank % count] = np.nan
        dist.all_reduce(array, ReduceOp.MAX)
        assert np.isnan(array[: min(size, count)]).all()
        assert (array[size:] == size - 1).all()


@case
def tensors_count_the_write(rank: int, size: int) -> None:
    tensor = Tensor._wrap(np.ones(5, np.float32))
    before = tensor._version
    dist.all_reduce(tensor)
    assert tensor._array.tolist() == [size] * 5
    assert tensor._version == before + 1


@case
def reduce_changes_the_root_only(rank: int, size: int) -> None:
    dtype = np.dtype(np.float64)
    for count in SIZES:
        for root in {0, size - 1}:
            array = data(rank, count, dtype)
            dist.reduce(array, dst=root)
            everybody = [data(r, count, dtype) for r in range(size)]
            same(array, expected(ReduceOp.SUM, everybody) if rank == root else everybody[rank])


@case
def reduce_scatter_gives_each_rank_its_part(rank: int, size: int) -> None:
    dtype = np.dtype(np.float32)
    for count in SIZES:
        output = np.zeros(count, dtype)
        dist.reduce_scatter_tensor(output, data(rank, size * count, dtype))
        everybody = [data(r, size * count, dtype).reshape(size, count)[rank] for r in range(size)]
        same(output, expected(ReduceOp.SUM, everybody))
        dist.reduce_scatter(output, list(data(rank, (size, count), dtype)), ReduceOp.AVG)
        same(output, expected(ReduceOp.AVG, everybody))
