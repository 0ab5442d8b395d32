"""What stages hand to one another: several tensors, None, other dtypes, plain values, shapes that change."""

import threading

import numpy as np
import pytest
from pipelined import SCHEDULES, SINGLE, bits

import resilin
import resilin.distributed as dist
from resilin import nn, pipeline
from resilin.core import rng
from resilin.errors import UsageError, UsageTypeError
from resilin.nn import functional as F
from resilin.pipeline import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    SplitPoint,
    TensorChunkSpec,
    get_schedule_class,
)
from resilin.pipeline.microbatch import split_args_kwargs_into_chunks
from resilin.testing.ranks import TRANSPORTS, run_ranks


class Many(nn.Module):
    """Takes and gives all that stages may: what is not used has no gradient."""

    def __init__(self, first=False, last=False):
        super().__init__()
        self.linear, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first, self.last = first, last

    def forward(self, x, rest=None, *, factor=1.0):
        if self.first:
            mask, count, extra, unused = x > 0, 3, {"half": x.bfloat16()}, self.spare(x)
        else:
            mask, count, extra, _, none, empty, word = rest
            assert mask.dtype is resilin.bool
            assert none is None
            assert empty.shape == (0, 4)
            assert word == "text"
            count, unused = count + 1, self.spare(x)
        y = self.linear(x * mask) * factor + extra["half"].float()
        if self.last:
            return y * count
        rest = [mask, count, {"half": extra["half"] * 2}, unused, None, resilin.empty(0, 4), "text"]
        return y.tanh(), rest


def layers(count):
    resilin.manual_seed(1)
    return [Many(first=n == 0, last=n == count - 1) for n in range(count)]


def batch():
    resilin.manual_seed(2)
    return resilin.randn(16, 4), resilin.randn(16, 4)


def grads(modules):
    return [{name: bits(param.grad) for name, param in module.named_parameters()} for module in modules]


def plain(count):
    parts, (x, y) = layers(count), batch()
    for number, (xs, ys) in enumerate(zip(x.tensor_split(8), y.tensor_split(8), strict=True)):
        with rng.keyed(0, number):
            value = (xs,)
            for part in parts:
                value = part(*value, factor=0.5)
                value = value if isinstance(value, tuple) else (value,)
            F.mse_loss(value[0], ys).backward()
    return grads(parts)


