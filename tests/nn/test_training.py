"""Whole models learn, and go on with equal bits from a checkpoint."""

import io

import pytest

import resilin
from resilin import nn, optim
from resilin.core import rng
from resilin.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False, is_causal=True)[0]
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocabulary=11, width=16, heads=2, length=12):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(resilin.zeros(length, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, index):
        x = self.token(index) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def mlp():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    x = resilin.randn(48, 8)
    return model, x, (x[:, :3] * 3).argmax(dim=1), optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def cnn():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding="same", groups=2),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 4),
    )
    target = resilin.arange(32) % 4
    x = resilin.randn(32, 1, 8, 8) * 0.3
    for i in range(32):
        x[i, 0, :, 2 * (i % 4)] += 1.0
    return model, x, target, optim.Adam(model.parameters(), lr=0.01)


def gpt():
    model = TinyGPT()
    tokens = (resilin.arange(13)[None, :] + resilin.arange(8)[:, None]) % 11
    optimizer = optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    return model, tokens[:, :-1], tokens[:, 1:], optimizer


def train(model, x, target, optimizer, steps):
    losses = []
    for _ in range(steps):
        logits = model(x)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [mlp, cnn, gpt])
def test_a_model_learns(make):
    rng.manual_seed(1)
    losses = train(*make(), steps=60)
    assert losses[-1] < 0.25 * losses[0]


@pytest.mark.parametrize("make", [mlp, cnn, gpt])
def test_training_goes_on_with_equal_bits_after_a_checkpoint(make):
    rng.manual_seed(2)
    model, x, target, optimizer = make()
    train(model, x, target, optimizer, 3)
    other, _, _, other_optimizer = make()
    file = io.BytesIO()
    resilin.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": rng.get_rng_state()}, file)
    file.seek(0)
    saved = resilin.load(file)
    other.load_state_dict(saved["model"])
    other_optimizer.load_state_dict(saved["optimizer"])
    expected = train(model, x, target, optimizer, 3)
    rng.set_rng_state(saved["rng"])
    assert train(other, x, target, other_optimizer, 3) == expected
    for name, value in model.state_dict().items():
        assert other.state_dict()[name].numpy().tobytes() == value.numpy().tobytes(), name


def test_the_same_seed_trains_to_equal_bits():
    runs = []
    for _ in range(2):
        rng.manual_seed(3)
        model, *rest = gpt()
        train(model, *rest, steps=4)
        runs.append([parameter.detach().numpy().tobytes() for parameter in model.parameters()])
    assert runs[0] == runs[1]
