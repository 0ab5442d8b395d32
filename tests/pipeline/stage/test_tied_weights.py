"""Weights that several stages have: gradients summed as in a backward of the whole model, bit for bit."""

import numpy as np
import pytest
from pipelined import SCHEDULES, SINGLE, snapshot

import resilin
import resilin.distributed as dist
from resilin import nn, optim
from resilin.core import rng
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel
from resilin.distributed import pipelining
from resilin.distributed.pipelining import PipelineStage, SplitPoint, get_schedule_class
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.pipeline.messages import Exchange
from resilin.testing.ranks import run_ranks

MICROBATCHES = 8


class Tied(nn.Module):
    """A weight that begins, goes on in the middle, twice, and ends the model: as tokens, a factor, and logits."""

    def __init__(self, layers=6):
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2)) for _ in range(layers))
        self.middle = Middle(self.tokens.weight)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.tokens.weight
        self.order = [self.tokens, *self.layers, self.middle, self.head]

    def forward(self, x):
        x = self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.middle(x))


class Middle(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return F.linear(F.linear(x, self.weight).tanh() @ self.weight, self.weight) @ self.weight.sin()


def model():
    resilin.manual_seed(1)
    return Tied()


def batch():
    return resilin.randint(0, 7, (16,)), resilin.randint(0, 7, (16,))


def plain(steps):
    net = model()
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        x, y = batch()
        for number, (xs, ys) in enumerate(zip(x.tensor_split(MICROBATCHES), y.tensor_split(MICROBATCHES), strict=True)):
            with rng.keyed(step, number):
                F.cross_entropy(net(xs), ys).backward()
        if step < steps - 1:
            optimizer.step()  # gradients go on accumulating
    return snapshot(net)


CUTS = {
    2: {"layers.3": SplitPoint.BEGINNING},
    4: {"layers.1": SplitPoint.BEGINNING, "layers.4": SplitPoint.END, "head": SplitPoint.BEGINNING},
    8: {f"layers.{n}": SplitPoint.BEGINNING for n in range(5)}
    | {"middle": SplitPoint.BEGINNING, "head": SplitPoint.BEGINNING},
}


def in_stages(rank, schedule, steps):
    cls, ranks, net = get_schedule_class(schedule), dist.get_world_size(), model()
    count = ranks if schedule in SINGLE else 2 * ranks
    pipe = pipelining.pipeline(net, (batch()[0],), split_spec=CUTS[count]) if count > 1 else None
    resilin.manual_seed(1)
    model()
    if pipe is None:
        stages = [PipelineStage(net, 0, 1, "cpu")]
    else:
        stages = [pipe.build_stage(index, "cpu") for index in cls.stage_indices(rank, ranks, count)]
    plan = cls(stages[0] if schedule in SINGLE else stages, MICROBATCHES, loss_fn=F.cross_entropy, scale_grads=False)
    params = {id(p): p for stage in stages for p in stage.submod.parameters()}
    optimizer = optim.SGD(params.values(), lr=0.1)
    for step in range(steps):
        x, y = batch()
        plan.step(x, target=y)
        if step < steps - 1:
            optimizer.step()
    return [snapshot(stage.submod) for stage in stages]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_tied_weight_has_the_gradient_of_the_whole_model_in_every_stage(schedule, ranks):
    whole = plain(steps=3)
    names = set()
    for stages in run_ranks(ranks, in_stages, schedule, 3).results():
        for state in stages:
            names |= set(state)
            assert {name: whole[name] for name in state if not name.endswith("grad") or name in whole} == {
                name: value for name, value in state.items() if name in whole
            }
            for name, value in state.items():  # the weight, under the names of its other uses
                if name.startswith(("head.weight", "middle.weight")):
                    assert value == whole[name.replace("head", "tokens").replace("middle", "tokens")]
    assert names >= set(whole)


def test_copies_that_differ_are_refused_on_all_ranks():
    def apart(rank):
        resilin.manual_seed(rank)
        stage = PipelineStage(nn.Linear(4, 4), rank, 2, "cpu", tied={"weight": "w"})
        pipelining.Schedule1F1B(stage, 2, loss_fn=F.mse_loss).step(resilin.ones(4, 4), target=resilin.ones(4, 4))

    errors = run_ranks(2, apart).errors
    assert sorted(errors) == [0, 1]
    assert all(
        isinstance(e, UsageError) and "of other values in stage 1 than in stage 0" in str(e) for e in errors.values()
    )


def test_a_tied_name_must_be_a_parameter():
    with pytest.raises(UsageError, match="stage 0 has no parameter 'other'"):
        PipelineStage(nn.Linear(2, 2), 0, 1, "cpu", tied={"other": "w"})


def layers_with_one_weight():
    resilin.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4))
    layers[2].weight = layers[0].weight
    return layers


def replicated(rank, wrap, microbatches=2):
    """A rank of two stages of two replicas, whose stages' modules `wrap` has wrapped."""
    lines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    layers = layers_with_one_weight()
    pipe = pipelining.pipeline(layers, (), split_spec={"2": SplitPoint.BEGINNING})
    module = wrap(pipe.get_stage_module(rank % 2), columns[rank % 2])
    stage = pipelining.build_stage(module, rank % 2, pipe.info(), "cpu", lines[rank // 2])
    return layers, pipelining.Schedule1F1B(stage, microbatches, loss_fn=F.mse_loss)


def averaged_gradients(rank, x, y):
    def wrap(module, group):
        return DistributedDataParallel(module, process_group=group, find_unused_parameters=True)

    layers, plan = replicated(rank, wrap, 4)
    mine = slice(rank // 2 * 4, rank // 2 * 4 + 4)
    plan.step(x[mine], target=y[mine])
    return {name: param.grad.numpy() for name, param in layers.named_parameters() if param.grad is not None}


def test_a_tied_weight_is_averaged_over_replicas():
    resilin.manual_seed(1)
    x, y = resilin.randn(8, 4), resilin.randn(8, 4)
    whole = layers_with_one_weight()
    F.mse_loss(whole(x), y).backward()
    expected = {name: param.grad.numpy() for name, param in whole.named_parameters()}
    for found in run_ranks(4, averaged_gradients, x, y).results():
        assert "0.weight" in found
        for name, grad in found.items():
            np.testing.assert_allclose(grad, expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("late", [[0], [2], [0, 2]])
def test_replicas_reduce_a_tied_weight_together_whenever_its_parts_come(late, monkeypatch):
    resilin.manual_seed(1)
    x, y = resilin.randn(8, 4), resilin.randn(8, 4)
    at_once = run_ranks(4, averaged_gradients, x, y).results()
    ready = Exchange.ready
    monkeypatch.setattr(Exchange, "ready", lambda self, *args: dist.get_rank() not in late and ready(self, *args))
    for found, expected in zip(run_ranks(4, averaged_gradients, x, y).results(), at_once, strict=True):
        for name, grad in found.items():
            np.testing.assert_array_equal(grad, expected[name])


def test_a_tied_weight_is_refused_in_shards_on_all_ranks():
    def run(rank):
        def wrap(module, group):
            return DistributedDataParallel(module, process_group=group, shards=4)

        _, plan = replicated(rank, wrap)
        each = next(iter(ElasticSampler(8, batch_size=8, shards=4).steps(rank // 2, 2)))
        values = [resilin.ones(2, 4) for _ in each.shards]
        plan.step_shards(each.shards, [(value,) for value in values], target_mbs=values)

    errors = run_ranks(4, run).errors
    assert sorted(errors) == [0, 1, 2, 3]
    assert all("step_shards: weight '0.weight' is tied" in str(error) for error in errors.values())
