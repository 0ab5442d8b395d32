"""Models, optimizers and habits of training loops whose bits must not depend on the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from generations import At

import resilin
from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import ShardSums
from resilin.elastic.worker.state import State
from resilin.nn import functional as F
from resilin.optim import lr_scheduler, swa_utils

SHARDS, SAMPLES, BATCH, EPOCHS = 8, 43, 17, 2  # batches of 17, 17 and 9: ragged, and no shard size is a power of two
CLASSES, WORDS, TIME = 3, 13, 6


def _dense(width: int = 6) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Linear(width, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES)
    )


class Images(nn.Module):
    """Convolutions with batch norm, dropout of channels, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2),
            nn.Conv2d(4, 5, 3, groups=1, bias=False), nn.BatchNorm2d(5), nn.GELU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


class Recurrent(nn.Module):
    """An embedding under a GRU and an LSTM with dropout between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 5, padding_idx=0)
        self.gru = nn.GRU(5, 6, batch_first=True)
        self.lstm = nn.LSTM(6, 4, num_layers=2, dropout=0.3, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.lstm(self.gru(self.embed(words))[0])[0][:, -1])


class Attention(nn.Module):
    """A transformer layer with dropout everywhere; the head shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(words)).mean(1))


class Partial(nn.Module):
    """A frozen layer, one that is never used, and one that only some samples use."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.unused = nn.Linear(6, 6), nn.Linear(6, 2)
        self.rare, self.norm, self.head = nn.Linear(6, 6), nn.GroupNorm(2, 6), nn.Linear(6, CLASSES)
        for param in self.frozen.parameters():
            param.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.frozen(x))
        return self.head(self.rare(hidden) if float(x[0, 0].item()) > 0 else hidden)


def _floats(*shape: int) -> Tensor:
    return Tensor._wrap(np.random.default_rng(1).standard_normal((SAMPLES, *shape)).astype(np.float32))


def _words() -> Tensor:
    return Tensor._wrap(np.random.default_rng(2).integers(0, WORDS, (SAMPLES, TIME)))


def _two_groups(model: nn.Module) -> list[dict[str, Any]]:
    params = [param for param in model.parameters() if param.requires_grad]
    return [{"params": params[::2]}, {"params": params[1::2], "lr": 0.003, "weight_decay": 0.0}]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One model and the habits of its training loop."""

    model: Callable[[], nn.Module]
    data: Callable[[], Tensor]
    optimizer: Callable[[Any], optim.Optimizer]
    """From the parameter groups."""
    scheduler: Callable[[optim.Optimizer], Any] = lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.7)
    clip: float | None = None
    ema: bool = False
    unused: bool = False
    accumulate: int = 1
    """Steps of the sampler per step of the optimizer."""
    decay: float = 1.0
    """What the loop itself multiplies the learning rate with when a step begins."""
    zero_first: bool = True
    """Whether gradients are zeroed before backward; else after the optimizer's step."""
    device: str = "cpu"
    """Where the model is; data come from the CPU."""


def _cycle(optimizer: optim.Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=40)


def _plateau(optimizer: optim.Optimizer) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


def _warmup(optimizer: optim.Optimizer) -> Any:
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.CosineAnnealingLR(optimizer, 4)], [3])


KINDS = {
    "dense, momentum, clipped": Kind(
        model=_dense(), data=lambda: _floats(6), clip=0.5, scheduler=_cycle,
        optimizer=lambda groups: optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "dense, zeroed late, EMA": Kind(
        model=_dense(), data=lambda: _floats(6), ema=True, zero_first=False, scheduler=_plateau,
        optimizer=lambda groups: optim.AdamW(groups, lr=0.02),
    ),
    "dense, accumulated": Kind(
        model=_dense(), data=lambda: _floats(6), accumulate=2, clip=1.0, decay=0.97,
        optimizer=lambda groups: optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    ),
    "images": Kind(
        model=Images, data=lambda: _floats(1, 8, 8), scheduler=_warmup, zero_first=False,
        optimizer=lambda groups: optim.NAdam(groups, lr=0.01),
    ),
    "recurrent": Kind(
        model=Recurrent, data=_words, clip=0.3,
        optimizer=lambda groups: optim.Adam(groups, lr=0.02, amsgrad=True),
    ),
    "attention, shared weights": Kind(
        model=Attention, data=_words, ema=True, clip=1.0, scheduler=_warmup,
        optimizer=lambda groups: optim.Lion(groups, lr=0.003),
    ),
    "partly used": Kind(
        model=Partial, data=lambda: _floats(6), unused=True,
        optimizer=lambda groups: optim.Adagrad(groups, lr=0.05),
    ),
}  # fmt: skip


def make(kind: Kind, seed: int) -> State:
    """A fresh state: model, optimizer and random state follow from `seed`."""
    resilin.manual_seed(seed)
    model = kind.model().to(kind.device)
    optimizer = kind.optimizer(_two_groups(model))
    more = {"ema": swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))} if kind.ema else {}
    return State(
        model=model,
        optimizer=optimizer,
        scheduler=kind.scheduler(optimizer),
        sampler=ElasticSampler(SAMPLES, BATCH, SHARDS, seed=3),
        loss=0.0,
        history=[],
        **more,
    )


def train(kind: Kind, state: State, at: At) -> None:
    """The loop of a program, with the places where the world may change."""
    ids = None if kind.device == "cpu" else [kind.device]
    model = DDP(state.model, ids, shards=SHARDS, find_unused_parameters=kind.unused, bucket_cap_mb=0.001)
    sums = ShardSums("loss", "correct", shards=SHARDS)
    x, labels = kind.data(), Tensor._wrap(np.arange(SAMPLES) % CLASSES)
    while state.sampler.epoch < EPOCHS:
        plans = []
        for plan in state.sampler.steps():
            if kind.zero_first and not plans:
                state.optimizer.zero_grad()
            for group in state.optimizer.param_groups if not plans else ():
                group["lr"] *= kind.decay
            plans.append(plan)
            for shard in plan.shards:
                with model.shard(shard):
                    if len(shard):
                        at("forward")
                        out = model(x[shard.indices])
                        own = labels[shard.indices].to(kind.device)
                        loss = F.cross_entropy(out, own)
                        loss.backward()
                        at("backward")
                        sums.add(shard, loss=loss * len(shard), correct=(out.argmax(1) == own).sum())
            at("reduced")
            totals = sums.reduce()
            if len(plans) == kind.accumulate or plan.ends_epoch:
                apply(kind, state, totals)
                at("applied")
                state.commit(*plans)
                plans = []
                at("committed")


def apply(kind: Kind, state: State, totals: dict[str, float]) -> None:
    """Everything between backward and commit."""
    if kind.clip is not None:
        state.history.append(nn.utils.clip_grad_norm_(state.model.parameters(), kind.clip).item())
    state.optimizer.step()
    if not kind.zero_first:
        state.optimizer.zero_grad()
    state.scheduler.step(*[totals["loss"]] * isinstance(state.scheduler, lr_scheduler.ReduceLROnPlateau))
    if kind.ema:
        state.ema.update_parameters(state.model)
    state.loss += totals["loss"] + totals["correct"]
    state.history.append(resilin.rand(1).item())  # drawn outside of shards, alike on all ranks
