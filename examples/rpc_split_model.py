"""Train a network that is split over two workers: gradients go back through the calls that its forward made.

    elastic-run --standalone --nproc-per-node 3 examples/rpc_split_model.py

Rank 0 trains; the convolutions lie at worker 1, the classifier at worker 2. Nothing but activations and their gradients
travels: each worker keeps its weights, and steps them in its own optimizer.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "01-digits"))

import digits

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
import resilin.nn.functional as F
from resilin import nn, optim
from resilin.distributed.nn import RemoteModule
from resilin.distributed.optim import DistributedOptimizer


class Features(nn.Module):
    """The first part: what an image shows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.second(F.relu(self.first(images)))), 2).flatten(1)


class Classifier(nn.Module):
    """The second part: which digit that is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.hidden, self.out = nn.Linear(32 * 4 * 4, 64), nn.Linear(64, 10)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.out(F.relu(self.hidden(features)))


class SplitModel(nn.Module):
    """Both parts, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.features = RemoteModule("worker1/cpu", Features)
        self.classifier = RemoteModule("worker2/cpu", Classifier)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))

    def remote_parameters(self) -> list[rpc.RRef[nn.Parameter]]:
        return [*self.features.remote_parameters(), *self.classifier.remote_parameters()]


def batches(images: torch.Tensor, labels: torch.Tensor, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for chosen in torch.randperm(len(labels)).split(size):
        yield images[chosen], labels[chosen]


def train(epochs: int, batch_size: int) -> float:
    """Return the share of the held-out digits that is read right."""
    model = SplitModel()
    optimizer = DistributedOptimizer(optim.Adam, model.remote_parameters(), lr=0.003)
    images, labels = (torch.from_numpy(array) for array in digits.load(train=True))
    for epoch in range(epochs):
        torch.manual_seed(epoch)
        for seen, wanted in batches(images, labels, batch_size):
            with dist_autograd.context() as context_id:
                loss = F.cross_entropy(model(seen), wanted)
                dist_autograd.backward(context_id, [loss])
                optimizer.step(context_id)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
    images, labels = (torch.from_numpy(array) for array in digits.load(train=False))
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size != 3:
        parser.error("one process trains, and two have a part of the model each: --nproc-per-node 3")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        share = train(args.epochs, args.batch_size)
        print(f"test accuracy {share:.1%}, with the model in two workers", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
