"""Stages x replicas: DistributedDataParallel over the replicas of each stage, in sub-groups."""

import pytest
from pipelined import bits, gpt, gpt_batch, gpt_loss, part, snapshot

import resilin
import resilin.distributed as dist
from resilin import optim, pipeline
from resilin.core import rng
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel as DDP
from resilin.errors import UsageError
from resilin.optim import SGD
from resilin.pipeline import get_schedule_class
from resilin.testing.ranks import run_ranks
from resilin.zero import ShardedGradScaler, ZeroRedundancyOptimizer

SHARDS, STEPS = 8, 3


def model():
    resilin.manual_seed(5)
    return gpt()


def data(samples=40):
    resilin.manual_seed(6)
    return gpt_batch(samples)


def sampler():
    return ElasticSampler(40, batch_size=16, shards=SHARDS, seed=3)


def groups(rank, stages, replicas):
    """The group of this rank's pipeline, that of its stage's replicas, and its places in both."""
    lines = [dist.new_group([replica * stages + stage for stage in range(stages)]) for replica in range(replicas)]
    columns = [dist.new_group([replica * stages + stage for replica in range(replicas)]) for stage in range(stages)]
    replica, stage = divmod(rank, stages)
    return lines[replica], columns[stage], replica, stage


def one_process(rank):
    """What all worlds must equal: a single process that computes all shards."""
    x, y = data()
    net = DDP(model(), shards=SHARDS)
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
    for plan in list(sampler().steps(rank=0, world_size=1))[:STEPS]:
        optimizer.zero_grad()
        for shard in plan.shards:
            with net.shard(shard):
                if len(shard):
                    gpt_loss(net(x[shard.indices]), y[shard.indices]).backward()
        optimizer.step()
    return snapshot(net.module)


def stages_and_replicas(rank, schedule, stages, replicas, per_rank):
    line, column, replica, place = groups(rank, stages, replicas)
    x, y = data()
    cls, net = get_schedule_class(schedule), model()  # last: from its seed the random numbers go on
    count = stages * per_rank
    made = [
        pipeline.PipelineStage(
            DDP(part(net, index, count), process_group=column, shards=SHARDS), index, count, "cpu", group=line
        )
        for index in cls.stage_indices(place, stages, count)
    ]
    plan = cls(made[0] if per_rank == 1 else made, SHARDS // replicas, loss_fn=gpt_loss)
    optimizer = SGD([p for stage in made for p in stage.submod.parameters()], lr=0.1, momentum=0.9)
    for each in list(sampler().steps(rank=replica, world_size=replicas))[:STEPS]:
        optimizer.zero_grad()
        args = [(x[shard.indices],) for shard in each.shards]
        plan.step_shards(each.shards, args, target_mbs=[y[shard.indices] for shard in each.shards])
        optimizer.step()
    return {name: value for stage in made for name, value in snapshot(stage.submod.module).items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "stages", "replicas", "per_rank"),
    [
        ("1F1B", 2, 2, 1),
        ("GPipe", 2, 2, 1),
        ("Interleaved1F1B", 2, 2, 2),
        ("ZBVZeroBubble", 2, 2, 2),
        ("InterleavedZeroBubble", 2, 1, 2),
        ("1F1B", 1, 4, 1),
        ("1F1B", 4, 1, 1),
    ],
)
def test_any_number_of_stages_and_replicas_equals_one_process_with_as_many_shards(schedule, stages, replicas, per_rank):
    (expected,) = run_ranks(1, one_process).results()
    results = run_ranks(stages * replicas, stages_and_replicas, schedule, stages, replicas, per_rank).results()
    for replica in range(replicas):
        found = {}
        for state in results[replica * stages : (replica + 1) * stages]:
            found |= state
        assert found == expected


def plain_replicas(rank, schedule, per_rank):
    """DDP without shards: the mean over replicas of the gradients of each one's pipeline."""
    line, column, replica, place = groups(rank, 2, 2)
    cls, net = get_schedule_class(schedule), model()
    count = 2 * per_rank
    made = [
        pipeline.PipelineStage(DDP(part(net, index, count), process_group=column), index, count, "cpu", group=line)
        for index in cls.stage_indices(place, 2, count)
    ]
    plan = cls(made[0] if per_rank == 1 else made, 4, loss_fn=gpt_loss)
    optimizer = SGD([p for stage in made for p in stage.submod.parameters()], lr=0.1)
    x, y = data(48)
    for step in range(STEPS):
        here = slice(16 * step + 8 * replica, 16 * step + 8 * replica + 8)
        optimizer.zero_grad()
        plan.step(x[here], target=y[here])
        optimizer.step()
    reductions = [stage.submod.stats()["backwards"] for stage in made]
    return reductions, {name: value for stage in made for name, value in snapshot(stage.submod.module).items()}


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "per_rank"), [("GPipe", 1), ("1F1B", 1), ("ZBVZeroBubble", 2)])
def test_plain_ddp_reduces_once_a_step_and_all_replicas_and_schedules_end_equal(schedule, per_rank):
    results = run_ranks(4, plain_replicas, schedule, per_rank).results()
    assert all(set(reductions) == {STEPS} for reductions, _ in results)
    first, second = ({**results[r][1], **results[r + 1][1]} for r in (0, 2))
    assert first == second == _mean_of_two_loops()


