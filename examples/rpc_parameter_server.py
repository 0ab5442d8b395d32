"""Train on handwritten digits with a parameter server: workers send gradients, and get the new weights back.

    elastic-run --standalone --nproc-per-node 3 examples/rpc_parameter_server.py

Rank 0 serves, all others compute. A call of `update` ends when the gradients of all of them are there: no thread of the
server waits for that, because `async_execution` lets the call end with a Future.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "01-digits"))

import digits

import resilin as torch
import resilin.distributed.rpc as rpc
import resilin.nn.functional as F
from resilin import nn
from resilin.futures import Future


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))


class ParameterServer:
    """Holds the weights; averages the gradients of all workers, and takes a step."""

    def __init__(self, workers: int, lr: float) -> None:
        self.model = made()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.workers, self.come, self.steps = workers, 0, 0
        self.lock = threading.Lock()
        self.stepped: Future[list[torch.Tensor]] = Future()

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self.model.parameters()]

    @rpc.functions.async_execution
    def update(self, gradients: list[torch.Tensor]) -> Future[list[torch.Tensor]]:
        """Return the weights behind the step that these gradients are part of."""
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                share = gradient / self.workers
                parameter.grad = share if parameter.grad is None else parameter.grad + share
            self.come += 1
            stepped = self.stepped
            if self.come == self.workers:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.come, self.steps, self.stepped = 0, self.steps + 1, Future()
                stepped.set_result(self.weights())
        return stepped


def work(server: rpc.RRef[ParameterServer], worker: int, workers: int, epochs: int, batch_size: int) -> float:
    """Run at each worker: compute gradients of its part of the images. Return the last loss."""
    images, labels = (torch.from_numpy(array[worker::workers]) for array in digits.load(train=True))
    count = len(digits.load(train=True)[0]) // workers  # the same for all: they wait for each other in each step
    model = made()
    weights = server.rpc_sync().weights()
    loss = torch.tensor(0.0)
    for epoch in range(epochs):
        torch.manual_seed(epoch)
        for chosen in torch.randperm(count).split(batch_size):
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), weights, strict=True):
                    parameter.copy_(value)
            model.zero_grad()
            loss = F.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            weights = server.rpc_sync().update([parameter.grad for parameter in model.parameters()])
    return loss.item()


def accuracy(model: nn.Module) -> float:
    images, labels = (torch.from_numpy(array) for array in digits.load(train=False))
    with torch.no_grad():
        return (model(images).argmax(1) == labels).to(torch.float32).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=48, help="of each worker")
    args = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size < 2:
        parser.error("one process serves, so at least one more is needed: --nproc-per-node 2")
    rpc.init_rpc("server" if rank == 0 else f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        workers = world_size - 1
        server = ParameterServer(workers, lr=5e-3)
        rref = rpc.RRef(server)
        losses = [
            rpc.rpc_async(f"worker{n + 1}", work, args=(rref, n, workers, args.epochs, args.batch_size), timeout=0)
            for n in range(workers)
        ]
        print("last losses", ", ".join(f"{loss.wait():.4f}" for loss in losses), flush=True)
        print(f"{server.steps} steps of {workers} workers, test accuracy {accuracy(server.model):.2%}", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