def in_stages(rank, schedule, per_rank):
    cls, ranks = get_schedule_class(schedule), dist.get_world_size()
    count = ranks * per_rank
    parts, (x, y) = layers(count), batch()
    mine = cls.stage_indices(rank, ranks, count)
    stages = [PipelineStage(parts[index], index, count, "cpu") for index in mine]
    plan = cls(stages[0] if schedule in SINGLE else stages, 8, loss_fn=F.mse_loss, scale_grads=False)
    plan.step(x, target=y, factor=0.5)
    return dict(zip(mine, grads([stage.submod for stage in stages]), strict=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_kinds_of_values_pass_through_every_schedule(schedule):
    per_rank = 1 if schedule in SINGLE else 2
    found = {}
    for each in run_ranks(2, in_stages, schedule, per_rank).results():
        found |= each
    assert [found[index] for index in sorted(found)] == plain(2 * per_rank)
    assert found[0]["spare.weight"] is None  # nobody used it


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_transport_carries_them(transport):
    found = run_ranks(4, in_stages, "1F1B", 1, transport=transport).results()
    assert [each[rank] for rank, each in enumerate(found)] == plain(4)


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)


def test_shapes_and_structures_change_between_micro_batches_and_steps():
    sizes = [(1, 2), (5,), (3,), (700, 30)]

    def data(step):
        resilin.manual_seed(step)
        return [resilin.randn(*size, 4) for size in reversed(sizes)] if step else [resilin.randn(*s, 4) for s in sizes]

    def run(rank):
        resilin.manual_seed(9)
        parts = [Growing(), Growing()]
        plan = Schedule1F1B(PipelineStage(parts[rank], rank, 2, "cpu"), 4, loss_fn=F.mse_loss, scale_grads=False)
        outputs = []
        for step in range(2):
            xs = data(step)
            plan._step_microbatches([(x,) for x in xs], None, xs, outputs, return_outputs=False)
        return grads([parts[rank]])[0]

    resilin.manual_seed(9)
    net = nn.Sequential(Growing(), Growing())
    for step in range(2):
        for x in data(step):
            F.mse_loss(net(x), x).backward()
    assert run_ranks(2, run).results() == grads(net)


def test_a_tensor_that_stands_twice_in_an_output_is_one_tensor_behind_it():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            return y, {"again": y}

    class Both(nn.Module):
        def forward(self, x, other):
            assert x is other["again"]
            return x * 3 + other["again"].sin() + x.exp()

    def run(rank):
        resilin.manual_seed(1)
        stage = PipelineStage((Twice if rank == 0 else Both)(), rank, 2, "cpu")
        Schedule1F1B(stage, 4, loss_fn=F.mse_loss, scale_grads=False).step(batch()[0], target=batch()[1])
        return grads([stage.submod])[0]

    resilin.manual_seed(1)
    first, second = Twice(), Both()
    for x, y in zip(*(each.tensor_split(4) for each in batch()), strict=True):
        F.mse_loss(second(*first(x)), y).backward()
    assert run_ranks(2, run).results()[0] == grads([first])[0]


def test_a_value_that_cannot_be_sent_is_refused_as_a_module_is_cut():
    class Odd(nn.Module):
        def forward(self, x):
            return x, threading.Lock()

    class First(nn.Module):
        def forward(self, x, _):
            return x

    class Row(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd, self.first, self.last = Odd(), First(), nn.Identity()

        def forward(self, x):
            return self.last(self.first(*self.odd(x)))

    with pytest.raises(UsageTypeError, match="output of odd, behind which it is cut: a value of lock cannot be sent"):
        pipeline.pipeline(Row(), (resilin.ones(2),), split_spec={"first": SplitPoint.BEGINNING})
    assert pipeline.pipeline(Row(), (resilin.ones(2),), split_spec={"last": SplitPoint.BEGINNING}).num_stages == 2


def test_a_value_that_cannot_be_sent_is_named_and_ends_all_ranks():
    class Odd(nn.Module):
        def forward(self, x):
            return x, threading.Lock()

    def run(rank):
        stage = PipelineStage(Odd() if rank == 0 else nn.Identity(), rank, 3, "cpu")
        Schedule1F1B(stage, 4, loss_fn=F.mse_loss).step(resilin.ones(4, 4), target=resilin.ones(4, 4))

    errors = run_ranks(3, run).errors
    assert sorted(errors) == [0, 1, 2]
    assert isinstance(errors[0], UsageTypeError)
    assert "a value of lock cannot be sent" in str(errors[0])
    assert any("0F0" in note for note in errors[0].__notes__)
    for rank in (1, 2):
        assert isinstance(errors[rank], UsageTypeError)
        assert "lock cannot be sent" in str(errors[rank])


def test_outputs_that_differ_from_the_examples_are_refused():
    def run(rank, right):
        example = resilin.empty(1, 4 if right else 5)
        stage = PipelineStage(nn.Linear(4, 4), rank, 2, "cpu", output_args=example, input_args=resilin.empty(1, 4))
        Schedule1F1B(stage, 4, loss_fn=F.mse_loss).step(resilin.ones(4, 4), target=resilin.ones(4, 4))

    assert not run_ranks(2, run, True).errors
    errors = run_ranks(2, run, False).errors
    assert "stage 0, micro-batch 0: output_args were said to be resilin.float32 [1, 5]" in str(errors[0])
    assert sorted(errors) == [0, 1]


def test_a_dw_builder_does_the_second_half_itself():
    calls = []

    def run(rank):
        stages = [
            PipelineStage(
                nn.Linear(4, 4), i, 4, "cpu", dw_builder=lambda: calls.append("built") or (lambda: calls.append("ran"))
            )
            for i in pipeline.ScheduleZBVZeroBubble.stage_indices(rank, 2, 4)
        ]
        plan = pipeline.ScheduleZBVZeroBubble(stages, 4, loss_fn=F.mse_loss)
        plan.step(resilin.ones(4, 4), target=resilin.ones(4, 4))
        return sum(str(action).count("W") for action in plan.pipeline_order[rank] if action is not None)

    halves = sum(run_ranks(2, run).results())
    assert calls.count("built") == calls.count("ran") == halves > 0


def test_outputs_are_joined_and_arguments_split_as_specs_say():
    class Shifted(nn.Module):
        def forward(self, x, shift, *, named):
            assert x.shape == (3, 2)
            assert named.shape == (2,)
            return (x * shift + named[:1],)

    def run(rank):
        stage = PipelineStage(Shifted(), rank, 1, "cpu")
        plan = ScheduleGPipe(
            stage,
            2,
            args_chunk_spec=(TensorChunkSpec(1), pipeline.microbatch._Replicate()),
            kwargs_chunk_spec={"named": TensorChunkSpec(0)},
            output_merge_spec=(TensorChunkSpec(1),),
        )
        x = resilin.arange(12.0).reshape(3, 4)
        (found,) = plan.step(x, 2.0, named=resilin.zeros(4))
        np.testing.assert_array_equal(found.numpy(), 2 * x.numpy())

    run_ranks(1, run).results()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ((TensorChunkSpec(2),), r"args: a tensor of shape \[4, 4\] has no dimension 2 to be split into micro-batches"),
        ((TensorChunkSpec("0"),), "args: TensorChunkSpec: split_dim must be an int, got str"),
        (TensorChunkSpec(0), "expected args_chunk_spec as a tuple .* got TensorChunkSpec and NoneType"),
    ],
)
def test_chunk_specs_that_cannot_be_are_refused(spec, words):
    with pytest.raises(UsageError, match=words):
        split_args_kwargs_into_chunks((resilin.ones(4, 4),), None, 2, spec)


