"""Hogwild: processes train one model in shared memory, without locks."""

import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


def data(seed, count=256):
    torch.manual_seed(seed)
    x = torch.randn(count, 8)
    return x, (x.sum(1) > 0).long()


def train(rank, model, done):
    x, y = data(rank + 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for _ in range(5):
        for start in range(0, len(x), 32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[start : start + 32]), y[start : start + 32]).backward()
            optimizer.step()
    done.put((rank, model[0].weight.is_shared()))


if __name__ == "__main__":
    torch.manual_seed(1)
    mp.set_start_method("spawn", force=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    model.share_memory()
    x, y = data(0)
    first = F.cross_entropy(model(x), y).item()
    done = mp.SimpleQueue()
    processes = []
    for rank in range(2):
        process = mp.Process(target=train, args=(rank, model, done))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
        assert process.exitcode == 0, process.exitcode
    assert sorted([done.get(), done.get()]) == [(0, True), (1, True)]
    print(f"loss {first:.4f} -> {F.cross_entropy(model(x), y).item():.4f}")
