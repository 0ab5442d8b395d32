"""What a rank of a sharded module holds at most."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilin.testing.ranks import start_ranks

_WORKER = """
import json
import resilin
from resilin import nn, optim, zero
from resilin.core.machine import memory
from resilin.testing.ranks import join_from_environment

group = join_from_environment(20.0)
WIDTH = 400
x = resilin.randn(2, WIDTH)
before = memory.stats()["allocated"]
blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(6)]
net = nn.Sequential(*blocks)
model = zero.shard(net, {stage}, units=blocks) if {stage} == 3 else zero.shard(net, {stage}, bucket_cap_mb=2)
optimizer = optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    optimizer.step()
print(json.dumps([memory.stats()["peak"] - before, 4 * sum(param.numel() for param in net.parameters())]), flush=True)
group.close()
"""


@pytest.mark.multiproc
@pytest.mark.parametrize("stage", [2, 3])
def test_the_most_ever_in_use_is_what_the_stage_promises(stage: int, tmp_path: Path) -> None:
    world = 3
    ranks = start_ranks(world, _WORKER.format(stage=stage), str(tmp_path))
    for rank in ranks:
        with rank:
            code, out, err = rank.finish(60)
            assert code == 0, err
            peak, parameters = json.loads(out)
            if stage == 3:
                promised = 4 * parameters / world + 2 * parameters / 6
            else:
                promised = parameters + 3 * parameters / world + 2 * ((2 << 20) + 4 * 400 * 400)  # no tensor is cut
            assert peak <= promised * 1.05
            assert peak >= promised * 0.5  # the figures mean something
