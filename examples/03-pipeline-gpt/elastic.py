"""Train the same GPT in stages whose processes may die: a lost stage comes back from its second copy.

    elastic-run --standalone --nproc-per-node 2 --max-restarts 3 examples/03-pipeline-gpt/elastic.py
    elastic-run --standalone --nproc-per-node 4 --max-restarts 3 examples/03-pipeline-gpt/elastic.py   # 2 replicas

Kill any worker while it runs: survivors keep their processes, the step is made again with the stages that are there,
and the weights end with the bits of an undisturbed run of any size.
"""

from __future__ import annotations

import argparse
import os
import zlib

from train import GPT, SHARDS, add_sizes, loss_fn, windows_of

import resilin as torch
from resilin import elastic
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel as DDP
from resilin.distributed.pipelining import ElasticPipeline, SplitPoint, pipeline

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--stages", type=int, default=2)
add_sizes(parser)
args = parser.parse_args()

windows, vocabulary = windows_of(args.context)

torch.manual_seed(0)
gpt = GPT(vocabulary, args.context, args.width, args.layers, args.heads)
cuts = {f"blocks.{args.layers * n // args.stages}": SplitPoint.BEGINNING for n in range(1, args.stages)}
pipe = pipeline(gpt, (torch.zeros(1, args.context, dtype=torch.int64),), split_spec=cuts)
model = ElasticPipeline(
    pipe, SHARDS, loss_fn, data_parallel=lambda module, group: DDP(module, process_group=group, shards=SHARDS)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
sampler = ElasticSampler(len(windows), batch_size=args.batch, shards=SHARDS, seed=0)
state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)


@elastic.run(state=state)
def train() -> None:
    world = elastic.world()
    print(f"process {os.getpid()}, rank {world.rank} of {world.world_size}, generation {world.generation}", flush=True)
    while state.step < args.steps:
        for plan in sampler.steps(model.replica, model.replicas):
            optimizer.zero_grad()
            chosen = [windows[shard.indices] for shard in plan.shards]
            losses: list[torch.Tensor] = []
            model.step_shards(
                plan.shards,
                [(text_BT[:, :-1],) for text_BT in chosen],
                target_mbs=[text_BT[:, 1:] for text_BT in chosen],
                losses=losses,
            )
            optimizer.step()
            state.commit(plan)
            if losses and model.replica == 0 and state.step % 20 == 0:
                print(f"step {state.step}: loss {sum(one.item() for one in losses) / len(losses):.3f}", flush=True)
            if state.step == args.steps:
                break
    whole = model.state_dict()
    if world.rank == 0:
        found = zlib.crc32(b"".join(whole[name].numpy().tobytes() for name in sorted(whole)))
        print(f"weights {found:08x}", flush=True)


train()
