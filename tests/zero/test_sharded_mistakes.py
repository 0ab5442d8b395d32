"""Mistakes with sharded modules: what is said, and that nothing is left half done."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sharded_nets import Language, adamw, arrays, differences, loss_of, tensor, tokens, train

import resilin
from resilin import nn, optim
from resilin.amp import GradScaler
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.errors import CollectiveMismatch, GroupAborted, UsageError, UsageTypeError
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks
from resilin.zero import MixedPrecisionPolicy, ZeroRedundancyOptimizer, shard


def alone(fn: Callable[[], Any]) -> Any:
    """`fn` in a world of one."""
    return run_ranks(1, lambda rank: fn()).results()[0]


def test_what_cannot_be_sharded() -> None:
    def run() -> None:
        with pytest.raises(UsageTypeError, match=r"expected an nn\.Module, got int"):
            shard(3)  # type: ignore[arg-type]
        for stage in (1, 4, 2.0, True, None):
            with pytest.raises(UsageError, match=r"stage must be 2 or 3, got .*stage 1 is ZeroRedundancyOptimizer"):
                shard(nn.Linear(2, 2), stage)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="has no parameters; call it directly"):
            shard(nn.ReLU())
        with pytest.raises(UsageError, match="bucket_cap_mb"):
            shard(nn.Linear(2, 2), 3, bucket_cap_mb=1)
        for cap in (True, "1"):
            with pytest.raises(UsageTypeError, match=f"zero.shard: bucket_cap_mb is a number of MiB, got {cap!r}"):
                shard(nn.Linear(2, 2), 2, bucket_cap_mb=cap)  # type: ignore[arg-type]
        for cap in (0, float("nan")):
            with pytest.raises(UsageError, match=f"zero.shard: bucket_cap_mb must be positive and finite, got {cap}"):
                shard(nn.Linear(2, 2), 2, bucket_cap_mb=cap)
        for name in ("cpu_offload", "init_sync", "broadcast_buffers", "find_unused_parameters", "buddies"):
            with pytest.raises(UsageTypeError, match=f"zero.shard: {name} must be True or False, got 'no'"):
                shard(nn.Linear(2, 2), 2, **{name: "no"})  # type: ignore[arg-type]
        shard(nn.Linear(2, 2), 2, bucket_cap_mb=np.float32(1), cpu_offload=0, init_sync=np.True_)  # type: ignore[arg-type]
        with pytest.raises(UsageTypeError, match="mixed_precision must be a MixedPrecisionPolicy"):
            shard(nn.Linear(2, 2), mixed_precision="fp16")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"0\.weight is on sim:1, .* on|1\.weight is on sim:1"):
            shard(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to("sim:1")))
        with pytest.raises(UsageError, match=r"0\.weight has no shape yet"):
            shard(nn.Sequential(nn.LazyLinear(2)))

    alone(run)


@pytest.mark.parametrize("stage", [2, 3])
def test_without_a_group_it_says_what_to_do(stage: int) -> None:
    net = nn.Linear(2, 2)
    before = arrays(net.state_dict())
    model = shard(net, stage)
    with pytest.raises(UsageError, match=r"call resilin\.distributed\.init_process_group.*in elastic\.State"):
        model(tensor(np.ones((1, 2))))
    assert not differences([before], [arrays(model.state_dict(rank0_only=True))])
    with model.gathered():
        assert not differences([before], [arrays(net.state_dict())])


def test_what_is_sharded_or_wrapped_already() -> None:
    def run(rank: int) -> None:
        net = Language(1)
        model = shard(net, 3)
        for again in (net, model, nn.Sequential(model), nn.Sequential(net)):
            with pytest.raises(UsageError, match="is sharded already; use what the first call returned"):
                shard(again)
        wrapped = DDP(nn.Linear(2, 2))
        for given in (wrapped, wrapped.module):
            with pytest.raises(UsageError, match=r"weight has post-accumulate-grad hooks, as of DistributedData"):
                shard(given)

    run_ranks(2, run).results()


def test_different_modules_are_named_on_all_ranks_and_stay_as_they_are() -> None:
    def run(rank: int) -> Any:
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2 + rank))
        with pytest.raises(CollectiveMismatch) as caught:
            shard(net, 3)
        net(tensor(np.ones((1, 2)))).sum().backward()
        with pytest.raises(CollectiveMismatch, match=r"rank 0 was made with stage=2.*rank 1 with stage=3"):
            shard(nn.Linear(2, 2), 2 + rank)
        return str(caught.value)

    for text in run_ranks(2, run).results():
        assert "1.weight is of shape [2, 2] and dtype float32 on rank 0" in text
        assert " and of shape [3, 2] and dtype float32 on rank 1" in text


@pytest.mark.parametrize("stage", [2, 3])
def test_reading_a_parameter_outside_names_it_and_says_what_to_do(stage: int) -> None:
    def run() -> str:
        net = Language(1)
        model = shard(net, stage)
        weight = net.blocks[0].up.weight
        with pytest.raises(UsageError) as caught:
            weight + 1
        assert (tuple(weight.shape), weight.ndim, weight.numel()) == ((24, 8), 2, 192)
        assert (weight.size(0), weight.dim(), weight.nbytes, weight.is_floating_point()) == (24, 2, 768, True)
        assert "divided among the ranks" in repr(weight)
        for read in (net.state_dict, weight.tolist, weight.detach, weight.clone):
            with pytest.raises(UsageError, match="was read outside of forward and backward"):
                read()
        loss_of(model, tokens(0, 0)).backward()
        with pytest.raises(UsageError, match=r"'embed\.weight'"):
            net.embed.weight.sum()
        return str(caught.value)

    text = alone(run)
    assert "parameter 'blocks.0.up.weight' of shape (24, 8) was read outside of forward and backward" in text
    assert "with model.gathered():" in text
    assert "named_parameters()" in text


@pytest.mark.parametrize("stage", [2, 3])
def test_an_optimizer_of_the_wrong_parameters_or_the_wrong_kind_is_refused(stage: int) -> None:
    def run() -> None:
        net = Language(1)
        model = shard(net, stage)
        with pytest.raises(UsageError, match=r"AdamW\.step: a parameter of shape \[5, 8\] .*model\.parameters"):
            optim.AdamW(net.parameters()).step()
        for made in (optim.LBFGS(model.parameters()), optim.Adafactor(model.parameters())):
            with pytest.raises(UsageError, match=r"a piece of a parameter cannot be updated alone"):
                made.step(lambda: 0.0)

        with pytest.raises(
            UsageError, match=r"Muon: .* is a piece of a parameter .* its update needs the whole matrix"
        ):
            optim.Muon(model.named_parameters(), lr=0.1)

        class Own(optim.SGD):
            elementwise = True

            def _update(self, group: Any) -> None:
                for piece in group["params"]:
                    if piece.grad is not None:
                        piece._array -= piece.grad._array

        train(model, Own(model.parameters(), lr=1.0), 0, range(1))

    alone(run)


def test_unused_parameters_are_named_and_nobody_waits() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    for stage in (2, 3):

        def run(rank: int, stage: int = stage) -> None:
            model = shard(Partly(), stage)
            model(tensor(np.ones((1, 2)))).sum().backward()

        outcome = run_ranks(2, run, abort=False)
        assert set(outcome.errors) == {0, 1}
        texts = [str(error) for error in outcome.errors.values() if isinstance(error, UsageError)]
        assert texts
        for text in texts:
            assert "2 parameters got no gradient in this backward: unused.weight, unused.bias" in text
            assert "find_unused_parameters=True" in text
        assert all(isinstance(error, UsageError | GroupAborted) for error in outcome.errors.values())


def test_ranks_that_compute_different_units_are_told_and_get_no_other_numbers() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.paths = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

        def forward(self, x: Tensor, path: int) -> Tensor:
            return self.paths[path](x)

    def run(rank: int) -> None:
        model = shard(Chooses(), 3)
        model(tensor(np.ones((1, 4))), rank)

    outcome = run_ranks(2, run, abort=False)
    assert {type(error) for error in outcome.errors.values()} == {CollectiveMismatch}
    assert len(outcome.errors) == 2


def test_a_rank_that_expected_another_unit_hears_at_once_that_ranks_differ() -> None:
    """It has begun to fetch the unit after the one that they differ in, which nobody else fetches."""

    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 9)

        def forward(self, x: Tensor, whole: bool) -> Tensor:
            hidden = self.first(x)
            return self.second(hidden).sum() if whole else hidden.sum()

    told = [threading.Event() for _ in range(2)]

    def run(rank: int) -> None:
        model = shard(Grows(), 3, find_unused_parameters=True)
        x = tensor(np.ones((1, 4)))
        model(x, True).backward()
        loss = model(x, rank == 0)
        with pytest.raises(CollectiveMismatch):
            loss.backward()
        told[rank].set()
        assert told[1 - rank].wait(PATIENCE_S), "the other rank waits for what this one never fetches"

    run_ranks(2, run, timeout_s=2 * PATIENCE_S).results()


def test_a_gradient_of_a_gradient_of_pieces_is_refused() -> None:
    def run() -> None:
        model = shard(nn.Linear(2, 1), 3)
        with pytest.raises(UsageError, match="create_graph=True"):
            (model(tensor(np.ones((1, 2)))) ** 2).sum().backward(create_graph=True)

    alone(run)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("take", [copy.deepcopy, pickle.dumps])
def test_a_sharded_module_is_neither_copied_nor_pickled_and_neither_are_its_parts(stage: int, take: Any) -> None:
    def run() -> None:
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        model = shard(net, stage)
        for taken in (model, net, net[1], {"model": model}):
            with pytest.raises(
                UsageError, match=r"a sharded module cannot be copied or pickled: .*model\.state_dict\(\)"
            ):
                take(taken)
        model(tensor(np.ones((1, 2)))).sum().backward()
        model.load_state_dict(pickle.loads(pickle.dumps(model.state_dict())))

    alone(run)


def test_a_sharded_module_is_not_converted() -> None:
    def run() -> None:
        model = shard(nn.Linear(2, 2), 3)
        with pytest.raises(UsageError, match=r"Convert the module before zero\.shard"):
            model.half()
        for copied in (model, model.module):
            with pytest.raises(UsageError, match=r"cannot be copied.*load model\.state_dict\(\)"):
                copy.deepcopy(copied)
        with pytest.raises(UsageError, match="assign=True"):
            model.load_state_dict(model.state_dict(), assign=True)
        with pytest.raises(UsageError, match="keep_vars"):
            model.state_dict(keep_vars=True)

    alone(run)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("where", ["forward", "backward", "hook"])
def test_after_an_exception_of_the_user_the_next_step_is_as_if_it_had_not_been(stage: int, where: str) -> None:
    net = Language(2)

    class Oops(Exception):
        pass

    def run(rank: int, fails: bool) -> dict[str, np.ndarray]:
        model = shard(copy.deepcopy(net), stage)
        optimizer = adamw(model.parameters())
        train(model, optimizer, rank, range(1))
        if fails:
            _fail(model, where, Oops, rank)
            if stage == 3 and where != "backward":  # nobody hears of a backward that dies: the next forward does
                assert not any(unit.here for unit in model.units)
        train(model, optimizer, rank, range(1, 3))
        return arrays(model.state_dict())

    for a, b in zip(run_ranks(2, run, False).results(), run_ranks(2, run, True).results(), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def _fail(model: Any, where: str, error: type[Exception], rank: int) -> None:
    """Raise in the middle of a pass, on all ranks alike."""

    def oops(*_: Any) -> None:
        raise error

    block = model.module.blocks[1]
    if where == "backward":
        out = block.up.register_forward_hook(lambda m, a, output: output.register_hook(oops) and None)
    elif where == "forward":
        out = block.up.register_forward_pre_hook(oops)
    else:
        out = block.register_forward_hook(oops)
    with pytest.raises(error):
        loss_of(model, tokens(9, rank)).backward()
    out.remove()


def test_ranks_that_shard_other_modules_are_told_which_parameter_differs() -> None:
    def run(rank: int) -> None:
        other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        other[1].bias.requires_grad_(rank == 0)
        with pytest.raises(CollectiveMismatch, match=r"1\.bias is of .* on rank 0 and of .*, frozen on rank 1"):
            shard(other)
        named = nn.ModuleDict({"ab"[rank]: nn.Linear(2, 2)})
        with pytest.raises(CollectiveMismatch, match=r"a\.weight is a\.weight .* on rank 0 and b\.weight of"):
            shard(named)

    run_ranks(2, run).results()


@pytest.mark.parametrize("stage", [2, 3])
def test_pieces_are_refused_where_whole_gradients_are_needed(stage: int) -> None:
    def run(rank: int) -> None:
        model = shard(nn.Linear(16, 16, bias=False), stage)  # two pieces of one shape: nothing else would notice
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        model(tensor(np.ones((2, 16)) * (rank + 1))).sum().backward()
        before = [piece.grad.numpy().copy() for piece in model.parameters()]
        with pytest.raises(UsageError, match=r"call clip_grad_norm_\(max_norm\) of the sharded module"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.raises(UsageError, match=r"use zero\.ShardedGradScaler"):
            GradScaler().step(optimizer)
        with pytest.raises(UsageError, match=r"weight is a piece of a parameter that zero\.shard has divided"):
            DDP(model)
        with pytest.raises(UsageError, match=r"parameter 0 is a piece .* make optim\.AdamW of model\.parameters\(\)"):
            ZeroRedundancyOptimizer(model.parameters(), optim.AdamW)
        after = [piece.grad.numpy() for piece in model.parameters()]
        assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))

    run_ranks(2, run).results()


@pytest.mark.parametrize("stage", [2, 3])
def test_what_are_no_units_are_refused_in_both_stages(stage: int) -> None:
    def run() -> None:
        with pytest.raises(UsageTypeError, match=r"units must be a function of a module, or a collection .* got 5"):
            shard(nn.Linear(2, 2), stage, units=5)  # type: ignore[arg-type]

    alone(run)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stage": 7}, "stage must be 2 or 3, got 7"),
        ({"bucket_cap_mb": 1}, "bucket_cap_mb=1 is for stage 2 only"),
        ({"buddies": "x"}, "buddies must be True or False"),
        ({"units": [3]}, "a unit must be a module"),
        ({"units": {nn.Conv2d}}, "no module inside of Linear is one of units={<class 'resilin.nn"),
        ({"module": nn.ReLU()}, "has no parameters"),
    ],
)
def test_arguments_that_one_rank_refuses_are_told_on_all_and_the_group_lives_on(given: Any, says: str) -> None:
    def run(rank: int) -> tuple[str, type]:
        arguments: Any = {"module": nn.Linear(2, 2), **(given if rank == 1 else {})}
        with pytest.raises(UsageError) as caught:
            shard(**arguments)
        shard(nn.Linear(2, 2))
        return str(caught.value), type(caught.value)

    first, own, last = run_ranks(3, run).results()
    assert says in own[0]
    for said, kind in (first, last):
        assert said.startswith("zero.shard #0, group 'test'")
        assert said.endswith(f": rank 1 refused its arguments: {own[0]}")
        assert kind is own[1]


@pytest.mark.parametrize("flag", ["find_unused_parameters", "broadcast_buffers", "buddies"])
def test_flags_that_differ_between_ranks_are_named(flag: str) -> None:
    def run(rank: int) -> None:
        given: Any = {flag: rank == 1}
        with pytest.raises(CollectiveMismatch, match=f"rank 0 .*{flag}=False.*, rank 1 .*{flag}=True"):
            shard(nn.Linear(2, 2), **given)

    run_ranks(2, run).results()


@pytest.mark.parametrize(
    ("given", "sides"),
    [
        ([{"buddies": False}, {}], ("buddies=False", "buddies=True")),
        (
            [{"stage": 2, "buddies": False}, {}],
            ("stage=2, buddies=False", "stage=3, buddies=True"),
        ),
        ([{"stage": 2}, {"stage": 2, "bucket_cap_mb": 1}], ("bucket_cap_mb=25.0", "bucket_cap_mb=1.0")),
        ([{}, {"shards": 4}], ("shards=None", "shards=4")),
        (
            [{}, {"mixed_precision": MixedPrecisionPolicy(param_dtype=resilin.bfloat16)}],
            ("mixed_precision.param_dtype=None", "mixed_precision.param_dtype=resilin.bfloat16"),
        ),
        (
            [{}, {"units": lambda module: False}],
            ("units=['0', '1']", "units=['']"),
        ),
    ],
)
def test_of_arguments_that_differ_only_those_are_shown_with_both_sides(given: Any, sides: tuple[str, str]) -> None:
    def run(rank: int) -> str:
        with pytest.raises(CollectiveMismatch) as caught:
            shard(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), **given[rank])
        return str(caught.value)

    says = f"zero.shard: rank 0 was made with {sides[0]}, rank 1 with {sides[1]}"
    assert run_ranks(2, run).results() == [says, says]


@pytest.mark.parametrize("stage", [resilin.zeros(2), np.zeros(2), [3], "3"])
def test_a_stage_that_is_no_number_is_named_on_all_ranks(stage: Any) -> None:
    def run(rank: int) -> str:
        with pytest.raises(UsageError) as caught:
            shard(nn.Linear(2, 2), stage if rank else 3)
        return str(caught.value)

    other, own = run_ranks(2, run).results()
    assert own.startswith("zero.shard: stage must be 2 or 3, got ")
    assert other.endswith(f": rank 1 refused its arguments: {own}")
