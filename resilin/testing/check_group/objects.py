"""Cases of objects, which travel pickled."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin.distributed as dist
import resilin.nn as nn
from resilin.core.tensor import Tensor
from resilin.distributed.wire.reduce_op import DTYPES
from resilin.errors import DistError, UsageError
from resilin.testing.check_group.cases import case


@case
def objects_travel(rank: int, size: int) -> None:
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 3000 * rank})
    assert [len(thing["text"]) for thing in gathered] == [3000 * r for r in range(size)]
    box: list[Any] = ["first", {"second": 2}] if rank == 0 else [None, None]
    dist.broadcast_object_list(box, src=0)
    assert box == ["first", {"second": 2}]
    rootlist: list[Any] | None = [None] * size if rank == size - 1 else None
    dist.gather_object((rank, "y"), rootlist, dst=size - 1)
    assert rootlist is None or rootlist == [(r, "y") for r in range(size)]
    out: list[Any] = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert out == [f"for {rank}"]


@case
def places_beyond_the_ranks_stay_and_defaults_mean_rank_0(rank: int, size: int) -> None:
    box: list[Any] = ["before"] * (size + 1)
    dist.all_gather_object(box, rank)
    assert box == [*range(size), "before"]
    gathered: list[Any] = [None] * size if rank == 0 else []
    dist.gather_object(rank, gathered)
    assert gathered == (list(range(size)) if rank == 0 else [])
    one = [rank]
    dist.broadcast_object_list(one)
    assert one == [0]
    dist.scatter_object_list(one, [10 + r for r in range(size)] if rank == 0 else None)
    assert one == [10 + rank]
    not_a_list: Any = 5
    with pytest.raises(TypeError, match="expected a list"):
        dist.scatter_object_list(not_a_list, None)
    with pytest.raises(UsageError, match="places at least"):
        dist.all_gather_object([], rank)


@case
def weights_only_takes_plain_values_and_tensors_and_nothing_else(rank: int, size: int) -> None:
    plain = {
        "rank": rank,
        "t": Tensor._wrap(np.ones(3, np.float32)),
        "a": np.arange(2),
        "set": {1j, None},
        "d": DTYPES[10],
        "state": nn.Linear(2, 2).state_dict(),
    }
    box: list[Any] = [None] * size
    dist.all_gather_object(box, plain, weights_only=True)
    assert [thing["rank"] for thing in box] == list(range(size))
    assert box[0]["t"]._array.tolist() == [1.0] * 3
    assert box[0]["d"] == DTYPES[10]
    nn.Linear(2, 2).load_state_dict(box[0]["state"])
    assert box[0]["state"]._metadata == plain["state"]._metadata  # type: ignore[attr-defined]
    one: list[Any] = [plain]
    dist.broadcast_object_list(one, src=0, weights_only=True)
    assert one[0]["rank"] == 0
    with pytest.raises(DistError, match=r"weights_only=True: .* holds subprocess\.Popen"):
        dist.all_gather_object(box, _runs_code, weights_only=True)
    dist.all_gather_object(box, rank)
    assert box == list(range(size))


class _RunsCode:
    def __reduce__(self) -> Any:
        return subprocess.Popen, (["false"],)


_runs_code = _RunsCode()


class _Unpicklable:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("this object does not travel")


@case
def an_object_that_cannot_be_pickled_is_an_error_on_all_ranks_at_once(rank: int, size: int) -> None:
    last = size - 1
    thing: Any = _Unpicklable() if rank == last else "fine"
    one = [None]
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_gather_object([None] * size, thing),
        lambda: dist.gather_object(thing, [None] * size if rank == 0 else None, dst=0),
        lambda: dist.broadcast_object_list([thing], src=last),
        lambda: dist.scatter_object_list(one, [thing] * size if rank == last else None, src=last),
        lambda: dist.scatter_object_list(one, [1] * (size + 1) if rank == last else None, src=last),
    ]
    if size > 1 and rank in (0, last):
        calls.append(lambda: dist.send_object_list([thing], 0) if rank == last else dist.recv_object_list(one, last))
    for i, call in enumerate(calls):
        with pytest.raises(UsageError) as caught:
            call()
        asked = f"needs {size} objects, got {size + 1}" if i == 4 else "expected an object that pickle can write"
        assert asked in str(caught.value)
        assert rank == last or f"rank {last} refused its arguments" in str(caught.value)
    box: list[Any] = [None] * size
    dist.all_gather_object(box, rank)
    assert box == list(range(size))


@case
def a_list_to_gather_objects_into_is_needed_on_the_destination_and_only_there(rank: int, size: int) -> None:
    last = size - 1
    for mistaken, given in ((rank == last, None), (rank == 0, [None] * size)):
        if size == 1 and given is not None:
            continue
        places = given if mistaken else [None] * size if rank == last else None
        with pytest.raises(UsageError) as caught:
            dist.gather_object(rank, places, dst=last)
        assert str(caught.value).startswith("gather_object, " if mistaken else "gather_object #")
        assert f"expected {size} places on the destination, rank {last}" in str(caught.value)
    found: list[Any] = [None] * size
    dist.gather_object(rank, found if rank == last else None, dst=last)
    assert rank != last or found == list(range(size))