def _mean_of_two_loops():
    net = model()
    optimizer = SGD(net.parameters(), lr=0.1)
    x, y = data(48)
    for step in range(STEPS):
        grads = []
        for replica in range(2):
            optimizer.zero_grad()
            begin = 16 * step + 8 * replica
            for number in range(4):
                here = slice(begin + 2 * number, begin + 2 * number + 2)
                with rng.keyed(step, number):
                    gpt_loss(net(x[here]), y[here]).backward()
            grads.append([param.grad.clone() for param in net.parameters()])
        for param, one, other in zip(net.parameters(), *grads, strict=True):
            param.grad = (one + other) / 2 / 4
        optimizer.step()
    return snapshot(net)


@pytest.mark.slow
def test_zero_divides_the_optimizer_state_of_a_stage_among_its_replicas():
    def run(rank, divided):
        line, column, replica, place = groups(rank, 2, 2)
        stage = pipeline.PipelineStage(
            DDP(part(model(), place, 2), process_group=column, shards=SHARDS), place, 2, "cpu", group=line
        )
        plan = pipeline.Schedule1F1B(stage, SHARDS // 2, loss_fn=gpt_loss)
        params = list(stage.submod.parameters())
        if divided:
            optimizer = ZeroRedundancyOptimizer(params, optim.AdamW, process_group=column, lr=0.01)
        else:
            optimizer = optim.AdamW(params, lr=0.01)
        x, y = data()
        for each in list(sampler().steps(rank=replica, world_size=2))[:STEPS]:
            optimizer.zero_grad()
            args = [(x[shard.indices],) for shard in each.shards]
            plan.step_shards(each.shards, args, target_mbs=[y[shard.indices] for shard in each.shards])
            optimizer.step()
        return {name: bits(value) for name, value in stage.submod.module.state_dict().items()}

    assert run_ranks(4, run, True).results() == run_ranks(4, run, False).results()


def test_a_grad_scaler_over_the_stages_leaves_out_a_step_on_all_of_them():
    def run(rank):
        stage = pipeline.PipelineStage(part(model(), rank, 2), rank, 2, "cpu")
        scaler = ShardedGradScaler(init_scale=1024.0, process_group=dist.default_group())
        bad = []

        def loss_fn(output, target):
            loss = scaler.scale(gpt_loss(output, target))
            return loss * float("inf") if bad else loss

        plan = pipeline.Schedule1F1B(stage, 4, loss_fn=loss_fn)
        optimizer = SGD(stage.submod.parameters(), lr=0.1)
        x, y = data(8)
        states, scales = [], []
        for step in range(3):
            bad[:] = [True] * (step == 1)
            optimizer.zero_grad()
            plan.step(x, target=y)
            scaler.step(optimizer)
            scaler.update()
            states.append({name: bits(value) for name, value in stage.submod.state_dict().items()})
            scales.append(scaler.get_scale())
        return states, scales

    for states, scales in run_ranks(2, run).results():
        assert states[0] == states[1] != states[2]
        assert scales == [1024.0, 512.0, 512.0]


def test_shards_need_modules_that_sum_them_and_as_many_as_micro_batches():
    def run(rank, wrapped, count):
        net = part(model(), 0, 1)
        stage = pipeline.PipelineStage(DDP(net, shards=SHARDS) if wrapped else net, 0, 1, "cpu")
        plan = pipeline.Schedule1F1B(stage, count, loss_fn=gpt_loss)
        shards = next(sampler().steps(rank=0, world_size=1)).shards
        plan.step_shards(shards, [(None,)] * count, target_mbs=[None] * count)

    with pytest.raises(UsageError, match="expected 4 shards"):
        run_ranks(1, run, True, 4).results()
    with pytest.raises(UsageError, match="wrap it, DistributedDataParallel"):
        run_ranks(1, run, False, SHARDS).results()
