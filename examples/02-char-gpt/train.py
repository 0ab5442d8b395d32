"""Train a small GPT on the text of Python's own documentation, character by character, and print what it dreams up.

    elastic-run --standalone --nproc-per-node 2 examples/02-char-gpt/train.py

The same page trains with one worker or many, and goes on when a worker dies.
B batch, T time, H heads, D width of a head, W width of the model.
"""

from __future__ import annotations

import argparse
import os
from pydoc_data.topics import topics

import numpy as np

import resilin as torch
import resilin.nn.functional as F
from resilin import elastic, nn
from resilin.ddp import DistributedDataParallel as DDP

SHARDS = 4


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(0.1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BTW: torch.Tensor) -> torch.Tensor:
        B, T, W = x_BTW.shape
        qkv = self.qkv(self.norm1(x_BTW)).view(B, T, 3, self.heads, W // self.heads).permute(2, 0, 3, 1, 4)
        y_BHTD = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x_BTW = x_BTW + self.dropout(self.out(y_BHTD.transpose(1, 2).reshape(B, T, W)))
        return x_BTW + self.dropout(self.mlp(self.norm2(x_BTW)))


class GPT(nn.Module):
    def __init__(
        self, vocabulary: int, context: int, width: int, layers: int, heads: int, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.context = context
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, token_BT: torch.Tensor) -> torch.Tensor:
        x_BTW = self.token(token_BT) + self.position(torch.arange(token_BT.shape[1], device=token_BT.device))
        return self.head(self.norm(self.blocks(x_BTW)))


def sample(model: GPT, characters: str, prompt: str, length: int, device: torch.device) -> str:
    """Continue `prompt` by `length` characters, drawn one at a time."""
    model.eval()
    tokens = [characters.index(c) for c in prompt]
    with torch.no_grad():
        for _ in range(length):
            logits = model(torch.tensor([tokens[-model.context :]], device=device))[0, -1]
            tokens.append(torch.multinomial(F.softmax(logits / 0.7, dim=-1), 1).item())
    return "".join(characters[token] for token in tokens)


@elastic.run
def train(state: elastic.State, windows: torch.Tensor, epochs: int, log_every: int) -> None:
    """Called once per generation: after a change of the world it starts again at the last committed step."""
    world = elastic.world()
    model = DDP(state.model, shards=SHARDS)
    model.train()
    for step in elastic.steps(state.sampler, epochs=epochs):
        state.optimizer.zero_grad()
        losses = []
        for shard in step:
            text = windows[shard.indices]
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), text[:, 1:].reshape(-1))
            loss.backward()
            losses.append(loss.item())
        state.optimizer.step()
        state.commit(step)
        if world.rank == 0 and step.step % log_every == 0:
            mean = sum(losses) / max(1, len(losses))
            print(f"epoch {step.epoch} step {step.step} loss {mean:.3f} workers {world.world_size}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"epochs": 2, "batch-size": 32, "context": 64, "width": 128, "layers": 3, "heads": 4, "characters": 300}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--windows", type=int, default=None, help="train on this many windows of the text only")
    parser.add_argument("--log-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--device", default="cpu", help="cuda: the GPU of this worker's number on its host")
    args = parser.parse_args()

    if args.device == "cuda":  # before the first tensor: a process computes on one GPU
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    device = torch.device(args.device)

    text = "\n".join(topics.values())
    characters = "".join(sorted(set(text)))
    number = {c: i for i, c in enumerate(characters)}
    tokens = np.array([number[c] for c in text], dtype=np.int64)
    length = args.context + 1  # a window holds its inputs and, one character later, its targets
    windows = torch.from_numpy(tokens[: len(tokens) // length * length].reshape(-1, length)[: args.windows].copy())

    torch.manual_seed(0)
    model = GPT(len(characters), args.context, args.width, args.layers, args.heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sampler = elastic.ElasticSampler(len(windows), args.batch_size, shards=SHARDS)
    state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)
    train(state, windows.to(device), args.epochs, args.log_every)

    if elastic.world().rank == 0:
        print(sample(model, characters, prompt="The ", length=args.characters, device=device), flush=True)


if __name__ == "__main__":
    main()
