"""Fixed-shard mode: the same bits for any number of ranks."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel as DDP
from resilin.errors import CollectiveMismatch, GroupAborted, UsageError, UsageTypeError
from resilin.nn import functional as F
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks

WORDS, WIDTH, CLASSES, SAMPLES = 11, 8, 3, 30


class Net(nn.Module):
    """Everything whose result could depend on who computes it: embedding, batch norm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(WIDTH, CLASSES)
        mask = np.zeros(WIDTH, np.float32)
        mask[3] = -np.inf
        self.register_buffer("mask", Tensor._wrap(mask))  # a constant buffer must keep its bits, infinities too

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.norm(self.embed(words).transpose(1, 2)).mean(2)  # norm over words, too: one sample is enough
        return self.head(self.drop(hidden) * (self.mask.exp()))


def make_net() -> Net:
    resilin.manual_seed(7)
    return Net()


def data() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(3)
    words = rng.integers(0, WORDS, (SAMPLES, 5))
    return Tensor._wrap(words), Tensor._wrap(rng.integers(0, CLASSES, SAMPLES))


def digest(model: nn.Module, *more: np.ndarray) -> str:
    hasher = hashlib.sha256()
    for value in model.state_dict().values():
        hasher.update(value.numpy().tobytes())
    for array in more:
        hasher.update(array.tobytes())
    return hasher.hexdigest()


def train(rank: int, world: int, models: list[nn.Module], shards: int, batch: int, steps: int, cap_mb: float) -> str:
    model, optimizer = DDP(models[rank], shards=shards, bucket_cap_mb=cap_mb), None
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    words, labels = data()
    sampler = ElasticSampler(SAMPLES, batch, shards, seed=1)
    norms = []
    while sampler.step < steps:
        for plan in sampler.steps(rank, world):
            optimizer.zero_grad()
            for shard in plan.shards:
                with model.shard(shard):
                    if len(shard):
                        F.cross_entropy(model(words[shard.indices]), labels[shard.indices]).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).numpy())
            optimizer.step()
            sampler.advance(plan)
    return digest(models[rank], np.array(norms))


@pytest.fixture(autouse=True)
def seeded() -> None:
    resilin.manual_seed(5)


@pytest.mark.parametrize(
    ("shards", "batch"),
    [(4, 12), (6, 12), (4, 11), (7, 21), (7, 26)],
    ids=["V=4", "V=6", "V=4 ragged", "V=7", "V=7 some empty"],
)
@pytest.mark.parametrize("cap_mb", [25, 1e-4], ids=["one bucket", "many buckets"])
def test_the_bits_are_the_same_for_1_2_and_3_ranks(shards: int, batch: int, cap_mb: float) -> None:
    results = set()
    for world in (1, 2, 3):
        models = [make_net() for _ in range(world)]
        resilin.manual_seed(5)
        outcome = run_ranks(world, train, world, models, shards, batch, 6, cap_mb)
        results.update(outcome.results())
    assert len(results) == 1


def test_a_worker_with_two_threads_and_two_workers_with_one_compute_the_same_bits() -> None:
    x = Tensor._wrap(np.random.default_rng(0).standard_normal((300, 784)).astype(np.float32))
    y = Tensor._wrap(np.arange(300) % 10)

    def step(rank: int, world: int) -> str:
        resilin.manual_seed(5)
        wide = nn.Sequential(nn.Linear(784, 1000), nn.GELU(), nn.Linear(1000, 10))
        model = DDP(wide, shards=3)
        (plan,) = ElasticSampler(300, 300, 3).steps(rank, world)
        for shard in plan.shards:
            with model.shard(shard):
                F.cross_entropy(model(x[shard.indices]), y[shard.indices]).backward()
        return hashlib.sha256(b"".join(param.grad.numpy().tobytes() for param in wide.parameters())).hexdigest()

    before = resilin.get_num_threads()
    try:
        results = set()
        for world, threads in ((1, 2), (1, 1), (2, 1)):
            resilin.set_num_threads(threads)
            results.update(run_ranks(world, step, world).results())
    finally:
        resilin.set_num_threads(before)
    assert len(results) == 1


