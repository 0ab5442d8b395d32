"""Two networks against one another: the generator learns the mean and spread of a line of points."""

import torch
import torch.nn as nn


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Linear") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.1)
        nn.init.constant_(m.bias.data, 0)


def real(count):
    return torch.FloatTensor(count, 1).normal_(4.0, 0.5)


def make(*sizes, last):
    layers = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*layers[:-1], *last)


if __name__ == "__main__":
    torch.manual_seed(0)
    generator = make(4, 32, 1, last=[])
    discriminator = make(1, 32, 1, last=[nn.Sigmoid()])
    generator.apply(weights_init)
    discriminator.apply(weights_init)
    loss = nn.BCELoss()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=0.005, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=0.005, betas=(0.5, 0.999))
    distances = []
    for step in range(400):
        valid, fake = torch.ones(64, 1), torch.zeros(64, 1)

        optimizer_g.zero_grad()
        made = generator(torch.randn(64, 4))
        loss(discriminator(made), valid).backward()
        optimizer_g.step()

        optimizer_d.zero_grad()
        (loss(discriminator(real(64)), valid) / 2).backward()
        (loss(discriminator(made.detach()), fake) / 2).backward()
        optimizer_d.step()
        distances.append(abs(made.data.mean().item() - 4.0))
    tail = distances[-50:]
    print(f"loss {distances[0]:.4f} -> {sum(tail) / len(tail):.4f}")
