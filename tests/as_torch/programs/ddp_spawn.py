"""DDP by mp.spawn: the weights of two ranks, each with half of every batch, are those of one process with all of it."""

import os
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(64, 6)
    return model, TensorDataset(x, x.prod(dim=1, keepdim=True))


def train(model, loader, sampler=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(3):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def worker(rank, world_size, port, path):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model, data = parts()
    sampler = DistributedSampler(data, shuffle=False)
    ddp = DDP(model)
    train(ddp, DataLoader(data, batch_size=8, sampler=sampler), sampler)
    if rank == 0:
        torch.save(ddp.module.state_dict(), path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    path = os.path.join(tempfile.mkdtemp(), "model.pt")
    mp.spawn(worker, args=(2, port, path), nprocs=2, join=True)

    model, data = parts()
    losses = train(model, DataLoader(data, batch_size=16, shuffle=False))
    for name, value in torch.load(path).items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-6), name
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}", file=sys.stdout)
