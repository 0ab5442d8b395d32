"""The memory of a device: counted exactly around CuPy's pool, and told of when there is none left."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import standin_memory

import resilin as torch
from resilin.core import held_memory
from resilin.core.backends import counted_pool
from resilin.core.backends.counted_pool import CountedPool, Counter

MIB = 1 << 20
COUNTERS = ("python", *(["native"] if counted_pool.native is not None else []))  # each where it is there


class _NoArray:
    """Nothing is an instance of it."""


@pytest.fixture(params=COUNTERS)
def pool(request, monkeypatch):
    """A pool of its own in front of the pretended driver."""
    if request.param == "python":
        monkeypatch.setattr(counted_pool, "native", None)
    cuda = SimpleNamespace(
        Memory=standin_memory.Memory,
        MemoryPool=standin_memory.MemoryPool,
        MemoryPointer=standin_memory.MemoryPointer,
        UnownedMemory=standin_memory.UnownedMemory,
        memory=standin_memory,
        runtime=standin_memory,
        set_allocator=lambda allocate: None,
    )
    made = CountedPool(SimpleNamespace(cuda=cuda, ndarray=_NoArray), lambda: "cuda:0")
    assert isinstance(made._counter, Counter) is (request.param == "python")
    gc.collect()  # what earlier tests left in cycles
    yield made
    gc.collect()
    made.empty_cache()


def figures(pool, name):
    return tuple(pool.stats()[f"{name}.all.{field}"] for field in ("current", "peak", "allocated", "freed"))


def test_every_block_is_counted_when_it_is_given_and_when_it_comes_back(pool):
    first, second = pool.allocate(1000), pool.allocate(MIB)
    assert figures(pool, "allocation") == figures(pool, "active") == (2, 2, 2, 0)
    assert figures(pool, "requested_bytes") == (1000 + MIB, 1000 + MIB, 1000 + MIB, 0)
    assert figures(pool, "allocated_bytes") == (1024 + MIB, 1024 + MIB, 1024 + MIB, 0)
    del first
    assert figures(pool, "allocation") == (1, 2, 2, 1)
    assert pool.used_bytes == MIB
    pool.reset_peaks()
    assert figures(pool, "allocated_bytes") == (MIB, MIB, 1024 + MIB, 1024)
    assert second.mem.size == MIB
    del second
    assert pool.used_bytes == 0


def test_freed_blocks_are_kept_until_the_cache_is_emptied(pool):
    at = pool.allocate(4096).ptr
    assert figures(pool, "segment") == (1, 1, 1, 0)
    again = pool.allocate(4000)
    assert again.ptr == at  # the same block, nothing more of the driver
    pool.empty_cache()
    assert (pool.reserved_bytes, *figures(pool, "segment")) == (4096, 1, 1, 1, 0)  # in use
    del again
    pool.empty_cache()
    assert (pool.reserved_bytes, *figures(pool, "segment")) == (0, 0, 1, 1, 1)
    assert figures(pool, "reserved_bytes") == (0, 4096, 4096, 4096)
    assert (pool.stats()["num_device_alloc"], pool.stats()["num_device_free"]) == (1, 1)


def test_memory_that_is_kept_serves_when_the_driver_has_none_left(pool):
    held = pool.allocate(3 << 30)
    del held
    found = pool.allocate(2 << 30)
    assert found.mem.size == 2 << 30
    assert (pool.stats()["num_alloc_retries"], pool.stats()["num_ooms"]) == (1, 0)
    with pytest.raises(torch.OutOfMemoryError, match=rf"cuda:0: no memory for {3 << 30} bytes more; tensors take"):
        pool.allocate(3 << 30)
    assert (pool.stats()["num_ooms"], figures(pool, "allocation")) == (1, (1, 1, 2, 1))


def test_a_limit_is_kept(pool):
    pool.limit(0.25)
    kept = pool.allocate(1 << 29)
    with pytest.raises(torch.OutOfMemoryError, match=f"the pool holds {1 << 29}. Free tensors or use smaller batches"):
        pool.allocate(1 << 30)
    pool.limit(1)
    assert pool.allocate(1 << 30).mem.size + kept.mem.size == 3 << 29


def test_arrays_may_outlive_their_pool(pool):
    kept = pool.allocate(512)
    counter = pool._counter
    del pool
    gc.collect()
    assert counter.figures()[0] == (1, 1, 1, 0)
    del counter
    assert kept.mem.size == 512


@pytest.fixture
def standin(cuda):
    if not hasattr(cuda.cupy, "API"):
        pytest.skip("fills a device of four pretended gigabytes")
    return cuda


def test_a_full_device_says_what_holds_it(standin):
    weight = torch.nn.Parameter(torch.ones(256, 512, device="cuda"))
    (weight * 2).sum().backward()
    kept = torch.ones(100, 1000, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        standin.memory.allocate(5 << 30)
    said = str(caught.value)
    assert f"cuda:0: no memory for {5 << 30} bytes more; tensors take " in said
    assert "x parameter" in said
    assert "x gradient" in said
    assert "x other tensor" in said
    assert "B  parameter: float32 (256, 512)" in said
    assert "B  gradient: float32 (256, 512)" in said
    assert "B  other tensor: float32 (100, 1000)" in said
    assert kept.is_cuda


def test_what_backward_will_need_is_told_apart(standin):
    x = torch.ones(300, 700, device="cuda", requires_grad=True)
    y = (x * 2).exp()  # keeps its result, which no tensor holds in the end
    total = y.sum()
    del y
    found = [block for block in torch.cuda.memory_snapshot() if block["shape"] == (300, 700)]
    kinds = {block["held_by"] for block in found}
    assert kinds == {held_memory.TENSOR, held_memory.REST}
    assert all(block["size"] >= 300 * 700 * 4 and block["state"] == "active_allocated" for block in found)
    assert held_memory.REST in torch.cuda.memory_summary()
    assert held_memory.REST not in torch.cuda.memory_summary(abbreviated=True)
    total.backward()
    left = [block for block in torch.cuda.memory_snapshot() if block["shape"] == (300, 700)]
    assert {block["held_by"] for block in left} == {held_memory.TENSOR, held_memory.GRADIENT}


def test_views_count_once_and_under_their_largest_array(standin):
    x = torch.zeros(64, 77, device="cuda")
    views = [x[1:], x.t(), x[0]]
    mine = [block for block in torch.cuda.memory_snapshot() if block["shape"] in {(64, 77), (77, 64)}]
    assert len(mine) == 1
    assert len(views) == 3


def test_peaks_are_those_of_a_step(standin):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.ones(1000, 1000, device="cuda")
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 4_000_000
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