def test_gradients_have_the_same_bits_whether_they_are_multiplied_into_their_sum_or_added_to_it() -> None:
    x = Tensor._wrap(np.random.default_rng(0).standard_normal((40, 33)).astype(np.float32))
    y = Tensor._wrap(np.arange(40) % 10)

    def step(seen: list[Any] | None) -> list[np.ndarray]:
        resilin.manual_seed(5)
        net = nn.Sequential(nn.Linear(33, 70), nn.ReLU(), nn.Linear(70, 10))
        if seen is not None:  # somebody who wants to see the gradient of each shard
            net[0].weight.register_post_accumulate_grad_hook(lambda param: seen.append(param.grad.clone()))
            net[2].weight.register_hook(lambda grad: seen.append(grad.clone()))
        model = DDP(net, shards=3)
        (plan,) = ElasticSampler(40, 40, 3).steps(0, 1)
        for shard in plan.shards:
            with model.shard(shard):
                F.cross_entropy(model(x[shard.indices]), y[shard.indices]).backward()
        return [param.grad.numpy() for param in net.parameters()]

    def both(rank: int) -> None:
        seen: list[Any] = []
        for straight, summed in zip(step(None), step(seen), strict=True):
            assert np.array_equal(straight, summed)
        assert len(seen) == 6
        assert all(grad.numpy().any() for grad in seen)

    run_ranks(1, both).results()


def test_without_batch_dependent_parts_the_gradient_is_that_of_the_whole_batch() -> None:
    models = [nn.Linear(4, 3) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x = Tensor._wrap(np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32))
    y = Tensor._wrap(np.arange(10) % 3)

    def step(rank: int) -> list[np.ndarray]:
        model = DDP(models[rank], shards=4)
        (plan,) = ElasticSampler(10, 10, 4, shuffle=False).steps(rank, 2)
        for shard in plan.shards:
            with model.shard(shard):
                F.cross_entropy(model(x[shard.indices]), y[shard.indices]).backward()
        return [param.grad.numpy().copy() for param in model.parameters()]

    zero, one = run_ranks(2, step).results()
    alone = copy.deepcopy(models[0])
    alone.zero_grad()
    F.cross_entropy(alone(x), y).backward()
    for a, b, param in zip(zero, one, alone.parameters(), strict=True):
        np.testing.assert_allclose(a, param.grad.numpy(), rtol=1e-5, atol=1e-6)
        assert np.array_equal(a, b)


def test_gradients_that_were_not_zeroed_accumulate_over_steps() -> None:
    def step(rank: int, times: int, to_none: bool) -> np.ndarray:
        model = DDP(nn.Linear(2, 1, bias=False), shards=2)
        model.module.weight._array[...] = 1
        if not to_none:
            model.module.weight.grad = Tensor._wrap(np.zeros((1, 2), np.float32))
        for plan in list(ElasticSampler(2, 2, 2).steps(0, 1)) * times:
            for shard in plan.shards:
                with model.shard(shard):
                    model(Tensor._wrap(np.ones((1, 2), np.float32))).sum().backward()
        return model.module.weight.grad.numpy().copy()

    for to_none in (True, False):
        assert np.array_equal(run_ranks(1, step, 1, to_none).results()[0], [[1, 1]])
        assert np.array_equal(run_ranks(1, step, 3, to_none).results()[0], [[3, 3]])


@dataclass
class OneShard:
    """A shard as a user may write it."""

    number: int
    total: int
    step: int = 0
    weight: float = 0.5
    samples: int = 1

    def __len__(self) -> int:
        return self.samples


def in_a_world_of_one(fn: Any) -> None:
    run_ranks(1, lambda rank: fn(DDP(nn.Linear(2, 1), shards=2))).results()


def ones() -> Tensor:
    return Tensor._wrap(np.ones((1, 2), np.float32))


def test_shards_must_come_in_order_and_of_the_right_number() -> None:
    def wrong(model: DDP) -> None:
        with pytest.raises(UsageError, match=r"expected shard 0 of 2 \(this rank has \[0, 1\]\), got shard 1 of 2"):
            model.shard(OneShard(1, 2)).__enter__()
        with pytest.raises(UsageError, match=r"got shard 0 of 3"):
            model.shard(OneShard(0, 3)).__enter__()

    in_a_world_of_one(wrong)


