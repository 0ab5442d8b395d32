"""Bad input and deaths: clear errors on all ranks, and nobody who waits for ever."""

import threading
from pathlib import Path

import extent
import pytest
from pipelined import SCHEDULES, SINGLE, make_schedule, snapshot

import resilin
import resilin.distributed as dist
from resilin import nn, pipeline
from resilin._base import fault_points
from resilin.distributed.wire import tags
from resilin.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistError,
    GroupAborted,
    PeerLost,
    UsageError,
    UsageTypeError,
)
from resilin.nn import functional as F
from resilin.pipeline import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    get_schedule_class,
    messages,
)
from resilin.pipeline.messages import MessageKind, Route
from resilin.pipeline.plan.generate import generate
from resilin.testing.faults import Killed
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks, start_ranks

MICROBATCHES = 4


def actions_of(schedule, rank):
    plan = generate(schedule, 2, MICROBATCHES)
    return sum(len(action.parts) for action in plan.computations().of(rank))


DEATHS = [
    (schedule, rank, action)
    for schedule in SCHEDULES
    for rank in range(2)
    for action in range(actions_of(schedule, rank))
]


class Deaths:
    """Kills one rank, a thread, at one of its actions."""

    def __init__(self, monkeypatch, victim, action):
        self.victim, self.left, self.here = victim, action, threading.local()
        monkeypatch.setattr(fault_points, "heard", self.hear)

    def hear(self, name):
        if name != "pipeline" or getattr(self.here, "rank", None) != self.victim:
            return
        if self.left == 0:
            dist.default_group().vanish()
            raise Killed
        self.left -= 1

    def run(self, rank, schedule):
        plan, _, batch = make_schedule("gpt", schedule, dist.get_world_size(), rank, MICROBATCHES)
        x, y = batch()
        plan.step(x, target=y)
        self.here.rank = rank
        plan.step(x, target=y)


