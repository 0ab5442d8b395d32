"""Which graphs DistributedDataParallel can follow: outputs of any kind, unused parameters, checkpoints, derivatives of
derivatives; and what it refuses."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
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
    tensor,
)

from resilin import nn
from resilin.core.autograd.functional import grad as grad_of
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import graph
from resilin.errors import CollectiveMismatch, UsageError
from resilin.testing.ranks import run_ranks
from resilin.utils.checkpoint import checkpoint

Pair = namedtuple("Pair", "first second")


@dataclass
class Record:
    value: Tensor
    note: str = "text"


class Slotted:
    __slots__ = ("inner", "missing")

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Opaque:
    def __init__(self, value: Tensor) -> None:
        self.inside = {"deep": [Record(value)]}
        self.itself = self


KINDS = {
    "tuple": lambda x: (x, None),
    "dict": lambda x: {"a": {"b": x}},
    "dataclass": Record,
    "named tuple": lambda x: Pair(1, x),
    "slots": lambda x: Slotted([x]),
    "object": Opaque,
}


class Returns(nn.Module):
    """Its output lies in something; one layer is used by rank 0 only."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.all, self.some, self.kind = nn.Linear(IN, OUT), nn.Linear(IN, OUT), kind

    def forward(self, x: Tensor, both: bool) -> Any:
        y = self.all(x)
        return KINDS[self.kind](y + self.some(x) if both else y)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_any_kind_are_searched_for_the_graph(kind: str) -> None:
    modules, inputs = copies(Returns(kind), 2), batches(2)

    def loss(model: nn.Module, x: Tensor, both: bool) -> Tensor:
        (out,) = graph.tensors(model(x, both))
        return (out**2).mean()

    def train(rank: int) -> list[Any]:
        model = DDP(modules[rank], find_unused_parameters=True)
        for _ in range(2):
            model.zero_grad()
            loss(model, inputs[rank], rank == 0).backward()
        return gradients(model)

    results = run_ranks(2, train).results()
    (alone,) = copies(modules[0], 1)
    alone.zero_grad()
    for rank, x in enumerate(inputs):
        (loss(alone, x, rank == 0) / 2).backward()
    assert_close(results[0], gradients(alone))
    assert_same_bits(results)


def test_the_search_ends_in_large_objects_and_leaves_modules_alone() -> None:
    class Chain:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

    x = tensor([1.0])
    assert list(graph.tensors(Chain(Chain(x)))) == [x]
    assert list(graph.tensors(Chain(Chain(Chain(Chain(x)))))) == []
    assert list(graph.tensors([nn.Linear(1, 1), "x", 3, None])) == []


def test_buckets_follow_the_first_backward_of_rank_0_on_all_ranks() -> None:
    class Crossed(nn.Module):
        """Registered in another order than used; which of two branches comes first differs between ranks."""

        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = nn.Linear(IN, OUT, bias=False), nn.Linear(IN, IN, bias=False)
            self.left, self.right = nn.Linear(IN, IN, bias=False), nn.Linear(IN, IN, bias=False)

        def forward(self, x: Tensor, swapped: bool) -> Tensor:
            x = self.first(x)
            parts = [self.right(x), self.left(x)] if swapped else [self.left(x), self.right(x)]
            return self.last(parts[0] + parts[1])

    modules, inputs = copies(Crossed(), 2), batches(2)

    def train(rank: int) -> tuple[dict[str, Any], list[Any]]:
        model = DDP(modules[rank], bucket_cap_mb=1e-4)
        assert model.stats()["bucket_bytes"] == []
        for _ in range(2):
            model.zero_grad()
            (model(inputs[rank], rank == 1) ** 2).mean().backward()
        return dict(model.stats()), gradients(model)

    (zero, first), (one, second) = run_ranks(2, train).results()
    order = [name for names in zero["bucket_parameters"] for name in names]
    assert order == ["last.weight", "right.weight", "left.weight", "first.weight"]
    assert one["bucket_parameters"] == zero["bucket_parameters"]
    assert zero["rebuilt"]
    assert_close(first, mean_gradients(modules[0], inputs, lambda model, x: (model(x, False) ** 2).mean()))
    assert_same_bits([first, second])


