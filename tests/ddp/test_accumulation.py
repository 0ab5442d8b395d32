"""Gradients that accumulate on one rank, in no_sync(), until a backward reduces them: whatever each of them used."""

from __future__ import annotations

import contextlib
from typing import Any

import extent
import numpy as np
import pytest
from ddp_models import IN, OUT, assert_close, assert_same_bits, batches, copies, gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import averaging
from resilin.ddp.comm_hooks.default_hooks import allreduce_hook
from resilin.testing.ranks import run_ranks

LAYERS = 3
Uses = frozenset[int]
STEP = st.lists(st.lists(st.frozensets(st.integers(0, LAYERS - 1), min_size=1), min_size=2, max_size=2), max_size=3)


class Chosen(nn.Module):
    """A sum of some of its layers, and one that is always used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(IN, OUT) for _ in range(LAYERS))
        self.always = nn.Linear(IN, OUT)

    def forward(self, x: Tensor, uses: Uses) -> Any:
        y = self.always(x)
        for number in sorted(uses):
            y = y + self.layers[number](x)
        return (y**2).mean()


def train(model: Any, steps: list[list[list[Uses]]], rank: int, zeroed: bool, dropped: bool) -> list[Any]:
    """Gradients after each step, whose last backward reduces. dropped: what is there before it is thrown away."""
    seen, inputs = [], batches(8, seed=rank)
    for step in steps:
        if zeroed:
            model.zero_grad()
        for number, uses in enumerate(step):
            last = number == len(step) - 1
            if last and dropped:
                model.zero_grad()
            with contextlib.nullcontext() if last else model.no_sync():
                model(inputs[number], uses[rank]).backward()
        seen.append(gradients(model.module))
    return seen


def expected(module: nn.Module, steps: list[list[list[Uses]]], zeroed: bool, dropped: bool) -> list[Any]:
    """The same of one process, which computes every rank's part."""
    seen = []
    for step in steps:
        if zeroed:
            module.zero_grad()
        for number, uses in enumerate(step):
            if dropped and number == len(step) - 1:
                module.zero_grad()
            for rank in range(2):
                (module(batches(8, seed=rank)[number], uses[rank]) / 2).backward()
        seen.append(gradients(module))
    return seen


@pytest.mark.slow
@settings(max_examples=extent.examples(40), deadline=None)
@given(
    steps=st.lists(STEP.filter(bool), min_size=1, max_size=3),
    zeroed=st.booleans(),
    dropped=st.booleans(),
    as_view=st.booleans(),
    beside=st.booleans(),
    hooked=st.booleans(),
)
def test_what_any_rank_used_since_the_last_reduction_is_reduced(
    steps: list[list[list[Uses]]], zeroed: bool, dropped: bool, as_view: bool, beside: bool, hooked: bool
) -> None:
    modules = copies(Chosen(), 3)

    def work(rank: int) -> list[Any]:
        model = DDP(modules[rank], find_unused_parameters=True, gradient_as_bucket_view=as_view, bucket_cap_mb=1e-4)
        if hooked:
            model.register_comm_hook(None, allreduce_hook)
        return train(model, steps, rank, zeroed, dropped)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(averaging, "overlaps", lambda group: beside)
        results = run_ranks(2, work).results()
    for mine, theirs, want in zip(*results, expected(modules[2], steps, zeroed, dropped), strict=True):
        assert_close(mine, want)
        assert [a is None for a in mine] == [b is None for b in theirs]
        assert_same_bits([[a for a in mine if a is not None], [b for b in theirs if b is not None]])


@pytest.mark.parametrize("as_view", [True, False])
def test_ranks_stay_equal_where_the_last_backward_leaves_out_what_one_rank_used_before(as_view: bool) -> None:
    modules = copies(Chosen(), 2)

    def work(rank: int) -> list[np.ndarray]:
        model = DDP(modules[rank], find_unused_parameters=True, gradient_as_bucket_view=as_view)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with model.no_sync():
                model(batches(1, seed=rank)[0], frozenset({rank})).backward()
            model(batches(1, seed=rank)[0], frozenset({2})).backward()
            optimizer.step()
        return [param.detach().numpy().copy() for param in model.parameters()]

    assert_same_bits(run_ranks(2, work).results())
