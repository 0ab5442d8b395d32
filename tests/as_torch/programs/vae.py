"""A variational autoencoder of small images that are drawn here, with its checkpoint saved and read again."""

import os
import tempfile

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def bars(count):
    """Images of 8 x 8 with one bright row or column."""
    images = torch.zeros(count, 1, 8, 8)
    for image, place in zip(images, torch.randint(0, 16, (count,)).tolist()):
        if place < 8:
            image[0, place] = 1
        else:
            image[0, :, place - 8] = 1
    return images


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc21 = nn.Linear(64, 4)
        self.fc22 = nn.Linear(64, 4)
        self.fc3 = nn.Linear(4, 64)
        self.fc4 = nn.Linear(64, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


if __name__ == "__main__":
    torch.manual_seed(3)
    loader = DataLoader(TensorDataset(bars(512)), batch_size=64, shuffle=True)
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for epoch in range(15):
        total = 0
        for (data,) in loader:
            optimizer.zero_grad()
            loss = loss_function(model(data)[0], data, *model(data)[1:])
            loss.backward()
            total += loss.item()
            optimizer.step()
        losses.append(total / len(loader.dataset))
    path = os.path.join(tempfile.mkdtemp(), "vae.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    again = VAE()
    again.load_state_dict(torch.load(path, weights_only=True)["model"])
    z = torch.randn(5, 4)
    assert torch.equal(again.decode(z), model.decode(z))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
