"""Train a small GPT in stages on several processes, with or without replicas of the pipeline.

    elastic-run --standalone --nproc-per-node 2 examples/03-pipeline-gpt/train.py --stages 2
    elastic-run --standalone --nproc-per-node 4 examples/03-pipeline-gpt/train.py --stages 2     # 2 stages x 2 replicas

Weights end with the same bits for any number of stages and replicas, and any schedule: the last line says a checksum.
B batch, T time, W width of the model.
"""

from __future__ import annotations

import argparse
import os
import zlib
from pydoc_data.topics import topics

import numpy as np

import resilin as torch
import resilin.distributed as dist
import resilin.nn.functional as F
from resilin import nn
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel as DDP
from resilin.distributed.pipelining import PipelineStage, SplitPoint, clip_grad_norm_, get_schedule_class, pipeline

SHARDS = 8  # micro-batches of a step, over all replicas


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, token_BT: torch.Tensor) -> torch.Tensor:
        position_T = torch.arange(token_BT.shape[1], device=token_BT.device)
        return self.dropout(self.token(token_BT) + self.position(position_T))


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
    """Its parts run in a row, so it can be cut between any two of them."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, token_BT: torch.Tensor) -> torch.Tensor:
        x_BTW = self.embedding(token_BT)
        for block in self.blocks:
            x_BTW = block(x_BTW)
        return self.head(self.norm(x_BTW))


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """The flags that say how large the model and its batches are."""
    for name, default in (("steps", 100), ("width", 64), ("layers", 4), ("heads", 4), ("context", 64), ("batch", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)


def windows_of(context: int) -> tuple[torch.Tensor, int]:
    """Windows of the text, each a character longer than the context; and how many different characters it has."""
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    encoded = torch.from_numpy(np.array([characters.index(c) for c in text[:200_000]]))
    return encoded[: len(encoded) // (context + 1) * (context + 1)].reshape(-1, context + 1), len(characters)


def loss_fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def build_stages(
    args: argparse.Namespace, model: GPT, cls: type, device: torch.device, group: object, replicas: object
) -> list[PipelineStage]:
    """This rank's stages: blocks are dealt out evenly, each stage is averaged with its replicas."""
    place, ranks = dist.get_rank(group), dist.get_world_size(group)
    count = ranks * args.per_rank
    cuts = {f"blocks.{len(model.blocks) * n // count}": SplitPoint.BEGINNING for n in range(1, count)}
    example = torch.zeros(1, args.context, dtype=torch.int64, device=device)
    stages = []
    for index in cls.stage_indices(place, ranks, count):
        part = pipeline(model, (example,), split_spec=cuts).get_stage_module(index) if cuts else model
        wrapped = DDP(part, process_group=replicas, shards=SHARDS)
        stages.append(PipelineStage(wrapped, index, count, device, group=group))
    return stages


def groups(stages: int) -> tuple[object, object, int]:
    """The group of this rank's pipeline, that of the replicas of its stages, and which replica this is."""
    rank, count = dist.get_rank(), dist.get_world_size() // stages
    lines = [dist.new_group([replica * stages + place for place in range(stages)]) for replica in range(count)]
    columns = [dist.new_group([replica * stages + place for replica in range(count)]) for place in range(stages)]
    return lines[rank // stages], columns[rank % stages], rank // stages


def checksum(stages: list[PipelineStage], group: object) -> int:
    """The same for equal weights, however they are divided."""
    mine = {
        name: value.cpu().numpy().tobytes()
        for stage in stages
        for name, value in stage.submod.module.state_dict().items()
    }
    everybody: list[dict[str, bytes]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everybody, mine, group=group)
    whole = {name: value for each in everybody for name, value in each.items()}
    return zlib.crc32(b"".join(whole[name] for name in sorted(whole)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=2, help="ranks of one pipeline; others are its replicas")
    parser.add_argument("--per-rank", type=int, default=1, help="stages on each of them")
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--device", default="cpu", help="cuda: the GPU of this worker's number on its host")
    add_sizes(parser)
    args = parser.parse_args()

    if args.device == "cuda":  # before the first tensor: a process computes on one GPU
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    device = torch.device(args.device)
    dist.init_process_group()
    group, replicas, replica = groups(args.stages)
    windows, vocabulary = windows_of(args.context)

    torch.manual_seed(0)
    model = GPT(vocabulary, args.context, args.width, args.layers, args.heads).to(device)
    cls = get_schedule_class(args.schedule)
    stages = build_stages(args, model, cls, device, group, replicas)
    microbatches = SHARDS // dist.get_world_size(replicas)
    schedule = cls(stages if args.per_rank > 1 else stages[0], microbatches, loss_fn=loss_fn)
    optimizer = torch.optim.AdamW([p for stage in stages for p in stage.submod.parameters()], lr=3e-3)
    sampler = ElasticSampler(len(windows), batch_size=args.batch, shards=SHARDS, seed=0)

    done = 0
    while done < args.steps:
        for plan in sampler.steps(replica, dist.get_world_size(replicas)):
            optimizer.zero_grad()
            chosen = [windows[shard.indices].to(device) for shard in plan.shards]
            losses: list[torch.Tensor] = []
            schedule.step_shards(
                plan.shards,
                [(text_BT[:, :-1],) for text_BT in chosen],
                target_mbs=[text_BT[:, 1:] for text_BT in chosen],
                losses=losses,
            )
            clip_grad_norm_(stages, 1.0)
            optimizer.step()
            sampler.advance(plan)
            done += 1
            if losses and replica == 0 and done % 20 == 0:
                print(f"step {done}: loss {sum(loss.item() for loss in losses) / len(losses):.3f}", flush=True)
            if done == args.steps:
                break
    found = checksum(stages, group)
    if dist.get_rank() == 0:
        copies = dist.get_world_size() // args.stages
        print(f"{args.stages * args.per_rank} stages x {copies} replicas: weights {found:08x}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
