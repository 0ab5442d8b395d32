"""Train a small convolutional network on handwritten digits; workers may die at any moment.

    elastic-run --standalone --nproc-per-node 2 examples/01-digits/train.py

The final weights are the same bits for any number of workers, with or without failures.
"""

from __future__ import annotations

import argparse
import hashlib
import os

import digits

import resilin as torch
import resilin.nn.functional as F
from resilin import elastic, nn
from resilin.ddp import DistributedDataParallel as DDP

SHARDS = 4  # the batch is always cut in four, whoever computes them


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classify = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(48 * 4 * 4, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(x))


@elastic.run
def train(state: elastic.State, epochs: int, log_every: int, device: torch.device) -> None:
    """Called once per generation: after a change of the world it starts again at the last committed step."""
    world = elastic.world()
    print(f"generation {world.generation}: rank {world.rank} of {world.world_size}, pid {os.getpid()}", flush=True)
    images, labels = (torch.from_numpy(array).to(device) for array in digits.load(train=True))
    model = DDP(state.model, shards=SHARDS)
    model.train()
    for step in elastic.steps(state.sampler, epochs=epochs):
        state.optimizer.zero_grad()
        losses = []
        for shard in step:
            loss = F.cross_entropy(model(images[shard.indices]), labels[shard.indices])
            loss.backward()
            losses.append(loss.item())
        state.optimizer.step()
        state.scheduler.step()
        state.commit(step)
        if world.rank == 0 and step.step % log_every == 0:
            mean = sum(losses) / max(1, len(losses))
            print(f"epoch {step.epoch} step {step.step} loss {mean:.4f} workers {world.world_size}", flush=True)


def accuracy(model: nn.Module, device: torch.device) -> float:
    images, labels = (torch.from_numpy(array).to(device) for array in digits.load(train=False))
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).to(torch.float32).mean().item()


def fingerprint(model: nn.Module) -> str:
    """sha256 of all parameters and buffers, names included."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--log-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--device", default="cpu", help="cuda: the GPU of this worker's number on its host")
    args = parser.parse_args()

    if args.device == "cuda":  # before the first tensor: a process computes on one GPU
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    device = torch.device(args.device)
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = elastic.ElasticSampler(len(digits.load(train=True)[0]), args.batch_size, shards=SHARDS)
    # a rate that ends at 0: the last epochs change little, so the result does not depend on which step is the last
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(sampler))
    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
    train(state, args.epochs, args.log_every, device)

    if elastic.world().rank == 0:
        print(f"test accuracy {accuracy(model, device):.2%}", flush=True)
        print(f"weights sha256 {fingerprint(model)}", flush=True)


if __name__ == "__main__":
    main()
