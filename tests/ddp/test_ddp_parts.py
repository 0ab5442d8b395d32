"""Parts of modules under DistributedDataParallel, wrappers in wrappers, parameters that change after wrapping, and what
follows backward."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from ddp_models import (
    IN,
    OUT,
    assert_close,
    assert_same_bits,
    batches,
    copies,
    gradients,
    loss_of,
    make_model,
    mean_gradients,
)

import resilin
from resilin import distributed as dist
from resilin import nn
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.errors import DistBackendError, UsageError
from resilin.testing.ranks import run_ranks


def test_a_part_of_a_model_is_wrapped_and_the_rest_trains_alone() -> None:
    class Model(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body, self.head = body, nn.Linear(OUT, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    modules, inputs = copies(Model(make_model()), 3), batches(2)

    def train(rank: int) -> tuple[list[Any], list[Any]]:
        module = modules[rank]
        module.body = DDP(module.body)
        loss_of(module, inputs[rank]).backward()
        return gradients(module.body), gradients(module.head)

    results = run_ranks(2, train).results()
    expected = mean_gradients(modules[2], inputs)
    assert_close(results[0][0], expected[:4])
    for rank, (_, head) in enumerate(results):
        assert_close(head, mean_gradients(modules[2], [inputs[rank]])[4:])


def test_a_wrapper_inside_another_is_refused() -> None:
    def wrap(rank: int) -> None:
        inner = DDP(make_model())
        with pytest.raises(UsageError, match="the module is a DistributedDataParallel already"):
            DDP(inner)
        with pytest.raises(UsageError, match=r"its submodule 1 is a DistributedDataParallel already.*1\.module"):
            DDP(nn.Sequential(nn.Linear(IN, IN), inner))
        with pytest.raises(UsageError, match=r"the gradient of 0\.0\.weight is averaged by another"):
            DDP(nn.Sequential(inner.module))
        inner.detach()
        DDP(nn.Sequential(inner.module))

    run_ranks(2, wrap).results()


@pytest.mark.parametrize("unfrozen", [True, False])
def test_requires_grad_that_changes_after_wrapping_is_a_clear_error(unfrozen: bool) -> None:
    modules, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> None:
        module = modules[rank]
        module[2].weight.requires_grad_(not unfrozen)
        model = DDP(module)
        loss_of(model, inputs[rank]).backward()
        module[2].weight.requires_grad_(unfrozen)
        loss_of(model, inputs[rank]).backward()

    outcome = run_ranks(2, train, abort=False)
    assert outcome.errors.keys() == {0, 1}
    refusals = [str(error) for error in outcome.errors.values() if isinstance(error, UsageError)]
    said = (
        "2.weight did not require a gradient when the module was wrapped, and do now"
        if unfrozen
        else "requires_grad of 2.weight was switched off after wrapping"
    )
    assert refusals
    assert all(said in text for text in refusals)
    assert all(isinstance(error, UsageError | DistBackendError) for error in outcome.errors.values())


def test_lazy_modules_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"0\.weight is uninitialized; call the module with an input"):
        run_ranks(1, lambda rank: DDP(nn.Sequential(nn.LazyLinear(3)))).results()


@pytest.mark.parametrize("as_view", [True, False])
def test_clipping_by_the_global_norm_sees_the_mean_gradient(as_view: bool) -> None:
    modules, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> tuple[float, list[Any]]:
        model = DDP(modules[rank], gradient_as_bucket_view=as_view)
        loss_of(model, inputs[rank]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return float(norm), gradients(model)

    (norm, first), (other, second) = run_ranks(2, train).results()
    expected = mean_gradients(modules[0], inputs)
    length = np.sqrt(sum(float((g**2).sum()) for g in expected if g is not None))
    assert norm == other
    np.testing.assert_allclose(norm, length, rtol=1e-5)
    assert_close(first, [g * (0.01 / length) for g in expected if g is not None], rtol=1e-4)
    assert_same_bits([first, second])


def test_an_interrupted_first_backward_leaves_the_next_one_whole() -> None:
    modules, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> list[Any]:
        model = DDP(modules[rank], bucket_cap_mb=1e-4)
        handle = modules[rank][0].weight.register_hook(lambda g: (_ for _ in ()).throw(ValueError("stop")))
        with pytest.raises(ValueError, match="stop"):
            loss_of(model, inputs[rank]).backward()
        handle.remove()
        model.zero_grad()
        loss_of(model, inputs[rank]).backward()
        dist.barrier()
        return gradients(model)

    results = run_ranks(2, train).results()
    assert_close(results[0], mean_gradients(modules[0], inputs))
    assert_same_bits(results)


def test_the_memory_of_a_large_gradient_is_free_when_it_is_dropped() -> None:
    def work(rank: int) -> list[bool]:
        model, alive = DDP(nn.Linear(1024, 1024, bias=False)), []
        for _ in range(3):
            model(resilin.ones(2, 1024)).sum().backward()
            (weight,) = model.parameters()
            assert weight.grad is not None
            owner = weight.grad._array
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            held = weakref.ref(owner)
            del owner
            model.zero_grad()
            alive.append(held() is not None)
        return alive

    assert run_ranks(2, work).results() == [[False] * 3] * 2