def test_what_is_no_shard_is_refused() -> None:
    def wrong(model: DDP) -> None:
        with pytest.raises(UsageTypeError, match=r"one of `plan\.shards`, .*got 1, which has no number, total, step"):
            model.shard(1).__enter__()  # type: ignore[arg-type]
        with pytest.raises(UsageTypeError, match=r"got \(0, 1\), which has no number, total, step, weight$"):
            model.shard((0, 1)).__enter__()  # type: ignore[arg-type]

    in_a_world_of_one(wrong)


def test_shards_that_were_dealt_in_rounds_are_refused() -> None:
    def wrong(model: DDP) -> None:
        (plan,) = ElasticSampler(2, 2, 2, in_rounds=True).steps(0, 1)
        with pytest.raises(UsageError, match=r"in_rounds=True\), which is for zero\.shard.*leave in_rounds out"):
            model.shard(plan.shards[0]).__enter__()

    in_a_world_of_one(wrong)


def test_a_negative_zero_stays_one_when_it_is_added_to_gradients_of_nothing() -> None:
    """So that the sum of an element is told by that element alone, whatever others of the parameter are."""

    def step(rank: int) -> np.ndarray:
        model = DDP(nn.Linear(2, 1, bias=False), shards=1)
        model.module.weight.grad = Tensor._wrap(np.array([[0.0, 1.0]], np.float32))
        with model.shard(OneShard(0, 1, weight=1.0)):
            (model.module.weight * Tensor._wrap(np.array([[-0.0, 2.0]], np.float32))).sum().backward()
        return np.signbit(model.module.weight.grad.numpy())

    assert run_ranks(1, step).results()[0].tolist() == [[True, False]]


def test_a_shard_with_samples_but_without_backward_is_refused() -> None:
    def forgetful(model: DDP) -> None:
        with pytest.raises(UsageError, match="shard 0 has 1 samples, but no backward ran"), model.shard(OneShard(0, 2)):
            model(ones())

    in_a_world_of_one(forgetful)


def test_ranks_that_wait_for_one_without_a_backward_or_with_two_hear_why() -> None:
    def forgets(model: DDP) -> None:
        model(ones())

    def repeats(model: DDP) -> None:
        model(ones()).sum().backward()
        model(ones()).sum().backward()

    for wrong, words in ((forgets, "shard 1 has 1 samples, but no backward ran"), (repeats, "a second backward")):

        def run(rank: int, wrong: Any = wrong) -> None:
            model = DDP(nn.Linear(2, 1), shards=3)
            for number in ([0], [1, 2])[rank]:
                with model.shard(OneShard(number, 3)):
                    if rank == 0:
                        model(ones()).sum().backward()
                    else:
                        wrong(model)

        outcome = run_ranks(2, run, timeout_s=PATIENCE_S, abort=False)
        for rank, kind in enumerate((GroupAborted, UsageError)):
            assert isinstance(outcome.errors[rank], kind)
            assert words in str(outcome.errors[rank])


def test_a_second_backward_in_a_shard_is_refused() -> None:
    def greedy(model: DDP) -> None:
        def twice() -> None:
            with model.shard(OneShard(0, 2)):
                model(ones()).sum().backward()
                model(ones()).sum().backward()

        with pytest.raises(UsageError, match="a second backward"):
            twice()

    in_a_world_of_one(greedy)


def test_a_forward_outside_of_a_shard_is_refused_in_training_only() -> None:
    def outside(model: DDP) -> None:
        with pytest.raises(UsageError, match=r"needs `with model.shard\(shard\):`"):
            model(ones())
        model.eval()
        model(ones())
        model.train()
        with resilin.no_grad():
            model(ones())
        with pytest.raises(UsageError, match="no_sync"), model.no_sync():
            pass
        with pytest.raises(UsageError, match="fixed-shard mode sums along its own tree"):
            model.register_comm_hook(None, lambda state, bucket: None)

    in_a_world_of_one(outside)


def test_shard_without_the_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="needs DistributedDataParallel"):
        run_ranks(1, lambda rank: DDP(nn.Linear(2, 1)).shard(OneShard(0, 2))).results()


def test_batch_norm_over_ranks_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    with pytest.raises(UsageError, match=r"1 is a SyncBatchNorm, whose statistics depend on the number of ranks"):
        run_ranks(1, lambda rank: DDP(model, shards=2)).results()


