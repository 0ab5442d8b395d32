"""Train a recurrent network whose embedding and decoder lie at a parameter server; the LSTM is the trainer's own.

    elastic-run --standalone --nproc-per-node 2 examples/rpc_remote_embedding.py

The task: sequences of tokens in which each next token is a fixed function of the last two, so that a network which
remembers reads them without a mistake.
"""

from __future__ import annotations

import argparse
import os

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
import resilin.nn.functional as F
from resilin import nn, optim
from resilin.distributed.optim import DistributedOptimizer

TOKENS, WIDTH, HIDDEN, LENGTH = 12, 16, 48, 20


class EmbeddingTable(nn.Module):
    """At the server: a vector for each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(TOKENS, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


class Decoder(nn.Module):
    """At the server: scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.scores = nn.Linear(HIDDEN, TOKENS)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.scores(states)


def parameter_rrefs(module: rpc.RRef[nn.Module]) -> list[rpc.RRef[nn.Parameter]]:
    """Run where a module lies: references to its parameters, for an optimizer elsewhere."""
    return [rpc.RRef(parameter) for parameter in module.local_value().parameters()]


class RemoteLanguageModel(nn.Module):
    """The LSTM is here, what is in front of it and behind it at the server."""

    def __init__(self, server: str) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = rpc.remote(server, EmbeddingTable)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, batch_first=True)
        self.decoder = rpc.remote(server, Decoder)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding.rpc_sync().forward(tokens))
        return self.decoder.rpc_sync().forward(states)

    def all_parameters(self) -> list[rpc.RRef[nn.Parameter]]:
        there = [
            parameter
            for module in (self.embedding, self.decoder)
            for parameter in rpc.rpc_sync(module.owner(), parameter_rrefs, (module,))
        ]
        return [*there, *(rpc.RRef(parameter) for parameter in self.lstm.parameters())]


def sequences(count: int) -> torch.Tensor:
    """(count, LENGTH + 1) tokens: two at random, each next one the sum of the last two, and one."""
    columns = list(torch.randint(0, TOKENS, (2, count)))
    for _ in range(LENGTH - 1):
        columns.append((columns[-1] + columns[-2] + 1) % TOKENS)
    return torch.stack(columns, 1)


def train(steps: int) -> float:
    """Return the share of next tokens that is right at the end, of those that can be known."""
    model = RemoteLanguageModel("server")
    optimizer = DistributedOptimizer(optim.Adam, model.all_parameters(), lr=0.01)
    for step in range(steps):
        torch.manual_seed(step)
        tokens = sequences(64)
        with dist_autograd.context() as context_id:
            scores = model(tokens[:, :-1])
            loss = F.cross_entropy(scores[:, 1:].flatten(0, 1), tokens[:, 2:].flatten())
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    torch.manual_seed(steps)
    tokens = sequences(256)
    with torch.no_grad():
        return (model(tokens[:, :-1])[:, 1:].argmax(-1) == tokens[:, 2:]).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size != 2:
        parser.error("one process trains and one serves: --nproc-per-node 2")
    rpc.init_rpc("trainer" if rank == 0 else "server", rank=rank, world_size=world_size)
    if rank == 0:
        print(f"{train(args.steps):.1%} of the next tokens are right", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
