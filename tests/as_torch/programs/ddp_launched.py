"""DDP by a launcher: ranks come from the environment, a snapshot is written by rank 0 and read by all."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, loader, optimizer, snapshot_path):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.snapshot_path, self.epochs_run = snapshot_path, 0
        self.loader, self.optimizer = loader, optimizer
        self.model = model
        if os.path.exists(snapshot_path):
            snapshot = torch.load(snapshot_path, map_location="cpu")
            self.model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
        self.model = DDP(self.model)

    def train(self, epochs):
        losses = []
        for epoch in range(self.epochs_run, epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(source), targets)
                loss.backward()
                self.optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total, op=dist.ReduceOp.SUM)
            losses.append(total.item() / dist.get_world_size())
            if self.rank == 0:
                snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
                torch.save(snapshot, self.snapshot_path)
        return losses


def main(path):
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(7)
    x = torch.randn(128, 10)
    data = TensorDataset(x, x.argmax(dim=1))
    loader = DataLoader(data, batch_size=16, shuffle=False, sampler=DistributedSampler(data))
    model = torch.nn.Linear(10, 10)
    losses = Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.5), path).train(3)
    dist.barrier()
    again = torch.nn.Linear(10, 10)
    more = Trainer(again, loader, torch.optim.SGD(again.parameters(), lr=0.5), path)
    assert more.epochs_run == 3
    gathered = [torch.zeros_like(again.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, again.weight.data)
    assert all(torch.equal(one, model.weight) for one in gathered)
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