def test_more_ranks_than_shards_are_refused_on_every_rank() -> None:
    outcome = run_ranks(2, lambda rank: DDP(nn.Linear(2, 1), shards=1), abort=False)
    assert all(
        "shards=1): expected an integer of at least the world size (2)" in str(e) for e in outcome.errors.values()
    )
    assert outcome.errors.keys() == {0, 1}


def test_ranks_with_different_numbers_of_shards_are_refused() -> None:
    outcome = run_ranks(2, lambda rank: DDP(nn.Linear(2, 1), shards=2 + rank), abort=False)
    assert all(isinstance(error, CollectiveMismatch) for error in outcome.errors.values())
    assert "rank 0 was made with shards=2, rank 1 with shards=3" in str(outcome.errors[0])


def test_after_an_error_inside_a_shard_the_step_starts_again() -> None:
    def retry(model: DDP) -> None:
        model.module.weight._array[...] = 1

        def step(fail: bool) -> None:
            for number in (0, 1):
                with model.shard(OneShard(number, 2)):
                    model(ones()).sum().backward()
                    if fail and number:
                        raise ValueError("in the user's code")

        with pytest.raises(ValueError, match="in the user's code"):
            step(fail=True)
        model.zero_grad()
        step(fail=False)
        assert np.array_equal(model.module.weight.grad.numpy(), [[1, 1]])

    in_a_world_of_one(retry)


def test_an_integer_buffer_that_depends_on_the_samples_is_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 1)
            self.register_buffer("seen", Tensor._wrap(np.zeros((), np.int64)))

        def forward(self, x: Tensor, count: int) -> Tensor:
            self.seen._array[...] += count
            return self.linear(x)

    def step(rank: int, shards: int) -> int:
        model = DDP(Counter(), shards=shards)
        for number in range(rank * shards // 2, (rank + 1) * shards // 2):
            with model.shard(OneShard(number, shards)):
                model(ones(), number + 1).sum().backward()
        return 0

    across = run_ranks(2, step, 2, abort=False)
    assert across.errors.keys() == {0, 1}
    assert "buffer seen" in str(across.errors[0])
    assert "ends the step between [1] and [2] on different ranks" in str(across.errors[0])
    within = run_ranks(2, step, 4)
    assert within.errors.keys() == {0, 1}
    assert "shard 1 ends with 2, another of the step with 1" in str(within.errors[0])


def test_unused_parameters_are_named_or_count_as_zero() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    def step(rank: int, find: bool) -> np.ndarray:
        model = DDP(Half(), shards=2, find_unused_parameters=find)
        for number in (0, 1):
            with model.shard(OneShard(number, 2)):
                model(ones()).sum().backward()
        assert not model.module.unused.weight.grad.numpy().any()
        return model.module.used.weight.grad.numpy().copy()

    with pytest.raises(UsageError, match=r"shard 0: 2 of 4 parameters got no gradient.*: unused.weight, unused.bias"):
        run_ranks(1, step, False).results()
    assert np.array_equal(run_ranks(1, step, True).results()[0], [[1, 1]])


def test_what_is_computed_in_an_empty_shard_does_not_count() -> None:
    x = Tensor._wrap(np.arange(3, dtype=np.float32).reshape(1, 3))
    plain = nn.Linear(3, 2)
    plain(x).square().mean().backward()

    def step(rank: int) -> np.ndarray:
        model = DDP(copy.deepcopy(plain), shards=2)
        (plan,) = ElasticSampler(1, 2, 2, shuffle=False).steps(0, 1)
        assert [len(shard) for shard in plan.shards] == [1, 0]
        model.zero_grad()
        for shard in plan.shards:
            with model.shard(shard):
                model(x[shard.indices]).square().mean().backward()  # the mean over nothing is NaN
        return model.module.weight.grad.numpy().copy()

    assert np.array_equal(run_ranks(1, step).results()[0], plain.weight.grad.numpy())


def test_a_model_with_batch_norm_runs_in_an_empty_shard() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model(Tensor._wrap(np.zeros((0, 3), np.float32))).sum().backward()
    assert np.array_equal(model[0].weight.grad.numpy(), np.zeros((4, 3)))
    assert np.array_equal(model[1].running_var.numpy(), np.ones(4))
    assert model[1].num_batches_tracked.item() == 1
