"""What training loops do with a pipeline: accumulate over steps, clip, evaluate, checkpoint, go on."""

import math

import pytest
from pipelined import bits, gpt, gpt_batch, gpt_loss, make_schedule, snapshot

import resilin
from resilin import nn, pipeline
from resilin.core import rng
from resilin.errors import ResilinError
from resilin.nn import functional as F
from resilin.pipeline import PipelineStage, Schedule1F1B, clip_grad_norm_
from resilin.testing.ranks import run_ranks


def loop(net, batches, microbatches, scale):
    """The loop without a pipeline; gradients of steps add up."""
    for step, (x, y) in enumerate(batches):
        before = [param.grad if scale else None for param in net.parameters()]
        if scale:  # of these micro-batches alone
            net.zero_grad()
        for number, (xs, ys) in enumerate(zip(x.tensor_split(microbatches), y.tensor_split(microbatches), strict=True)):
            with rng.keyed(step, number):
                gpt_loss(net(xs), ys).backward()
        for param, old in zip(net.parameters(), before, strict=True):
            if scale:
                param.grad /= microbatches
            if old is not None:
                param.grad += old


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_gradients_accumulate_over_steps(schedule, scale):
    def run(rank):
        plan, stages, batch = make_schedule("gpt", schedule, 2, rank, 4, scale_grads=scale)
        for _ in range(3):
            x, y = batch()
            plan.step(x, target=y)
        return {name: value for stage in stages for name, value in snapshot(stage.submod).items()}

    resilin.manual_seed(5)
    net = gpt()
    loop(net, [gpt_batch() for _ in range(3)], 4, scale)
    first, second = run_ranks(2, run).results()
    assert {**first, **second} == snapshot(net)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_clipping_over_stages_has_the_bits_of_clipping_the_whole_model(schedule, norm_type):
    def run(rank):
        plan, stages, batch = make_schedule("gpt", schedule, 2, rank, 4)
        x, y = batch()
        plan.step(x, target=y)
        total = clip_grad_norm_(stages, 0.05, norm_type)
        return bits(total), {name: value for stage in stages for name, value in snapshot(stage.submod).items()}

    resilin.manual_seed(5)
    net = gpt()
    loop(net, [gpt_batch()], 4, True)
    total = nn.utils.clip_grad_norm_(net.parameters(), 0.05, norm_type)
    (one, first), (other, second) = run_ranks(2, run).results()
    assert one == other == bits(total)
    assert {**first, **second} == snapshot(net)


def test_a_norm_that_is_not_finite_is_an_error_on_all_ranks():
    def run(rank):
        stage = PipelineStage(nn.Linear(2, 2), rank, 2, "cpu")
        stage.submod.weight.grad = resilin.full((2, 2), float("nan") if rank else 1.0)
        clip_grad_norm_(stage, 1.0, error_if_nonfinite=True)

    errors = run_ranks(2, run).errors
    assert sorted(errors) == [0, 1]
    assert all(type(error) is ResilinError for error in errors.values())


def test_eval_gives_the_outputs_of_the_model_and_records_nothing():
    def run(rank, schedule):
        plan, stages, batch = make_schedule("gpt", schedule, 2, rank, 4)
        for stage in stages:
            stage.submod.eval()
        x, y = batch()
        losses = []
        output = plan.eval(x, target=y, losses=losses)
        without_target = plan.eval(x)
        assert all(param.grad is None for stage in stages for param in stage.submod.parameters())
        assert output is None or not output.requires_grad
        assert plan.steps == 0
        plan.step(x, target=y)
        plan.eval(x)
        return bits(output), list(map(bits, losses)), bits(without_target)

    resilin.manual_seed(5)
    net = gpt().eval()
    x, y = gpt_batch()
    with resilin.no_grad():
        outputs = [net(xs) for xs in x.tensor_split(4)]
        losses = [bits(gpt_loss(o, ys)) for o, ys in zip(outputs, y.tensor_split(4), strict=True)]
    whole = bits(resilin.cat(outputs))
    assert run_ranks(2, run, "1F1B").results()[1] == (whole, losses, whole)
    assert run_ranks(2, run, "ZBVZeroBubble").results()[0] == (whole, losses, whole)


def test_step_under_no_grad_is_refused_and_without_a_loss_it_is_forward_only():
    def run(rank):
        stage = PipelineStage(nn.Linear(4, 4), rank, 2, "cpu")
        with resilin.no_grad(), pytest.raises(RuntimeError, match="Please call eval"):
            Schedule1F1B(stage, 2, loss_fn=F.mse_loss).step(resilin.ones(4, 4))
        with resilin.no_grad():
            found = Schedule1F1B(stage, 2).step(resilin.ones(4, 4))
        return found is None

    assert run_ranks(2, run).results() == [True, False]


