"""The two models of `train_step`, written against PyTorch's names; `torch` is whichever library runs.

B batch, T time, H heads, D width of a head, W width of the model, V vocabulary.
"""

from __future__ import annotations

from typing import Any

GPT_LAYERS, GPT_WIDTH, GPT_HEADS, GPT_TIME, GPT_BATCH, GPT_VOCABULARY = 4, 256, 4, 128, 8, 96
MLP_BATCH, MLP_SIZES = 128, (784, 1024, 1024, 10)


def mlp(torch: Any) -> Any:
    """784-1024-1024-10 with ReLU."""
    nn = torch.nn
    first, second, third, last = MLP_SIZES
    return nn.Sequential(
        nn.Linear(first, second), nn.ReLU(), nn.Linear(second, third), nn.ReLU(), nn.Linear(third, last)
    )


def gpt(torch: Any) -> Any:
    """A decoder of 4 layers, width 256, 4 heads, over 128 tokens of a vocabulary of 96."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(GPT_WIDTH), nn.LayerNorm(GPT_WIDTH)
            self.qkv = nn.Linear(GPT_WIDTH, 3 * GPT_WIDTH)
            self.out = nn.Linear(GPT_WIDTH, GPT_WIDTH)
            self.mlp = nn.Sequential(
                nn.Linear(GPT_WIDTH, 4 * GPT_WIDTH), nn.GELU(), nn.Linear(4 * GPT_WIDTH, GPT_WIDTH)
            )

        def forward(self, x_BTW: Any) -> Any:
            B, T, W = x_BTW.shape
            qkv = self.qkv(self.norm1(x_BTW)).view(B, T, 3, GPT_HEADS, W // GPT_HEADS).permute(2, 0, 3, 1, 4)
            y_BHTD = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
            x_BTW = x_BTW + self.out(y_BHTD.transpose(1, 2).reshape(B, T, W))
            return x_BTW + self.mlp(self.norm2(x_BTW))

    class GPT(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(GPT_VOCABULARY, GPT_WIDTH)
            self.position = nn.Embedding(GPT_TIME, GPT_WIDTH)
            self.blocks = nn.Sequential(*[Block() for _ in range(GPT_LAYERS)])
            self.norm = nn.LayerNorm(GPT_WIDTH)
            self.head = nn.Linear(GPT_WIDTH, GPT_VOCABULARY)

        def forward(self, token_BT: Any) -> Any:
            x_BTW = self.token(token_BT) + self.position(torch.arange(token_BT.shape[1]))
            return self.head(self.norm(self.blocks(x_BTW)))

    return GPT()


def batch(torch: Any, model: str, rank: int) -> tuple[Any, Any]:
    """One fixed batch (input, target class numbers) for `model`, another one on each rank."""
    torch.manual_seed(100 + rank)
    if model == "mlp":
        return torch.randn(MLP_BATCH, MLP_SIZES[0]), torch.randint(0, MLP_SIZES[-1], (MLP_BATCH,))
    shape = (GPT_BATCH, GPT_TIME)
    return torch.randint(0, GPT_VOCABULARY, shape), torch.randint(0, GPT_VOCABULARY, shape)
