"""Checkpoints of divided modules and optimizers on devices: read by any number of ranks, on any device."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from sharded_nets import Language, adamw, loss_of, tokens

from resilin import checkpoint, optim
from resilin import distributed as dist
from resilin.errors import UsageError
from resilin.testing.ranks import run_ranks
from resilin.zero import OptimizerState, ZeroRedundancyOptimizer, shard

BACKEND = "cpu:gloo,sim:gloo"


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_divided_module_on_a_device_goes_on_in_another_world_on_the_cpu(
    tmp_path: Path, stage: int, offload: bool
) -> None:
    net = Language(2)

    def write(rank: int) -> dict[str, list[float]]:
        model = shard(copy.deepcopy(net).to("sim:1"), stage, cpu_offload=offload)
        optimizer = adamw(model.parameters())
        loss_of(model, tokens(0, rank).to("sim:1")).backward()
        optimizer.step()
        checkpoint.save(tmp_path, {"model": model, "optimizer": OptimizerState(model, optimizer)})
        return {name: value.tolist() for name, value in model.state_dict().items()}

    (saved, _) = run_ranks(2, write, backend=BACKEND).results()

    def read(rank: int, where: str) -> None:
        model = shard(copy.deepcopy(net).to(where), 5 - stage)
        optimizer = adamw(model.parameters())
        checkpoint.load(tmp_path, {"model": model, "optimizer": OptimizerState(model, optimizer)})
        assert {str(piece.device) for piece in model.parameters()} == {where}
        moments = [entry["exp_avg"] for entry in optimizer.state.values()]
        assert {str(moment.device) for moment in moments} == {where}
        assert any(bool(moment.abs().sum() > 0) for moment in moments)
        assert {name: value.tolist() for name, value in model.state_dict().items()} == saved
        loss_of(model, tokens(1, rank).to(where)).backward()
        optimizer.step()

    for where in ("cpu", "sim:2"):
        run_ranks(3, read, where, backend=BACKEND).results()


def test_a_divided_optimizer_on_a_device_gives_its_whole_state_to_the_plain_one(tmp_path: Path) -> None:
    net = Language(2)

    def work(rank: int) -> None:
        plain, divided = copy.deepcopy(net).to("sim:1"), copy.deepcopy(net).to("sim:1")
        whole = optim.AdamW(plain.parameters(), lr=0.01)
        part = ZeroRedundancyOptimizer(divided.parameters(), optim.AdamW, lr=0.01)
        for model, optimizer in ((plain, whole), (divided, part)):
            loss_of(model, tokens(0, 0).to("sim:1")).backward()
            optimizer.step()
        checkpoint.save(tmp_path, {"optimizer": part})
        fresh = optim.AdamW(plain.parameters(), lr=0.5)
        checkpoint.load(tmp_path, {"optimizer": fresh})
        for param in plain.parameters():
            ours, expected = fresh.state[param]["exp_avg"], whole.state[param]["exp_avg"]
            assert str(ours.device) == "sim:1"
            np.testing.assert_allclose(ours.cpu().numpy(), expected.cpu().numpy(), atol=1e-7)

    run_ranks(2, work, backend=BACKEND).results()


def test_a_group_without_a_backend_for_the_device_says_what_to_write() -> None:
    def work(rank: int) -> None:
        with pytest.raises(UsageError, match=r"no backend for 'sim' tensors: this group has .* as in backend='.*sim:g"):
            shard(Language(2).to("sim:1"))
        dist.barrier()

    run_ranks(2, work, backend="cpu:gloo").results()