def test_stages_have_the_names_of_the_whole_model_and_load_at_another_number_of_stages():
    resilin.manual_seed(5)
    net = gpt()
    pipe = pipeline.pipeline(net, (gpt_batch()[0],), split_spec={"3": pipeline.SplitPoint.BEGINNING})
    states = [pipe.get_stage_module(index).state_dict() for index in range(2)]
    assert {**states[0], **states[1]}.keys() == net.state_dict().keys()
    resilin.manual_seed(6)
    other = gpt()
    spec = {"1": pipeline.SplitPoint.BEGINNING, "5": pipeline.SplitPoint.END}
    again = pipeline.pipeline(other, (gpt_batch()[0],), split_spec=spec)
    whole = {**states[0], **states[1]}
    for index in range(again.num_stages):
        module = again.get_stage_module(index)
        module.load_state_dict({name: whole[name] for name in module.state_dict()})
    assert snapshot(other) == snapshot(net)


def test_training_goes_on_from_a_step_with_the_same_random_numbers():
    def run(rank, begin):
        plan, stages, batch = make_schedule("gpt", "1F1B", 2, rank, 4)
        batches = [batch() for _ in range(3)]
        for step in range(begin, 3):
            plan.steps = step
            for stage in stages:
                stage.submod.zero_grad()
            plan.step(batches[step][0], target=batches[step][1])
        return snapshot(stages[0].submod)

    assert run_ranks(2, run, 0).results() == run_ranks(2, run, 2).results()


def test_random_numbers_are_those_of_the_first_stages_seed():
    def run(rank, others):
        plan, stages, batch = make_schedule("gpt", "1F1B", 2, rank, 4)
        x, y = batch()
        if rank:
            resilin.manual_seed(others)
        plan.step(x, target=y)
        return snapshot(stages[0].submod)

    assert run_ranks(2, run, 1).results() == run_ranks(2, run, 2).results()


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble", "InterleavedZeroBubble"])
def test_what_is_alive_at_once_does_not_grow_with_the_number_of_micro_batches(schedule):
    class Counted(nn.Module):
        """Counts the tensors that its backward keeps."""

        def __init__(self, alive):
            super().__init__()
            self.linear, self.alive = nn.Linear(4, 4), alive

        def forward(self, x):
            y = self.linear(x).tanh()
            kept = y._node
            self.alive.append(lambda: kept.y is not None)
            return y

    def run(rank, microbatches):
        alive, peak = [], []
        cls = pipeline.get_schedule_class(schedule)
        count = 2 if schedule == "1F1B" else 4
        stages = [PipelineStage(Counted(alive), i, count, "cpu") for i in cls.stage_indices(rank, 2, count)]
        for stage in stages:
            stage.submod.register_forward_hook(lambda *_: peak.append(sum(each() for each in alive)))
        plan = cls(stages[0] if count == 2 else stages, microbatches, loss_fn=F.mse_loss)
        plan.step(resilin.ones(2 * microbatches, 4), target=resilin.ones(2 * microbatches, 4))
        assert sum(each() for each in alive) == 0
        return max(peak)

    few, many = run_ranks(2, run, 6).results(), run_ranks(2, run, 24).results()
    assert few == many
    assert max(few) <= 6


def test_what_was_cut_is_a_module_with_the_parameters_of_all_stages():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2))
    pipe = pipeline.pipeline(net, (), split_spec={"2": pipeline.SplitPoint.BEGINNING}).eval()
    assert not net[1].training
    assert [id(each) for each in pipe.parameters()] == [id(each) for each in net.parameters()]
    assert next(iter(pipe.state_dict())) == "split_gm.submod_pp_0.0.weight"
    x = resilin.randn(3, 4)
    assert resilin.equal(pipe(x), net(x))
    assert repr(pipe) == "<Pipe of 2 stages: 0+1, 2>"


def test_a_stage_and_what_was_cut_say_what_pytorchs_say():
    from resilin.distributed.pipelining.schedules import _Action, _ComputationType

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    pipe = pipeline.pipeline(net, (), split_spec={"1": pipeline.SplitPoint.BEGINNING})
    assert not pipe.info().has_loss_and_backward
    stage = PipelineStage(net, 0, 1, "cpu")
    Schedule1F1B(stage, 2)
    assert not stage.has_backward
    plan = Schedule1F1B(stage, 2, loss_fn=F.mse_loss)
    assert stage.has_backward
    assert plan.pipeline_order[0][0] == _Action(0, _ComputationType.FORWARD, 0) == _Action.from_str("0F0")