def test_a_batch_with_fewer_samples_than_micro_batches_is_refused_on_all_ranks():
    def run(rank):
        stage = PipelineStage(nn.Linear(4, 4), rank, 2, "cpu")
        plan = Schedule1F1B(stage, 4, loss_fn=F.mse_loss)
        plan.step(*([resilin.ones(3, 4)] if rank == 0 else []), target=resilin.ones(4, 4))

    errors = run_ranks(2, run).errors
    assert sorted(errors) == [0, 1]
    assert all(isinstance(e, UsageError) and "Expecting 4 arg_mbs but got 3" in str(e) for e in errors.values())


class Written(nn.Module):
    """Writes what it is given, and hands on its buffer, which it counts in."""

    def __init__(self, first):
        super().__init__()
        self.linear, self.first = nn.Linear(4, 4), first
        self.register_buffer("count", resilin.zeros(1))

    def forward(self, x, count=1.0):
        self.count += 1
        return self.linear(x if self.first else x.mul_(2)) * self.count.clone() * count, self.count


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_may_write_what_it_is_given_and_hand_on_a_buffer(schedule):
    def parts(count):
        resilin.manual_seed(1)
        return [Written(first=n == 0) for n in range(count)]

    def loss(output, target):
        return F.mse_loss(output[0], target)

    def run(rank, per_rank):
        cls, count = get_schedule_class(schedule), 2 * per_rank
        modules, (x, y) = parts(count), batch()
        mine = cls.stage_indices(rank, 2, count)
        stages = [PipelineStage(modules[index], index, count, "cpu") for index in mine]
        plan = cls(stages[0] if schedule in SINGLE else stages, 8, loss_fn=loss, scale_grads=False)
        plan.step(x, target=y)
        return dict(zip(mine, grads([stage.submod for stage in stages]), strict=True))

    per_rank = 1 if schedule in SINGLE else 2
    modules, (x, y) = parts(2 * per_rank), batch()
    for xs, ys in zip(x.tensor_split(8), y.tensor_split(8), strict=True):
        value = (xs,)
        for module in modules:
            value = module(*value)
        loss(value, ys).backward()
    found = {}
    for each in run_ranks(2, run, per_rank).results():
        found |= each
    assert [found[index] for index in sorted(found)] == grads(modules)


def test_a_stage_may_not_write_one_of_two_views_of_a_tensor():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            return y[:, :2], y.T

    class Writes(nn.Module):
        def forward(self, x, y):
            y.mul_(2)  # without a pipeline this would change x
            return x

    def run(rank):
        stage = PipelineStage((Views, Writes)[rank](), rank, 2, "cpu")
        ScheduleGPipe(stage, 2, loss_fn=F.mse_loss).step(resilin.ones(4, 4), target=resilin.ones(4, 2))

    errors = run_ranks(2, run, abort=False).errors
    assert "a leaf Variable that requires grad is being used in an in-place operation" in str(errors[1])
