"""Models and training loops for the tests of `zero.shard`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin import nn, optim
from resilin.core import rng
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.testing.ranks import run_ranks
from resilin.zero import ShardedModule, shard

VOCAB, WIDTH, LENGTH, BATCH = 11, 8, 5, 2

State = dict[str, np.ndarray[Any, Any]]


def tensor(array: Any) -> Tensor:
    return Tensor._wrap(np.asarray(array, np.float32))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Language(nn.Module):
    """A small language model with a parameter of the root, a list of blocks and tied embeddings."""

    def __init__(self, blocks: int = 3, tied: bool = True) -> None:
        super().__init__()
        with rng.keyed(blocks):
            self._make(blocks, tied)

    def _make(self, blocks: int, tied: bool) -> None:
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Parameter(tensor(np.linspace(-1, 1, LENGTH * WIDTH).reshape(LENGTH, WIDTH)))
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tokens(step: int, rank: int) -> Tensor:
    return Tensor._wrap(np.random.default_rng([step, rank]).integers(0, VOCAB, (BATCH, LENGTH)))


def loss_of(model: Any, given: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(given).reshape(-1, VOCAB), given.reshape(-1))


def adamw(params: Any) -> optim.Optimizer:
    return optim.AdamW(params, lr=1e-2)


def arrays(state: dict[str, Any]) -> State:
    return {name: value.numpy().copy() for name, value in state.items()}


def train(model: Any, optimizer: optim.Optimizer, rank: int, steps: Sequence[int]) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, tokens(step, rank)).backward()
        optimizer.step()


def trained(
    net: nn.Module, world: int, stage: int | None, loop: Callable[..., Any] = train, steps: int = 3, **options: Any
) -> list[State]:
    """Every rank's parameters and buffers after training copies of `net`; stage None: DistributedDataParallel."""
    transport = options.pop("transport", "shm")
    make = options.pop("optimizer", adamw)

    def run(rank: int) -> State:
        own = copy.deepcopy(net)
        model = DDP(own, **options) if stage is None else shard(own, stage, **options)
        loop(model, make(model.parameters()), rank, range(steps))
        return arrays((model if isinstance(model, ShardedModule) else own).state_dict())

    return run_ranks(world, run, transport=transport).results()


def differences(one: Sequence[State], other: Sequence[State]) -> list[str]:
    """The names of tensors whose bits differ, on any rank."""
    found = []
    for a, b in zip(one, other, strict=True):
        assert list(a) == list(b)
        found += [name for name in a if a[name].tobytes() != b[name].tobytes()]
    return found
