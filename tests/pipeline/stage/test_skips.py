"""Skip connections between distant stages: forward and backward, in every schedule."""

import pytest
from pipelined import SCHEDULES, SINGLE, part, snapshot

import resilin
import resilin.distributed as dist
from resilin import nn, pipeline
from resilin.core import rng
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.pipeline.sync.skip import Namespace, pop, skippable, stash
from resilin.testing.ranks import run_ranks


@skippable(stash=["near", "far"])
class Begin(nn.Module):
    """Hands its result on, twice past others, too."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x).tanh()
        yield stash("far", y)
        yield stash("near", y * 2)
        return y


class Twice(nn.Module):
    """Uses what comes in several times, so that its gradient is a sum."""

    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.3)

    def forward(self, x):
        return x * 0.7 + self.drop(self.linear(x)) + x.sin()


@skippable(pop=["near"])
class Near(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        other = yield pop("near")
        return self.linear(x) + other * other.exp()


@skippable(pop=["far"])
class Far(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        other = yield pop("far")
        return self.linear(x * other) + other


def model():
    resilin.manual_seed(1)
    return nn.Sequential(Begin(), Twice(), Near(), Twice(), nn.Linear(4, 4), Twice(), Far(), nn.Linear(4, 3))


def batch():
    resilin.manual_seed(2)
    return resilin.randn(16, 4), resilin.randint(0, 3, (16,))


def plain():
    net, (x, y) = model(), batch()
    for number, (xs, ys) in enumerate(zip(x.tensor_split(8), y.tensor_split(8), strict=True)):
        with rng.keyed(0, number):
            F.cross_entropy(net(xs), ys).backward()
    return snapshot(net)


def in_stages(rank, schedule, mode):
    cls = pipeline.get_schedule_class(schedule)
    ranks = dist.get_world_size()
    count = ranks if schedule in SINGLE else 2 * ranks
    net, (x, y) = model(), batch()
    stages = [
        pipeline.PipelineStage(part(net, index, count), index, count, "cpu", checkpoint=mode)
        for index in cls.stage_indices(rank, ranks, count)
    ]
    plan = cls(stages[0] if schedule in SINGLE else stages, 8, loss_fn=F.cross_entropy, scale_grads=False)
    plan.step(x, target=y)
    return {name: value for stage in stages for name, value in snapshot(stage.submod).items()}


@pytest.mark.parametrize("mode", ["never", "always"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_skip_tensors_go_straight_to_the_stage_that_pops_them(schedule, ranks, mode):
    found = {}
    for each in run_ranks(ranks, in_stages, schedule, mode).results():
        found |= each
    assert found == plain()


def test_skip_tensors_that_do_not_match_are_refused_on_all_ranks():
    def lonely(rank):
        layers = [nn.Sequential(nn.Linear(4, 4)), nn.Sequential(Far())]
        stage = pipeline.PipelineStage(layers[rank], rank, 2, "cpu")
        given = [resilin.ones(4, 4)] if rank == 0 else []
        pipeline.Schedule1F1B(stage, 2, loss_fn=F.mse_loss).step(*given, target=resilin.ones(4, 4))

    errors = run_ranks(2, lonely).errors
    assert sorted(errors) == [0, 1]
    for error in errors.values():
        assert isinstance(error, UsageError)
        assert "'far' is stashed by stages [] and popped by stages [1]" in str(error)


def test_a_namespace_needs_a_key_that_all_stages_know():
    space = Namespace()
    with pytest.raises(UsageError, match="in a namespace, which other processes do not know"):
        pipeline.PipelineStage(nn.Sequential(Far().isolate(space)), 1, 2, "cpu")
