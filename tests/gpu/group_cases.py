"""What a group does with tensors of a device: on the stand-in in threads, on a GPU in processes.

Each case is called by every rank of a group whose device tensors go over a backend of the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from standin_device import cuda

import resilin
from resilin import checkpoint, nn, optim
from resilin import distributed as dist
from resilin.distributed.wire import shard_tree
from resilin.distributed.wire.reduce_op import DTYPES, ReduceOp
from resilin.errors import CollectiveMismatch
from resilin.testing.rank_data import data, defined, expected, same

FLOAT = np.dtype(np.float32)


def reductions(rank: int) -> None:
    """Every operation and dtype gives the documented result."""
    size = dist.get_world_size()
    wide_halves = str(dist.get_backend()) != "nccl"  # which adds floats of 16 bits as such
    for dtype in DTYPES:
        for op in [op for op in ReduceOp if defined(op, dtype)]:
            wanted = expected(op, [data(r, 33, dtype) for r in range(size)])
            array = cuda(data(rank, 33, dtype))
            dist.all_reduce(array, op)
            if dtype.itemsize == 2 and dtype.kind not in "iu" and not wide_halves:
                np.testing.assert_allclose(array.get().astype(float), wanted.astype(float), rtol=0.02, atol=0.02)
                continue
            same(array.get(), wanted)
            array, root = cuda(data(rank, 33, dtype)), size - 1
            dist.reduce(array, dst=root, op=op)
            same(array.get(), wanted if rank == root else data(rank, 33, dtype))
            wanted = expected(op, [data(r, (size, 5), dtype)[rank] for r in range(size)])
            out = cuda(np.zeros(5, dtype))
            dist.reduce_scatter_tensor(out, cuda(data(rank, (size, 5), dtype)), op)
            same(out.get(), wanted)
            out = cuda(np.zeros(5, dtype))
            dist.reduce_scatter(out, [cuda(part) for part in data(rank, (size, 5), dtype)], op)
            same(out.get(), wanted)


def moves(rank: int) -> None:
    """What moves data works at any size, in rows, in lists and in place; sums of any size, too."""
    size = dist.get_world_size()
    for dtype in (FLOAT, np.dtype(np.int16)):
        for count in (0, 1, 33, 4097, 100_001):
            own = [data(r, count, dtype) for r in range(size)]
            total = cuda(own[rank])
            dist.all_reduce(total)
            same(total.get(), expected(ReduceOp.SUM, own))
            whole = cuda(np.zeros(size * count, dtype))
            dist.all_gather_into_tensor(whole, cuda(own[rank]))
            same(whole.get(), np.concatenate(own))
            lists = [cuda(np.zeros(count, dtype)) for _ in range(size)]
            dist.all_gather(lists, cuda(own[rank]))
            for got, wanted in zip(lists, own, strict=True):
                same(got.get(), wanted)
            one, root = cuda(own[rank]), size - 1
            dist.broadcast(one, src=root)
            same(one.get(), own[root])
            rows = [cuda(np.zeros(count, dtype)) for _ in range(size)] if rank == root else None
            dist.gather(cuda(own[rank]), rows, dst=root)
            for got, wanted in zip(rows or (), own, strict=False):
                same(got.get(), wanted)
            dist.scatter(one, rows, src=root)
            same(one.get(), own[rank])
            square = cuda(data(rank, (size, count), dtype))
            dist.all_to_all_single(square, square)
            same(square.get(), np.stack([data(r, (size, count), dtype)[rank] for r in range(size)]))
    sends, receives = [rank + r for r in range(size)], [r + rank for r in range(size)]
    out = cuda(np.zeros(sum(receives), FLOAT))
    dist.all_to_all_single(out, cuda(np.full(sum(sends), rank, FLOAT)), receives, sends)
    same(out.get(), np.repeat(np.arange(size), receives).astype(FLOAT))


def shard_trees(rank: int) -> None:
    """The tree of shards gives the bits of one process."""
    for shards in (1, 3, 8):
        for count in (1, 700):
            values = [data(s, count, FLOAT) for s in range(shards)]

            def total(node: shard_tree.Subtree, values: list[Any] = values) -> Any:
                children = node.children()
                return values[node.start] if children is None else total(children[0]) + total(children[1])

            plan, out = shard_tree.plan(shards, dist.get_world_size()), cuda(np.zeros(count, FLOAT))
            dist.tree_all_reduce({node: cuda(total(node)) for node in plan.subtrees(rank)}, out, plan)
            same(out.get(), total(shard_tree.Subtree(0, shards)))


def mismatches(rank: int) -> None:
    """A call that differs raises on all ranks and leaves the group usable."""
    odd, size = int(rank == 1), dist.get_world_size()
    for call, words in (
        (lambda: dist.all_reduce(cuda(np.ones(3 + odd, FLOAT))), ("float32[3]", "float32[4]", "on cuda")),
        (lambda: dist.all_reduce(cuda(np.ones(3)), ReduceOp.MAX if odd else ReduceOp.SUM), ("SUM", "MAX")),
        (lambda: dist.broadcast(cuda(np.ones(3)), src=odd), ("root 0", "root 1")),
        (lambda: dist.all_reduce(cuda(np.ones(3)) if odd else np.ones(3)), ("rank 1", "on cuda", "rank 0")),
        (
            lambda: dist.all_to_all([cuda(np.ones(2 + odd))] * size, [cuda(np.ones(2))] * size),
            ("sends 16 bytes", "24"),
        ),
    ):
        with pytest.raises(CollectiveMismatch) as caught:
            call()
        assert all(word in str(caught.value) for word in words), str(caught.value)
    x = cuda(np.ones(2))
    dist.all_reduce(x)
    assert x.get().tolist() == [size, size]


def trains(rank: int, folder: str) -> None:
    """A model whose gradients are averaged over ranks trains as one process on the CPU does; a checkpoint keeps it."""
    size = dist.get_world_size()
    random = np.random.default_rng(3)
    tokens, labels = random.integers(0, 9, (4, 6 * size, 8)), random.integers(0, 5, (4, 6 * size))
    mine = slice(rank * 6, rank * 6 + 6)

    def run(where: str, part: slice) -> tuple[nn.Module, Any]:
        resilin.manual_seed(1)
        layers = (nn.Embedding(9, 16), nn.LayerNorm(16), nn.Flatten(), nn.Linear(128, 32), nn.GELU(), nn.Linear(32, 5))
        model = nn.Sequential(*layers).to(where)
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        for x, y in zip(tokens, labels, strict=True):
            optimizer.zero_grad()
            output = model(resilin.from_numpy(x[part]).to(where))
            nn.functional.cross_entropy(output, resilin.from_numpy(y[part]).to(where)).backward()
            if where != "cpu":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, ReduceOp.AVG)
            optimizer.step()
        return model, optimizer

    alone, _ = run("cpu", slice(None))
    together, optimizer = run("cuda", mine)
    checkpoint.save(folder, {"model": together, "optimizer": optimizer})
    loaded, _ = run("cuda", slice(0, 1))
    checkpoint.load(folder, {"model": loaded}, strict=False)
    for name, wanted in alone.state_dict().items():
        for model in (together, loaded):
            found = model.state_dict()[name]
            assert found.is_cuda
            np.testing.assert_allclose(found.cpu().numpy(), wanted.numpy(), rtol=2e-4, atol=2e-5, err_msg=name)


SAME_ON_ALL = {"reductions": reductions, "moves": moves, "shard_trees": shard_trees}
