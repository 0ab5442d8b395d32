"""The models of `train_step` and `models_step`, written against PyTorch's names; `torch` is whichever library runs.

B batch, T time, H heads, D width of a head, W width of the model, V vocabulary, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

GPT_LAYERS, GPT_WIDTH, GPT_HEADS, GPT_VOCABULARY = 4, 256, 4, 96


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained, on batches of what."""

    text: str
    build: Callable[[Any], Any]
    """From the library to the module."""
    input: tuple[int, ...]
    """The batch's shape, of normal floats, or of numbers below `vocabulary`."""
    target: tuple[int, ...]
    classes: int
    vocabulary: int = 0

    def batch(self, torch: Any, rank: int) -> tuple[Any, Any]:
        """One fixed batch (input, target class numbers), another one on each rank."""
        torch.manual_seed(100 + rank)
        x = torch.randint(0, self.vocabulary, self.input) if self.vocabulary else torch.randn(*self.input)
        return x, torch.randint(0, self.classes, self.target)


def _mlp(*sizes: int) -> Callable[[Any], Any]:
    def build(torch: Any) -> Any:
        nn, layers = torch.nn, []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return build


def _cnn(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def _residual_cnn(torch: Any) -> Any:
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
            self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
            same = before == after and stride == 1
            self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

        def forward(self, x_BCHW: Any) -> Any:
            y_BCHW = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x_BCHW)))))
            return functional.relu(y_BCHW + self.shortcut(x_BCHW))

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        Block(32, 32, 1), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1), Block(64, 128, 2), Block(128, 128, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def _lstm(torch: Any) -> Any:
    nn = torch.nn

    class Classifier(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(128, 256, batch_first=True)
            self.head = nn.Linear(256, 10)

        def forward(self, x_BTW: Any) -> Any:
            return self.head(self.lstm(x_BTW)[0][:, -1])

    return Classifier()


def gpt(
    time: int,
    vocabulary: int = GPT_VOCABULARY,
    width: int = GPT_WIDTH,
    layers: int = GPT_LAYERS,
    heads: int = GPT_HEADS,
) -> Callable[[Any], Any]:
    """A decoder over `time` tokens."""

    def build(torch: Any) -> Any:
        nn, functional = torch.nn, torch.nn.functional

        class Block(nn.Module):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
                self.qkv = nn.Linear(width, 3 * width)
                self.out = nn.Linear(width, width)
                self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

            def forward(self, x_BTW: Any) -> Any:
                B, T, W = x_BTW.shape
                qkv = self.qkv(self.norm1(x_BTW)).view(B, T, 3, heads, W // heads).permute(2, 0, 3, 1, 4)
                y_BHTD = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
                x_BTW = x_BTW + self.out(y_BHTD.transpose(1, 2).reshape(B, T, W))
                return x_BTW + self.mlp(self.norm2(x_BTW))

        class GPT(nn.Module):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.token = nn.Embedding(vocabulary, width)
                self.position = nn.Embedding(time, width)
                self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
                self.norm = nn.LayerNorm(width)
                self.head = nn.Linear(width, vocabulary)

            def forward(self, token_BT: Any) -> Any:
                x_BTW = self.token(token_BT) + self.position(torch.arange(token_BT.shape[1]))
                return self.head(self.norm(self.blocks(x_BTW)))

        return GPT()

    return build


def _gpt_model(time: int, batch: int) -> Model:
    return Model(
        text=f"GPT 4 layers, width 256, 4 heads, {time} tokens, batch {batch}",
        build=gpt(time), input=(batch, time), target=(batch, time), classes=GPT_VOCABULARY, vocabulary=GPT_VOCABULARY,
    )  # fmt: skip


MODELS: dict[str, Model] = {
    "tiny": Model(text="tiny MLP 64-64-10, batch 32", build=_mlp(64, 64, 10), input=(32, 64), target=(32,), classes=10),
    "mlp": Model(
        text="MLP 784-1024-1024-10, batch 128",
        build=_mlp(784, 1024, 1024, 10), input=(128, 784), target=(128,), classes=10,
    ),
    "wide_mlp": Model(
        text="wide MLP 1024-4096-4096-10, batch 256",
        build=_mlp(1024, 4096, 4096, 10), input=(256, 1024), target=(256,), classes=10,
    ),
    "cnn": Model(
        text="CNN of 2 convolutions, 28x28, batch 64",
        build=_cnn, input=(64, 1, 28, 28), target=(64,), classes=10,
    ),
    "residual_cnn": Model(
        text="residual CNN of 6 blocks with batch norm, 32x32, batch 32",
        build=_residual_cnn, input=(32, 3, 32, 32), target=(32,), classes=10,
    ),
    "lstm": Model(
        text="LSTM 128-256 over 64 steps, batch 32",
        build=_lstm, input=(32, 64, 128), target=(32,), classes=10,
    ),
    "gpt": _gpt_model(128, 8),
    "long_gpt": _gpt_model(512, 2),
}  # fmt: skip
