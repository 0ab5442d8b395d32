"""States to save: a module and its optimizer in any stage of ZeRO, trained a little, and the hash of a whole state."""

import hashlib

import numpy as np

import resilin
from resilin import nn, optim
from resilin.nn import functional as F
from resilin.zero import OptimizerState, ZeroRedundancyOptimizer, shard


class Net(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, width), nn.LayerNorm(width), nn.Linear(width, hidden)
        self.register_buffer("seen", resilin.zeros(3))

    def forward(self, x):
        return self.last(F.relu(self.norm(self.first(x))))


def build(stage, sizes, seed=0):
    """The module, the optimizer, and what is saved of them."""
    resilin.manual_seed(seed)
    net = Net(*sizes)
    if stage >= 2:
        net = shard(net, stage)
    kind = ZeroRedundancyOptimizer if stage == 1 else optim.AdamW
    optimizer = kind(net.parameters(), optim.AdamW, lr=0.02) if stage == 1 else kind(net.parameters(), lr=0.02)
    return net, optimizer, {"net": net, "optimizer": OptimizerState(net, optimizer) if stage >= 2 else optimizer}


def train(net, optimizer, steps):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        x = resilin.from_numpy(rng.standard_normal((4, 5)).astype(np.float32))
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()


def digest(tree):
    hasher = hashlib.sha256()

    def add(value, path):
        if isinstance(value, dict):
            for key in sorted(value, key=repr):
                add(value[key], f"{path}/{key!r}")
        elif isinstance(value, list | tuple):
            for place, one in enumerate(value):
                add(one, f"{path}/{place}")
        elif isinstance(value, resilin.Tensor):
            array = np.ascontiguousarray(value.detach().numpy())
            hasher.update(f"{path} {array.dtype} {array.shape}".encode() + array.tobytes())
        else:
            hasher.update(f"{path} {value!r}".encode())

    add(tree, "")
    return hasher.hexdigest()
