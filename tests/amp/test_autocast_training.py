"""Training inside autocast: losses near float32's, checkpoints, DistributedDataParallel, loss scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import resilin as rs
import resilin.nn.functional as F
from resilin import nn, optim
from resilin.amp import GradScaler
from resilin.core.autocast.state import here
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel
from resilin.testing.ranks import run_ranks
from resilin.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        batch, steps, width = x.shape
        parts = self.qkv(self.first(x)).reshape(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, steps, width))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    """A small one whose last layer has the embedding's weight."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.tokens, self.places = nn.Embedding(16, 32), nn.Embedding(12, 32)
        self.blocks = nn.ModuleList([Block(32, 4) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 16, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, text: Any) -> Any:
        x = self.tokens(text) + self.places(rs.arange(text.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x) if self.checkpointed else block(x)
        return self.head(self.norm(x))


def make_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, groups=2),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def text() -> rs.Tensor:
    return rs.arange(4 * 13).reshape(4, 13) * 7 % 16


def images() -> tuple[rs.Tensor, rs.Tensor]:
    labels = rs.arange(8) % 4
    return rs.arange(8 * 64, dtype=rs.float32).sin().reshape(8, 1, 8, 8) * (1 + labels).reshape(8, 1, 1, 1), labels


def gpt_loss(model: Any) -> Any:
    given = text()
    return F.cross_entropy(model(given[:, :-1]).flatten(0, 1), given[:, 1:].flatten())


def net_loss(model: Any) -> Any:
    x, y = images()
    return F.cross_entropy(model(x), y)


def train(make: Callable[[], nn.Module], loss_of: Callable[[Any], Any], dtype: Any, steps: int = 16) -> list[float]:
    rs.manual_seed(1)
    model = make()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0, enabled=dtype is rs.float16)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with rs.autocast("cpu", dtype=dtype or rs.bfloat16, enabled=dtype is not None):
            loss = loss_of(model)
        assert loss.dtype is rs.float32
        scaler.scale(loss).backward()
        assert {param.grad.dtype for param in model.parameters()} == {rs.float32}
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype", [rs.bfloat16, rs.float16])
@pytest.mark.parametrize(("make", "loss_of"), [(GPT, gpt_loss), (make_net, net_loss)], ids=["gpt", "conv net"])
def test_losses_are_near_those_of_float32(make: Any, loss_of: Any, dtype: Any) -> None:
    exact, found = train(make, loss_of, None), train(make, loss_of, dtype)
    assert exact[-1] < 0.8 * exact[0]
    assert found == pytest.approx(exact, rel=0.05)


def gradients(model: nn.Module, loss_of: Callable[[Any], Any], outside: bool) -> list[rs.Tensor]:
    with rs.autocast("cpu"):
        loss = loss_of(model)
        if not outside:
            loss.backward()
    if outside:
        loss.backward()
    return [param.grad for param in model.parameters()]


@pytest.mark.parametrize("outside", [True, False])
def test_a_checkpoint_runs_again_with_the_autocast_of_its_first_run(outside: bool) -> None:
    rs.manual_seed(1)
    plain, again = GPT(), GPT(checkpointed=True)
    again.load_state_dict(plain.state_dict())
    expected, found = (gradients(model, gpt_loss, outside) for model in (plain, again))
    assert all(rs.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert not here.cache
    assert here.nesting == 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_weight_cast_before_a_checkpoint_is_cast_anew_inside(reentrant: bool) -> None:
    weight = nn.Parameter(rs.randn(3, 3))

    def run(x: rs.Tensor) -> rs.Tensor:
        return (x @ weight).tanh() @ weight

    def loss(checkpointed: bool) -> rs.Tensor:
        x = rs.ones(2, 3, requires_grad=True)
        with rs.autocast("cpu"):
            y = x @ weight
            y = checkpoint(run, y, use_reentrant=reentrant) if checkpointed else run(y)
            return (y @ weight).float().sum()

    found = []
    for checkpointed in (False, True):
        weight.grad = None
        loss(checkpointed).backward()
        found.append(weight.grad)
    assert rs.allclose(*found, rtol=0.02, atol=0.02)


def test_a_checkpoint_outside_of_regions_stays_so_in_a_backward_inside_of_one() -> None:
    weight, seen = nn.Parameter(rs.randn(3, 3)), []

    def run(x: rs.Tensor) -> rs.Tensor:
        y = x @ weight
        seen.append(y.dtype)
        return y.tanh()

    made = checkpoint(run, rs.ones(2, 3, requires_grad=True)).sum()
    with rs.autocast("cpu"):
        made.backward()
    assert seen == [rs.float32] * 2


def test_two_backwards_inside_of_one_region_both_reach_the_weights() -> None:
    layer = nn.Linear(3, 3, bias=False)
    with rs.autocast("cpu"):
        for _ in range(2):
            layer(rs.ones(1, 3)).sum().backward()
    assert rs.equal(layer.weight.grad, rs.full((3, 3), 2.0))


def test_second_derivatives_pass_the_casts() -> None:
    x = rs.tensor([[0.5, -1.0]], requires_grad=True)
    with rs.autocast("cpu"):
        y = (x @ x.t()).float().square().sum()
    (first,) = rs.autograd.grad(y, x, create_graph=True)
    (second,) = rs.autograd.grad(first.sum(), x)
    assert first.dtype is second.dtype is rs.float32
    assert second.any()


def test_ranks_of_distributed_data_parallel_train_alike_inside() -> None:
    def work(rank: int) -> list[Any]:
        rs.manual_seed(1)
        model = DistributedDataParallel(GPT())
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        given = text()[2 * rank : 2 * rank + 2]
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            with rs.autocast("cpu"):
                loss = F.cross_entropy(model(given[:, :-1]).flatten(0, 1), given[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert {param.grad.dtype for param in model.parameters()} == {rs.float32}
        return [losses, [param.detach().clone() for param in model.parameters()]]

    (first, left), (second, right) = run_ranks(2, work).results()
    assert all(rs.equal(a, b) for a, b in zip(left, right, strict=True))
    assert first[1] < first[0]
    assert second[1] < second[0]


def test_with_shards_the_weights_are_the_same_bits_for_one_worker_and_two() -> None:
    x, labels = images()

    def work(rank: int, world: int) -> list[rs.Tensor]:
        rs.manual_seed(1)
        model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), shards=4)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for plan in ElasticSampler(8, batch_size=8, shards=4).steps(rank, world):
            for shard in plan.shards:
                with model.shard(shard), rs.autocast("cpu"):
                    F.cross_entropy(model(x[list(shard.indices)]), labels[list(shard.indices)]).backward()
            optimizer.step()
        return [param.detach().clone() for param in model.parameters()]

    (alone,), together = run_ranks(1, work, 1).results(), run_ranks(2, work, 2).results()
    assert all(rs.equal(a, b) for weights in together for a, b in zip(weights, alone, strict=True))


def test_packed_sequences_go_through_recurrent_layers_inside() -> None:
    packed = nn.utils.rnn.pack_sequence([rs.randn(3, 4), rs.randn(2, 4)])
    layer = nn.LSTM(4, 5, 2)
    with rs.autocast("cpu"):
        out, (h, c) = layer(packed)
    assert out.data.dtype is h.dtype is c.dtype is rs.bfloat16
    out.data.float().sum().backward()
    assert {param.grad.dtype for param in layer.parameters()} == {rs.float32}
