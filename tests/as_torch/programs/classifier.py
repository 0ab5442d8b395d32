"""A classifier: a Dataset of its own, loaders with a random split, dropout, a schedule, train and eval modes."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, random_split


class Rings(Dataset):
    """Points on two rings, by ring."""

    def __init__(self, count):
        angle = torch.rand(count) * 6.2832
        self.targets = torch.arange(count) % 2
        radius = 1.0 + self.targets + 0.1 * torch.randn(count)
        self.data = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], int(self.targets[index])


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.fc1 = nn.Linear(2, 64)
        self.norm = nn.BatchNorm1d(64)
        self.dropout = nn.Dropout(0.1)
        self.fc2 = nn.Linear(64, 2)

    def forward(self, x):
        x = F.relu(self.norm(self.fc1(x)))
        return F.log_softmax(self.fc2(self.dropout(x)), dim=1)


def train(model, device, loader, optimizer):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()


def test(model, device, loader):
    model.eval()
    loss, correct = 0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--gamma", type=float, default=0.7)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = random_split(Rings(1200), [1000, 200])
    train_loader = DataLoader(train_set, batch_size=50, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, batch_size=100)
    model = Net().to(device)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    first, _ = test(model, device, test_loader)
    for _ in range(args.epochs):
        train(model, device, train_loader, optimizer)
        last, right = test(model, device, test_loader)
        scheduler.step()
    assert right > 0.9, right
    print(f"loss {first:.4f} -> {last:.4f}")


if __name__ == "__main__":
    main()
