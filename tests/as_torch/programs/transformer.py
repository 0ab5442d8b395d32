"""A small language model: causal attention by hand, tied weights, decay in groups, warmup, accumulated gradients."""

import inspect
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab_size: int = 11
    block_size: int = 16
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 32


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))
        self.n_head = config.n_head

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (p.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for p in self.c_attn(x).split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        fused = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert torch.allclose(y, fused, atol=1e-5)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(config.n_embd), Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.ModuleDict(
            dict(c_fc=nn.Linear(config.n_embd, 4 * config.n_embd), c_proj=nn.Linear(4 * config.n_embd, config.n_embd))
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    def configure_optimizers(self, weight_decay, learning_rate):
        params = {name: p for name, p in self.named_parameters() if p.requires_grad}
        groups = [
            {"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        fused = "fused" in inspect.signature(torch.optim.AdamW).parameters and torch.cuda.is_available()
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), **(dict(fused=True) if fused else {}))

    @torch.no_grad()
    def generate(self, idx, count, top_k=3):
        for _ in range(count):
            logits, _ = self(idx[:, -self.config.block_size :])
            logits = logits[:, -1, :]
            v, _ = torch.topk(logits, top_k)
            logits[logits < v[:, [-1]]] = -float("Inf")
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
        return idx


def batch(size, config):
    """Rows that count by their own step, modulo the vocabulary."""
    start = torch.randint(config.vocab_size, (size, 1))
    step = torch.randint(1, 4, (size, 1))
    rows = (start + step * torch.arange(config.block_size + 1)) % config.vocab_size
    return rows[:, :-1], rows[:, 1:].contiguous()


if __name__ == "__main__":
    torch.manual_seed(1337)
    config = Config()
    model = GPT(config)
    optimizer = model.configure_optimizers(0.1, 1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda it: min((it + 1) / 5, 0.5 * (1 + math.cos(math.pi * it / 60)))
    )
    losses = []
    for _ in range(50):
        for _ in range(2):
            _, loss = model(*batch(16, config))
            (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        losses.append(loss.item())
    model.eval()
    assert model.generate(torch.zeros((1, 1), dtype=torch.long), 20).shape == (1, 21)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