def test_a_list_of_caps_gives_each_bucket_its_size() -> None:
    module = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(5)])  # 1 KiB each

    def sizes(rank: int) -> list[int]:
        model = DDP(copies(module, 1)[0], bucket_cap_mb_list=[1 / 1024, 2 / 1024])
        model(tensor(np.ones((1, 16)))).sum().backward()
        return [size // 1024 for size in model.stats()["bucket_bytes"]]

    assert run_ranks(2, sizes).results() == [[1, 2, 2]] * 2


@pytest.mark.parametrize("as_view", [True, False])
def test_delayed_parameters_are_reduced_after_the_one_they_wait_for(as_view: bool) -> None:
    modules, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> tuple[list[Any], list[list[str]]]:
        module = modules[rank]
        late = [(name, param) for name, param in module.named_parameters() if name.startswith("2.")]
        model = DDP(
            module,
            delay_all_reduce_named_params=late,
            param_to_hook_all_reduce=dict(module.named_parameters())["0.bias"],
            gradient_as_bucket_view=as_view,
        )
        for _ in range(2):
            model.zero_grad()
            loss_of(model, inputs[rank]).backward()
        return gradients(model), model.stats()["bucket_parameters"]

    (first, names), (second, _) = run_ranks(2, train).results()
    assert [set(bucket) for bucket in names] == [{"0.weight", "0.bias"}, {"2.weight", "2.bias"}]
    assert_close(first, mean_gradients(modules[0], inputs))
    assert_same_bits([first, second])


@pytest.mark.parametrize(
    ("late", "until", "said"),
    [
        ([], None, "need to be set at the same time"),
        (None, "0.bias", "need to be set at the same time"),
        (["0.bias"], "0.bias", "is among the parameters that wait for it"),
        (["0.bias"], "other", "param_to_hook_all_reduce is no parameter of the module"),
    ],
)
def test_wrong_delays_are_refused(late: list[str] | None, until: str | None, said: str) -> None:
    module = make_model()
    named = {**dict(module.named_parameters()), "other": nn.Parameter(tensor([1.0]))}
    chosen = None if late is None else [(name, named[name]) for name in late]

    def wrap(rank: int) -> None:
        DDP(module, delay_all_reduce_named_params=chosen, param_to_hook_all_reduce=named.get(until or ""))

    with pytest.raises(UsageError, match=said):
        run_ranks(1, wrap).results()


class Gated(nn.Module):
    """`uses` names the layers that are used."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(IN, IN), nn.Linear(IN, IN)

    def forward(self, x: Tensor, uses: str) -> Tensor:
        for name in uses:
            x = getattr(self, name)(x)
        return x


@pytest.mark.parametrize("input_has_gradient", [False, True])
def test_a_rank_whose_graph_holds_no_parameter_takes_part(input_has_gradient: bool) -> None:
    modules, inputs = copies(Gated(), 2), batches(2)

    def train(rank: int) -> tuple[list[Any], int]:
        model = DDP(modules[rank], find_unused_parameters=True, bucket_cap_mb=1e-4)
        for step in range(2):
            model.zero_grad()
            uses = "a" if rank == step % 2 else ""
            x = inputs[rank].detach().requires_grad_(input_has_gradient)
            loss = (model(x, uses) ** 2).mean()
            if uses or input_has_gradient:
                loss.backward()
        return gradients(model), model.stats()["backwards"]

    (first, steps), (second, others) = run_ranks(2, train).results()
    (alone,) = copies(modules[0], 1)
    alone.zero_grad()
    ((alone(inputs[1], "a") ** 2).mean() / 2).backward()
    assert_close(first, gradients(alone))
    assert first[2] is None
    assert (steps, others) == (2, 2)
    for a, b in zip(first[:2], second[:2], strict=True):
        assert np.array_equal(a, b)


def test_a_static_graph_shares_what_only_some_ranks_use() -> None:
    modules, inputs = copies(Gated(), 2), batches(2)
    uses = ("ab", "a")

    def train(rank: int) -> list[Any]:
        model = DDP(modules[rank], static_graph=True, bucket_cap_mb=1e-4)
        for _ in range(3):
            model.zero_grad()
            (model(inputs[rank], uses[rank]) ** 2).mean().backward()
        return gradients(model)

    results = run_ranks(2, train).results()
    (alone,) = copies(modules[0], 1)
    alone.zero_grad()
    for x, use in zip(inputs, uses, strict=True):
        ((alone(x, use) ** 2).mean() / 2).backward()
    assert_close(results[0], gradients(alone))
    assert_same_bits(results)


def test_unused_parameters_can_be_left_out_of_the_collectives() -> None:
    modules, inputs = copies(Gated(), 2), batches(2)

    def train(rank: int) -> tuple[list[Any], int]:
        model = DDP(modules[rank], find_unused_parameters=True, skip_all_reduce_unused_params=True, bucket_cap_mb=1e-4)
        for _ in range(2):
            model.zero_grad()
            (model(inputs[rank], "a") ** 2).mean().backward()
        with model.join():
            for _ in range(rank):
                model.zero_grad()
                (model(inputs[rank], "a") ** 2).mean().backward()
        return gradients(model), model.stats()["traffic"]["payload_bytes"]

    (first, sent), (second, _) = run_ranks(2, train).results()
    assert sent == 3 * 4 * (IN * IN + IN)  # of "a" alone
    (alone,) = copies(modules[0], 1)
    alone.zero_grad()
    ((alone(inputs[1], "a") ** 2).mean() / 2).backward()
    assert_close(first, gradients(alone))
    assert_close(second, gradients(alone))


@pytest.mark.parametrize("cap_mb", [1e-4, 25])
def test_parameters_that_only_some_ranks_use_cannot_be_left_out_and_are_named(cap_mb: float) -> None:
    modules, inputs = copies(Gated(), 2), batches(2)
    flags = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}

    def train(rank: int) -> None:
        model = DDP(modules[rank], **flags, bucket_cap_mb=cap_mb)
        with pytest.raises(
            CollectiveMismatch,
            match=r"skip_all_reduce_unused_params: the gradient of a\.weight is there on rank 0 and absent on rank 1",
        ):
            (model(inputs[rank], "ab"[rank]) ** 2).mean().backward()

    run_ranks(2, train).results()


# ------------------------------------------------------------------ checkpoints


class Recomputed(nn.Module):
    """Layer `a` runs `times` times inside checkpoints, then `b`; `spare` is never used."""

    def __init__(self, reentrant: bool, times: int, spare: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(IN, IN), nn.Linear(IN, OUT)
        self.spare = nn.Linear(IN, IN) if spare else None
        self.reentrant, self.times = reentrant, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = checkpoint(self.a, x, use_reentrant=self.reentrant)
        return self.b(x)


@pytest.mark.parametrize(
    ("reentrant", "times", "spare", "options"),
    [
        (False, 1, False, {}),
        (False, 2, False, {}),
        (False, 2, True, {"find_unused_parameters": True}),
        (True, 1, False, {}),
        (True, 2, False, {"static_graph": True}),
        (True, 3, True, {"static_graph": True}),
        (False, 2, True, {"static_graph": True}),
    ],
)
def test_checkpointed_layers_are_reduced_once_all_their_gradients_are_there(
    reentrant: bool, times: int, spare: bool, options: dict[str, Any]
) -> None:
    modules, inputs = copies(Recomputed(reentrant, times, spare), 2), batches(2)
    for x in inputs:
        x.requires_grad_()

    def train(rank: int) -> list[Any]:
        model = DDP(modules[rank], bucket_cap_mb=1e-4, **options)
        for _ in range(3):
            model.zero_grad()
            loss_of(model, inputs[rank]).backward()
        return gradients(model)

    results = run_ranks(2, train).results()
    assert_close(results[0], mean_gradients(modules[0], inputs))
    assert_same_bits([[g for g in each if g is not None] for each in results])


def test_a_reentrant_checkpoint_that_runs_twice_needs_a_static_graph() -> None:
    modules, inputs = copies(Recomputed(True, 2), 2), batches(2)

    def train(rank: int) -> None:
        model = DDP(modules[rank])
        loss_of(model, inputs[rank].requires_grad_()).backward()

    outcome = run_ranks(2, train, abort=False)
    assert outcome.errors.keys() == {0, 1}
    refusals = [str(error) for error in outcome.errors.values() if isinstance(error, UsageError)]
    assert refusals
    assert all(
        "parameter a." in text and "got a second gradient in one backward" in text and "static_graph=True" in text
        for text in refusals
    )


# ------------------------------------------------------------------ derivatives of derivatives


def test_a_gradient_penalty_is_averaged_as_in_one_process() -> None:
    def penalty(model: nn.Module, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        out = (model(x) ** 2).mean()
        (inner,) = grad_of([out], [x], create_graph=True)
        return out + (inner**2).sum()

    modules, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> list[Any]:
        model = DDP(modules[rank], bucket_cap_mb=1e-4)
        for _ in range(2):
            model.zero_grad()
            penalty(model, inputs[rank]).backward()
        return gradients(model)

    results = run_ranks(2, train).results()
    assert_close(results[0], mean_gradients(modules[0], inputs, penalty))
    assert_same_bits(results)


def test_a_mean_that_would_have_to_be_differentiated_is_refused_but_not_in_no_sync() -> None:
    modules, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> None:
        model = DDP(modules[rank])
        with model.no_sync():
            loss_of(model, inputs[rank]).backward(create_graph=True)
        model.zero_grad()
        loss_of(model, inputs[rank]).backward(create_graph=True)

    outcome = run_ranks(2, train, abort=False)
    assert outcome.errors.keys() == {0, 1}
    refusals = [str(error) for error in outcome.errors.values() if isinstance(error, UsageError)]
    assert refusals
    assert all(r"a gradient that can be differentiated, which the mean over ranks cannot" in text for text in refusals)
