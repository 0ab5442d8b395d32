"""Train with both: the dense part of a recommender is replicated by DDP, its large table lies at one server.

    elastic-run --standalone --nproc-per-node 3 examples/rpc_with_ddp.py

Rank 0 serves the table, all others train. One distributed backward computes the gradients of both parts: those of the
dense part are averaged over the trainers as they are ready, those of the table's rows are each trainer's own.
"""

from __future__ import annotations

import argparse
import os

import resilin as torch
import resilin.distributed as dist
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
import resilin.nn.functional as F
from resilin import nn, optim
from resilin.distributed.nn import RemoteModule
from resilin.distributed.optim import DistributedOptimizer
from resilin.nn.parallel import DistributedDataParallel

USERS, THINGS, WIDTH, HIDDEN_SEED = 60, 40, 8, 99
trainers: list[dist.ProcessGroup] = []
"""The group of the trainers, which average the gradients of the dense part."""


def liked(users: torch.Tensor, things: torch.Tensor) -> torch.Tensor:
    """What is to be learnt: a user likes a thing when their hidden vectors point the same way."""
    torch.manual_seed(HIDDEN_SEED)
    hidden = torch.randn(USERS + THINGS, 4)
    return ((hidden[users] * hidden[USERS + things]).sum(1) > 0).float()


class Recommender(nn.Module):
    """The table is remote, the dense part here and at each other trainer."""

    def __init__(self, table: RemoteModule, group: dist.ProcessGroup) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = table
        dense = nn.Sequential(nn.Linear(3 * WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))
        self.dense = DistributedDataParallel(dense, process_group=group)

    def forward(self, users: torch.Tensor, things: torch.Tensor) -> torch.Tensor:
        rows = self.table(torch.cat([users, USERS + things]))
        user, thing = rows[: len(users)], rows[len(users) :]
        return self.dense(torch.cat([user, thing, user * thing], 1)).squeeze(1)


def train(table: RemoteModule, trainer: int, steps: int) -> float:
    """Run at each trainer: return the share of held-out pairs that is judged right."""
    model = Recommender(table, trainers[0])
    there = DistributedOptimizer(optim.Adam, table.remote_parameters(), lr=0.02)
    here = DistributedOptimizer(optim.Adam, [rpc.RRef(p) for p in model.dense.parameters()], lr=0.01)
    torch.manual_seed(1)
    pairs = torch.randperm(USERS * THINGS)
    users, things = pairs // THINGS, pairs % THINGS
    wanted, held_out = liked(users, things), len(pairs) // 5
    for step in range(steps):
        torch.manual_seed(1000 * step + trainer)
        chosen = torch.randint(held_out, len(pairs), (128,))
        with dist_autograd.context() as context_id:
            scores = model(users[chosen], things[chosen])
            loss = F.binary_cross_entropy_with_logits(scores, wanted[chosen])
            dist_autograd.backward(context_id, [loss])
            there.step(context_id)
            here.step(context_id)
    with torch.no_grad():
        right = (model(users[:held_out], things[:held_out]) > 0).float() == wanted[:held_out]
    return right.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size < 2:
        parser.error("one process serves, so at least one more is needed: --nproc-per-node 2")
    dist.init_process_group("gloo")
    trainers.append(dist.new_group(list(range(1, world_size))))
    rpc.init_rpc("server" if rank == 0 else f"trainer{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        table = RemoteModule("server/cpu", nn.Embedding, (USERS + THINGS, WIDTH))
        calls = [
            rpc.rpc_async(f"trainer{number}", train, (table, number, args.steps), timeout=0)
            for number in range(1, world_size)
        ]
        shares = [call.wait() for call in calls]
        print(f"{min(shares):.1%} of the held-out pairs are right, with {len(shares)} trainers", flush=True)
    rpc.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