@pytest.mark.parametrize(("schedule", "victim", "action"), extent.short(DEATHS, of=DEATHS[:: len(DEATHS) // 6]))
def test_a_stage_that_dies_at_any_action_is_named_by_the_others(monkeypatch, schedule, victim, action):
    deaths = Deaths(monkeypatch, victim, action)
    outcome = run_ranks(2, deaths.run, schedule, abort=False, timeout_s=PATIENCE_S)
    other = 1 - victim
    assert deaths.left == 0
    assert set(outcome.errors) | set(outcome.values) == {other}
    if outcome.errors:  # it may have had all that it needed before the death
        assert isinstance(outcome.errors[other], PeerLost)
        assert set(outcome.errors[other].ranks) == {victim}


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_all_other_stages_hear_of_a_death(monkeypatch, victim):
    deaths = Deaths(monkeypatch, victim, 3)
    outcome = run_ranks(4, deaths.run, "1F1B", abort=False, timeout_s=PATIENCE_S)
    assert sorted(outcome.errors) == [rank for rank in range(4) if rank != victim]
    assert all(isinstance(error, PeerLost) for error in outcome.errors.values())


@pytest.mark.multiproc
@pytest.mark.parametrize(
    "kill",
    extent.short([f"{schedule}:{rank}:5" for schedule in SCHEDULES for rank in range(2)], of=["ZBVZeroBubble:1:5"]),
)
def test_kill_9_of_a_stage_raises_peer_lost_in_the_others(tmp_path, kill):
    here = Path(__file__).parent
    source = f"import sys; sys.path.insert(0, {str(here)!r})\n" + (here / "killed_stage.py").read_text()
    victim = int(kill.split(":")[1])
    processes = start_ranks(2, source, str(tmp_path), KILL=kill)
    ends = [process.finish() for process in processes]
    assert ends[victim][0] == -9, ends
    code, out, err = ends[1 - victim]
    assert (code, out.strip()) == (0, f"lost [{victim}]"), err


def stage_of(rank, count=2, **kwargs):
    return PipelineStage(nn.Linear(4, 4), rank, count, "cpu", **kwargs)


def refused(fn, *args, count=2):
    """The errors of all ranks, of which none may have begun to wait."""
    errors = run_ranks(count, fn, *args, timeout_s=PATIENCE_S).errors
    assert sorted(errors) == list(range(count))
    return [str(errors[rank]) for rank in range(count)], [type(errors[rank]) for rank in range(count)]


def test_other_schedules_on_the_ranks_are_refused_on_both():
    def run(rank):
        cls = [Schedule1F1B, ScheduleGPipe][rank]
        cls(stage_of(rank), 4, loss_fn=F.mse_loss).step(resilin.ones(4, 4), target=resilin.ones(4, 4))

    said, kinds = refused(run)
    assert said[0] == said[1]
    assert "the schedule is Schedule1F1B on rank 0 and ScheduleGPipe on rank 1" in said[0]
    assert kinds == [CollectiveMismatch] * 2


def test_other_numbers_of_micro_batches_are_refused_on_both():
    def run(rank):
        Schedule1F1B(stage_of(rank), 4 + rank, loss_fn=F.mse_loss).step(resilin.ones(5, 4), target=resilin.ones(5, 4))

    said, _ = refused(run)
    assert said[0] == said[1]
    assert "the number of micro-batches is 4 on rank 0 and 5 on rank 1" in said[0]


def test_other_numbers_of_stages_are_refused_on_both():
    def run(rank):
        stages = (
            [stage_of(index, 4) for index in (rank, rank + 2)]
            if rank == 0
            else [stage_of(index, 6) for index in (1, 3, 5)]
        )
        plan = ScheduleInterleaved1F1B(stages, 4, loss_fn=F.mse_loss)
        plan.step(resilin.ones(4, 4), target=resilin.ones(4, 4))

    said, _ = refused(run)
    assert said[0] == said[1]
    assert "the number of stages is 4 on rank 0 and 6 on rank 1" in said[0]


def test_a_loss_on_one_rank_only_is_refused_on_both():
    def run(rank):
        plan = Schedule1F1B(stage_of(rank), 4, loss_fn=F.mse_loss if rank else None)
        plan.step(resilin.ones(4, 4), target=resilin.ones(4, 4))

    said, _ = refused(run)
    assert said[0] == said[1]
    assert "whether there is a loss_fn" in said[0]


def test_scaling_on_one_rank_only_is_refused_on_both():
    def run(rank):
        plan = Schedule1F1B(stage_of(rank), 4, loss_fn=F.mse_loss, scale_grads=bool(rank))
        plan.step(resilin.ones(4, 4), target=resilin.ones(4, 4))

    said, _ = refused(run)
    assert said[0] == said[1]
    assert "scale_grads is False on rank 0 and True on rank 1" in said[0]


def test_a_target_that_cannot_be_split_is_refused_on_all_ranks():
    def run(rank):
        plan = Schedule1F1B(stage_of(rank), 4, loss_fn=F.mse_loss)
        plan.step(resilin.ones(4, 4), target=(resilin.ones(4, 4),))

    said, _ = refused(run)
    assert all("target: expected a tensor to split into micro-batches, got tuple" in each for each in said)


def test_bad_arguments_of_one_rank_are_heard_by_all():
    def target_too_small(rank):
        plan = Schedule1F1B(stage_of(rank), 4, loss_fn=F.mse_loss)
        plan.step(resilin.ones(4, 4), target=resilin.ones(2 + 2 * rank, 4))

    said, kinds = refused(target_too_small)
    assert all("target: Tensor size 2 is smaller than num_chunks" in each for each in said)
    assert all(issubclass(kind, UsageError) for kind in kinds)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_step_without_a_target_is_refused_on_all_ranks(steps):
    def run(rank):
        plan = Schedule1F1B(stage_of(rank), 4, loss_fn=F.mse_loss)
        for _ in range(steps):
            plan.step(resilin.ones(4, 4), target=resilin.ones(4, 4))
        plan.step(resilin.ones(4, 4))

    said, _ = refused(run)
    assert all("loss_fn and target required for last stage: give target= on the rank" in each for each in said)


def test_step_and_eval_at_once_are_refused():
    def run(rank):
        plan = Schedule1F1B(stage_of(rank), 4, loss_fn=F.mse_loss)
        x = resilin.ones(4, 4)
        plan.step(x, target=x)
        plan.eval(x)
        if rank == 0:
            plan.step(x, target=x)
        else:
            plan.eval(x)

    errors = run_ranks(2, run, timeout_s=PATIENCE_S).errors
    assert isinstance(errors[1], DistError)
    assert "rank 1 is in an evaluation before step 1" in str(errors[1])
    assert isinstance(errors[0], GroupAborted)


def test_an_error_in_a_stage_reaches_all_with_the_action_that_failed():
    class Failing(nn.Module):
        def forward(self, x):
            if self.training and x.sum().item() == 12:
                raise KeyError("the third micro-batch")
            return x * nn.Parameter(resilin.ones(1))

    def run(rank):
        stage = PipelineStage(Failing() if rank == 1 else nn.Identity(), rank, 3, "cpu")
        x = resilin.arange(4.0).reshape(4, 1).expand(4, 6)
        Schedule1F1B(stage, 4, loss_fn=F.mse_loss).step(x, target=x)

    errors = run_ranks(3, run, timeout_s=PATIENCE_S).errors
    assert type(errors[1]) is KeyError
    assert any("action 1F2 of step 0" in note for note in errors[1].__notes__)
    for rank in (0, 2):
        assert isinstance(errors[rank], GroupAborted)
        assert "the third micro-batch" in str(errors[rank])


def test_a_message_that_does_not_come_is_named_by_its_stages_and_its_action():
    heard = threading.Event()

    class Stuck(nn.Module):
        def forward(self, x):
            assert heard.wait(PATIENCE_S)
            return x

    def run(rank):
        plan = Schedule1F1B(PipelineStage((nn.Identity, Stuck)[rank == 0](), rank, 2, "cpu"), 2, loss_fn=F.mse_loss)
        try:
            plan.step(resilin.ones(2, 4), target=resilin.ones(2, 4))
        finally:
            heard.set()

    error = run_ranks(2, run, timeout_s=1.0).errors[1]
    assert isinstance(error, CollectiveTimeout)
    assert "recv from rank 0 of the pipeline, forward of stage 0 to stage 1" in str(error)
    assert any("action 1F0 of step 0" in note for note in error.__notes__)


@pytest.mark.parametrize(
    "route", [Route(kind, 3, 511, 255) for kind in MessageKind] + [Route(MessageKind.FORWARD, 0, 1)]
)
def test_every_tag_of_the_pipeline_is_told_as_its_route(route):
    assert tags.spoken(messages._tag(route)) == tags.spoken(messages._tag(route) + 1) == f"of the pipeline, {route}"


def test_a_loss_that_is_no_tensor_is_refused():
    def run(rank):
        plan = Schedule1F1B(stage_of(rank), 4, loss_fn=lambda output, target: 3.0)
        plan.step(resilin.ones(4, 4), target=resilin.ones(4, 4))

    errors = run_ranks(2, run, timeout_s=PATIENCE_S).errors
    assert "loss_fn: expected a tensor of one element, got float, micro-batch 0" in str(errors[1])
    assert "loss_fn: expected a tensor of one element" in str(errors[0])


def test_stages_that_belong_elsewhere_are_refused_before_anything_is_sent():
    def run(rank):
        stages = [stage_of(index, 4) for index in (rank, rank + 2)]  # in a loop, where a V is wanted
        pipeline.ScheduleZBVZeroBubble(stages, 4, loss_fn=F.mse_loss)

    said, kinds = refused(run)
    assert "rank 0 of the pipeline has stages [0, 2], expected [0, 3]: stage_indices" in said[0]
    assert kinds == [UsageError] * 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", "1B1 is missing"),
        ("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n", "deadlock"),
        ("0F0,0F1,0B0,0B1,0F0\n1F0,1B0,1F1,1B1\n", "0F0"),
        ("0F0,0F1,0B0,0B1\n", "ranks"),
        ("0F0,0X1\n", "Invalid action string"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_as_it_is_loaded(tmp_path, text, words):
    path = tmp_path / "plan.csv"
    path.write_text(text)

    def run(rank):
        plan = pipeline.PipelineScheduleMulti([stage_of(rank)], 2, loss_fn=F.mse_loss)
        with pytest.raises(UsageError, match="no plan yet"):
            plan.step(resilin.ones(2, 4))
        with pytest.raises(UsageError, match='expected "compute_only" or "compute_comms", got \'bogus\''):
            plan._load_csv(path, format="bogus")
        plan._load_csv(path)

    said, _ = refused(run)
    assert words in said[0]


def test_plans_of_files_are_played_in_both_forms_and_gradients_keep_their_order(tmp_path):
    own = tmp_path / "own.csv"  # backwards out of order
    own.write_text("0F0,0F1,0F2,0F3,0B1,0I0,0B3,0W0,0B2\n1F0,1F1,1B1,1B0,1F2,1F3,1B3,1B2\n")

    def run(rank, file, form):
        made, stages, batch = make_schedule("gpt", "1F1B", 2, rank, 4)
        plan = pipeline.PipelineScheduleMulti(stages, 4, loss_fn=made._loss_fn)
        if file is None:
            plan.set_plan(made.pipeline_order)
            file = tmp_path / f"dumped-{rank}.csv"
            plan._dump_csv(file, format=form)
        plan._load_csv(file, format=form)
        x, y = batch()
        plan.step(x, target=y)
        return snapshot(stages[0].submod)

    found = [
        run_ranks(2, run, *how).results()
        for how in ((None, "compute_only"), (None, "compute_comms"), (own, "compute_only"))
    ]
    assert found[0] == found[1] == found[2]


def test_arguments_of_stages_are_checked():
    for kwargs, words in (
        ({"stage_index": 2}, "Stage index 2 is out of range of 2"),
        ({"num_stages": 0, "stage_index": 0}, "expected 1 to"),
        ({"stage_index": True}, "stage_index: expected an int, got bool"),
        ({"num_stages": 2.0}, "num_stages: expected an int, got float"),
        ({"checkpoint": "sometimes"}, "checkpoint is not one of"),
        ({"get_mesh": print}, "no distributed tensors"),
        ({"input_args": "x"}, "expected tensors, got str"),
        ({"submodule": print}, "expected a Module"),
    ):
        given = {"submodule": nn.Linear(2, 2), "stage_index": 0, "num_stages": 2, "device": "cpu", **kwargs}
        with pytest.raises(UsageError, match=words):
            PipelineStage(**given)


def test_what_is_no_loss_function_and_no_checkpoint_mode_is_refused_at_once():
    pipe = pipeline.pipeline(nn.Sequential(nn.ReLU(), nn.ReLU()), (), split_spec={"1": pipeline.SplitPoint.BEGINNING})
    for make in (
        lambda: ScheduleGPipe(stage_of(0, 1), 4, loss_fn="mse"),
        lambda: pipeline.ElasticPipeline(pipe, 4, "mse"),
    ):
        with pytest.raises(UsageTypeError, match=r"loss_fn: expected a function of \(output, target\), got 'mse'"):
            make()
    with pytest.raises(UsageError, match="checkpoint is not one of 'always', 'except_last', or 'never': got 'some'"):
        pipeline.ElasticPipeline(pipe, 4, checkpoint="some")


def test_names_of_schedules_are_found_in_any_case():
    assert get_schedule_class("interleavedzerobubble") is pipeline.ScheduleInterleavedZeroBubble
    assert get_schedule_class("1f1b") is Schedule1F1B
    assert {*SINGLE} <= {*SCHEDULES}
    with pytest.raises(UsageError, match="Unknown schedule name 'nope'"):
        get_schedule_class("nope")


@pytest.mark.parametrize("number", ["4", 2.0, 0, -1])
def test_numbers_of_micro_batches_that_cannot_be_are_refused(number):
    words = "n_microbatches: expected (an int|at least 1), got "
    with pytest.raises(UsageError, match=words):
        ScheduleGPipe(stage_of(0, 1), number)
    pipe = pipeline.pipeline(nn.Sequential(nn.ReLU(), nn.ReLU()), (), split_spec={"1": pipeline.SplitPoint.BEGINNING})
    with pytest.raises(UsageError, match=words):
        pipeline.ElasticPipeline(pipe, number)


def test_what_was_not_cut_is_refused():
    layers = nn.Sequential(nn.ReLU(), nn.ReLU())
    with pytest.raises(UsageError, match=r"pipe: expected what pipelining.pipeline\(\) returns, got Sequential"):
        pipeline.ElasticPipeline(layers, 4)
    for spec in (["1"], {1: pipeline.SplitPoint.END}):
        with pytest.raises(UsageError, match="split_spec: expected a dict of paths to SplitPoints"):
            pipeline.pipeline(layers, (), split_spec=spec)
    cut = {"1": pipeline.SplitPoint.END}
    with pytest.raises(UsageTypeError, match="mb_args: expected a tuple of one micro-batch's arguments, got Tensor"):
        pipeline.pipeline(layers, resilin.ones(2), split_spec=cut)
    with pytest.raises(UsageTypeError, match="module: expected a Module, got function"):
        pipeline.pipeline(lambda x: x, (), split_spec=cut)
    with pytest.raises(UsageTypeError, match="expected the list of this rank's stages, got one PipelineStage"):
        ScheduleInterleaved1F1B(stage_of(0), 4)
