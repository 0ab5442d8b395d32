"""Copies of wrapped models: by copy.deepcopy, by pickle, and running averages."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from ddp_models import OUT, assert_same_bits, batches, gradients, loss_of, make_model, values

from resilin import bfloat16, nn, optim
from resilin import distributed as dist
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp.mixed_precision import _MixedPrecision
from resilin.errors import UsageError
from resilin.testing.ranks import run_ranks


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": False, "find_unused_parameters": True},
        {"mixed_precision": _MixedPrecision(reduce_dtype=bfloat16)},
    ],
)
def test_a_copy_trains_on_its_own(how: str, options: dict[str, Any]) -> None:
    inputs = batches(2)

    def train(rank: int) -> None:
        model = DDP(nn.Sequential(make_model(), nn.BatchNorm1d(OUT)), bucket_cap_mb=1e-4, **options)
        called: list[int] = []
        model.eval().train()
        loss_of(model, inputs[rank]).backward()
        if how == "deepcopy":
            model.register_forward_hook(lambda *_: called.append(1))
        made = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
        assert made.training
        assert made.process_group is model.process_group
        before = values(model), gradients(model)
        for wrapper in (made, model):  # from one start, on the same batch
            for param in wrapper.parameters():
                param.grad = None
            loss_of(wrapper, inputs[1 - rank]).backward()
        assert len(called) == (2 if how == "deepcopy" else 0)
        assert_same_bits([values(model), values(made)])
        assert_same_bits([gradients(model), gradients(made)])
        optim.SGD(made.parameters(), lr=1.0).step()
        assert_same_bits([before[0][:4], values(model)[:4]])
        assert made.stats()["backwards"] == 1
        assert model.stats()["backwards"] == 2

    run_ranks(2, train).results()


def test_a_running_average_of_a_wrapped_model_can_be_kept() -> None:
    def train(rank: int) -> list[np.ndarray]:
        model = DDP(make_model())
        averaged = optim.swa_utils.AveragedModel(model)
        for x in batches(3, seed=rank):
            loss_of(model, x).backward()
            optim.SGD(model.parameters(), lr=0.1).step()
            averaged.update_parameters(model)
        assert not np.array_equal(values(averaged.module)[0], values(model)[0])
        return values(averaged)

    assert_same_bits(run_ranks(2, train).results())


def test_a_wrapper_in_another_group_is_copied_but_not_pickled() -> None:
    def train(rank: int) -> None:
        model = DDP(make_model(), process_group=dist.new_group([0, 1]))
        assert copy.deepcopy(model).process_group is model.process_group
        with pytest.raises(UsageError, match="pickled with the default process group only"):
            pickle.dumps(model)

    run_ranks(2, train).results()
