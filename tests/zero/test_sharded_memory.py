"""What a rank of a sharded module holds at most."""

from __future__ import annotations

import json
import math
from pathlib import Path

import extent
import pytest

from resilin.testing.ranks import start_ranks

_WORKER = """
import contextlib
import json
import resilin
from resilin import nn, optim, zero
from resilin.core.machine import memory
from resilin.data import ElasticSampler
from resilin.testing.ranks import join_from_environment

group = join_from_environment(20.0)
WIDTH = 400
x = resilin.randn(2, WIDTH)
before = memory.stats()["allocated"]
blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(6)]
net = nn.Sequential(*blocks)
options = dict(units=blocks) if {stage} == 3 else dict(bucket_cap_mb=2)
model = zero.shard(net, {stage}, shards={shards}, **options)
optimizer = optim.AdamW(model.parameters())
sampler = ElasticSampler(48, 16, {shards} or 3, in_rounds=True)
for plan in sampler.steps(group.rank(), group.size()):
    optimizer.zero_grad()
    for shard in plan.shards if {shards} else [None]:
        with model.shard(shard) if shard else contextlib.nullcontext():
            (model(x) ** 2).mean().backward()
    optimizer.step()
print(json.dumps([memory.stats()["peak"] - before, 4 * sum(param.numel() for param in net.parameters())]), flush=True)
group.close()
"""


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("stage", "shards"), extent.short([(2, None), (2, 8), (3, None), (3, 8)], of=[(2, 8), (3, None)])
)
def test_the_most_ever_in_use_is_what_the_stage_promises(stage: int, shards: int | None, tmp_path: Path) -> None:
    world = 3
    ranks = start_ranks(world, _WORKER.format(stage=stage, shards=shards), str(tmp_path))
    for rank in ranks:
        with rank:
            code, out, err = rank.finish(60)
            assert code == 0, err
            peak, parameters = json.loads(out)
            if stage == 3:
                promised = 4 * parameters / world + 2 * parameters / 6
            else:
                promised = parameters + 3 * parameters / world + 2 * ((2 << 20) + 4 * 400 * 400)  # no tensor is cut
            if shards is not None:  # as many nodes of a tree as log2 says, not one gradient; a round's rows of a unit
                largest = parameters / 6 if stage == 3 else (2 << 20) + 4 * 400 * 400
                promised += (math.ceil(math.log2(shards)) - 1) * parameters / world + largest
            assert peak <= promised * 1.05
            assert peak >= promised * 0.5  # the figures mean something
