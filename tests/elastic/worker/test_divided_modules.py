"""Modules that are divided among ranks: whoever dies at whatever moment, the bits are those of one undivided module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from typing import Any

import extent
import numpy as np
import pytest
from generations import At, Change, play

import resilin
from resilin import checkpoint, nn, optim, zero
from resilin import distributed as dist
from resilin.core.autograd.checkpoint import checkpoint as recomputed
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel
from resilin.elastic.worker.state import State
from resilin.errors import StateError, UsageError

STEPS = 5
STAGES = (2, 3)
KINDS = {
    "AdamW": (optim.AdamW, {"lr": 0.05}),
    "SGD with momentum": (optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "SGD": (optim.SGD, {"lr": 0.05}),  # has no state at all
}


def coarse(grad: Tensor) -> Tensor:
    """Few enough bits that sums over two to four ranks, and means of equal ones, are exact."""
    return resilin.round(grad * 4096) / 4096


def net_of(seed: int) -> nn.Module:
    resilin.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3), nn.PReLU())
    net.register_parameter("frozen", nn.Parameter(resilin.ones(5), requires_grad=False))
    for param in net.parameters():
        if param.requires_grad:
            param.register_hook(coarse)
    return net


def make(
    seed: int, stage: int = 3, kind: str = "AdamW", snapshot: bool = False, last: bool = False, **more: bool
) -> State:
    net = net_of(seed)
    model = zero.shard(net, stage, **more) if stage else net
    cls, options = KINDS[kind]
    optimizer = cls(model.parameters(), **options)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    objects = {"optimizer": optimizer, "model": model} if last else {"model": model, "optimizer": optimizer}
    return State(snapshot=snapshot, **objects, scheduler=scheduler, sampler=ElasticSampler(8, 4, 2), seen=0)


def train(state: State, at: At, until: int = STEPS) -> None:
    if isinstance(state.model, zero.ShardedModule):  # after a recovery: nothing half gathered, or half reduced
        assert not any(unit.here or unit.coming is not None or unit.gradients for unit in state.model.units)
        assert all(piece.grad is None for piece in state.model.parameters())
    while state.step < until:
        for plan in state.sampler.steps():
            state.optimizer.zero_grad()
            x = np.random.default_rng(state.step).standard_normal((4, 6)).astype(np.float32)
            out = state.model(resilin.from_numpy(x))
            at("forward")
            out.square().mean().backward()
            at("reduced")
            state.optimizer.step()
            at("applied")
            state.scheduler.step()
            state.seen += 1
            state.commit(plan)
            at("committed")
            if state.step == until:
                return


@cache
def undisturbed(kind: str = "AdamW") -> str:
    """One worker with the module itself and the plain optimizer."""
    (one,) = play(partial(make, stage=0, kind=kind), train, 1)
    return one


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_in_every_world_the_bits_are_those_of_the_plain_module(size: int, kind: str, stage: int) -> None:
    assert set(play(partial(make, stage=stage, kind=kind), train, size)) == {undisturbed(kind)}


@pytest.mark.parametrize(
    ("site", "stage"),
    extent.short(
        product(["forward", "reduced", "applied", "committed"], STAGES),
        of=[("forward", 3), ("reduced", 2), ("applied", 3), ("committed", 2)],
    ),
)
def test_whoever_is_lost_of_whatever_world_and_whatever_comes_after(
    site: str, stage: int, turns: Callable[..., int]
) -> None:
    for size in (2, 3):
        for lost, after in list(product((0, size - 1), (size - 1, size + 1)))[:: turns(short=3, full=1)]:
            change = Change(2, site, (lost,), after)
            assert set(play(partial(make, stage=stage), train, size, [change])) == {undisturbed()}, (size, change)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", [False, True])
def test_every_kind_of_state_outlives_a_loss_in_whatever_order_it_is_registered(kind: str, last: bool) -> None:
    changes = [Change(1, "reduced", (2,), 3), Change(3, "applied", (0,), 2)]
    assert set(play(partial(make, kind=kind, last=last), train, 3, changes)) == {
        undisturbed(kind) if not last else _other_order(kind)
    }


@cache
def _other_order(kind: str) -> str:
    (one,) = play(partial(make, stage=0, kind=kind, last=True), train, 1)
    return one


@pytest.mark.parametrize("stage", STAGES)
def test_worlds_that_grow_and_shrink_at_commits_and_lose_ranks_between(stage: int) -> None:
    changes = [
        Change(1, "committed", (), 3), Change(2, "applied", (1,), 4), Change(3, "committed", (), 2),
        Change(4, "forward", (0,), 1),
    ]  # fmt: skip
    for size in (1, 2):
        assert set(play(partial(make, stage=stage), train, size, changes)) == {undisturbed()}


def counting(began: list[tuple[int, int]]) -> Callable[[State, At], None]:
    """`train`, which remembers who has begun to, in worlds of which size."""

    def trained(state: State, at: At) -> None:
        began.append((dist.get_rank(), dist.get_world_size()))
        train(state, at)

    return trained


@pytest.mark.parametrize(("size", "lost", "stage"), [(2, 1, 3), (3, 0, 3), (2, 0, 2)])
def test_a_rank_may_die_at_every_announced_moment_of_a_step(
    size: int, lost: int, stage: int, turns: Callable[..., int]
) -> None:
    """Every piece of every gathering, reduction and message, before and after each part of the step."""
    for number in count(size, turns(short={(2, 3): 23, (3, 3): 61, (2, 2): 17}[size, stage], full=5)):
        changes = [Change(STEPS - 2, f"moment {number}", (lost,), size - 1)]
        began: list[tuple[int, int]] = []
        assert set(play(partial(make, stage=stage), counting(began), size, changes)) == {undisturbed()}, changes
        if (0, size - 1) not in began:  # the rank did not die: there is no such moment
            break
    assert number > 40, "announcements of a step"


@pytest.mark.parametrize("site", ["applied", "moment 20"])
def test_another_rank_may_die_while_the_others_recover(site: str, turns: Callable[..., int]) -> None:
    """Rank 0 of four dies first; its buddy is rank 2, so rank 1 or 3 may be lost before it has new copies."""
    for second in (0, 2):  # in the world without rank 0
        for number in range(second, 1000, turns(short=31, full=5)):
            began: list[tuple[int, int]] = []
            changes = [Change(STEPS - 2, site, (0,), 3), Change(0, f"moment {number}", (second,), 2)]
            assert set(play(make, counting(began), 4, changes)) == {undisturbed()}, changes
            if (second, 3) in began:  # it had recovered
                break
        assert number > 20, "announcements of a recovery"


def test_a_snapshot_of_everything_else_goes_together_with_divided_modules() -> None:
    changes = [Change(1, "reduced", (1,), 3), Change(2, "moment 30", (0,), 2), Change(3, "applied", (1,), 2)]
    assert set(play(partial(make, snapshot=True), train, 3, changes)) == {undisturbed()}


def test_several_optimizers_of_one_module_live_on_together() -> None:
    def made(seed: int, stage: int) -> State:
        net = net_of(seed)
        model = zero.shard(net, stage) if stage else net
        params = dict(model.named_parameters())
        first = optim.AdamW([params.pop("0.weight"), params.pop("4.weight")], lr=0.05)
        second = optim.SGD(list(params.values()), lr=0.05, momentum=0.9)
        return State(model=model, optimizer=first, second=second, sampler=ElasticSampler(8, 4, 2))

    def trained(state: State, at: At) -> None:
        while state.step < STEPS:
            for plan in state.sampler.steps():
                state.model.zero_grad()
                x = np.random.default_rng(state.step).standard_normal((4, 6)).astype(np.float32)
                state.model(resilin.from_numpy(x)).square().mean().backward()
                state.optimizer.step()
                at("between")
                state.second.step()
                at("applied")
                state.commit(plan)
                if state.step == STEPS:
                    break

    (expected,) = play(partial(made, stage=0), trained, 1)
    for stage in STAGES:
        changes = [Change(1, "between", (1,), 2), Change(3, "applied", (0,), 3), Change(4, "moment 30", (2,), 2)]
        assert set(play(partial(made, stage=stage), trained, 3, changes)) == {expected}


def test_the_fingerprint_is_one_for_all_worlds() -> None:
    found: list[str] = []

    def trained(state: State, at: At) -> None:
        train(state, at)
        found.append(state.fingerprint())

    for stage, size in product(STAGES, (1, 2, 3)):
        play(partial(make, stage=stage), trained, size, [Change(2, "applied", (0,), size)] if size > 1 else [])
    assert len(found) == 2 * (1 + 2 + 3)
    assert len(set(found)) == 1


@pytest.mark.parametrize(("stage", "after"), [(3, 1), (3, 3), (2, 3), (0, 1)])
def test_a_checkpoint_of_all_ranks_goes_on_in_another_world(tmp_path: Path, stage: int, after: int) -> None:
    """Also in one worker without any stage."""

    def until_saved(state: State, at: At) -> None:
        train(state, at, until=3)
        checkpoint.save(tmp_path / "saved", {"state": state})

    def from_saved(state: State, at: At) -> None:
        if state.step == 0:
            checkpoint.load(tmp_path / "saved", {"state": state})
        assert state.step >= 3
        at("loaded")
        train(state, at)

    play(partial(make, stage=stage or 3), until_saved, 2)
    changes = [Change(3, "loaded", (1,), 2)] if after > 1 else []
    assert set(play(partial(make, stage=stage), from_saved, after, changes)) == {undisturbed()}


@pytest.mark.parametrize("left_out", ["model", "optimizer"])
def test_a_module_and_its_optimizer_are_registered_together(left_out: str) -> None:
    def made(seed: int) -> State:
        model = zero.shard(net_of(seed))
        optimizer = optim.AdamW(model.parameters())
        both = {"model": model, "optimizer": optimizer}
        kept.append(both.pop(left_out))
        return State(sampler=ElasticSampler(8, 4, 2), **both)

    def trained(state: State, at: At) -> None:
        optimizer = getattr(state, "optimizer", None) or kept[0]
        for piece in (piece for group in optimizer.param_groups for piece in group["params"]):
            piece.grad = resilin.ones_like(piece)
        optimizer.step()

    kept: list[object] = []
    lacks = {"model": "the module", "optimizer": "the optimizer of its pieces"}[left_out]
    with pytest.raises(UsageError, match=rf"inside elastic\.run the .* is registered and {lacks} is not"):
        play(made, trained, 1)


def test_a_module_of_a_group_of_its_own_is_refused() -> None:
    def made(seed: int) -> State:
        state = make(seed)
        state.model._movable = False  # as with process_group=
        return state

    with pytest.raises(UsageError, match=r"made with process_group=\.\.\., but elastic\.run makes a new group"):
        play(made, train, 2)


def test_within_elastic_nobody_else_reshards() -> None:
    def trained(state: State, at: At) -> None:
        state.model.reshard(dist.default_group())

    with pytest.raises(UsageError, match=r"inside elastic\.run a registered module is divided anew"):
        play(make, trained, 2)


def test_ranks_that_divide_other_modules_are_named() -> None:
    def made(seed: int) -> State:
        state = make(seed)
        if seed:
            model = zero.shard(nn.Sequential(nn.Linear(6, 3)))
            return State(model=model, optimizer=optim.AdamW(model.parameters()), scheduler=state.scheduler, seen=0)
        return State(model=state.model, optimizer=state.optimizer, scheduler=state.scheduler, seen=0)

    with pytest.raises(StateError, match="model: rank 1 divides other parameters than rank 0"):
        play(made, train, 2)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_is_kept_twice_is_as_much_as_documented(size: int) -> None:
    seen: dict[str, list[int]] = {"between": [], "within": [], "pieces": []}

    def trained(state: State, at: At) -> None:
        kept = lambda: sum(each.reconfigurable.stats().get("kept_bytes", 0) for each in parts)  # noqa: E731
        parts = [part.saved for part in state._parts.values() if hasattr(part.saved, "reconfigurable")]
        train(state, lambda site: seen["within"].append(kept()) if site == "applied" else None, until=3)
        seen["between"].append(kept())
        seen["pieces"].append(sum(piece.numel() * 4 for piece in state.model.parameters() if piece.requires_grad))

    play(make, trained, size)
    values, frozen = sum(seen["pieces"]), 5 * 4
    copy = 3 * values + frozen if size > 1 else 0  # values and AdamW's two averages
    assert sum(seen["between"]) == copy
    assert sum(seen["within"][-size:]) == 3 * copy, "in the last step: the version before, and two of the other's"


def test_parameters_that_are_written_while_they_are_gathered_have_a_second_copy_too() -> None:
    def trained(state: State, at: At) -> None:
        while state.step < STEPS:
            state.optimizer.zero_grad()
            train(state, at, until=state.step + 1)
            whole = state.model.gathered() if isinstance(state.model, zero.ShardedModule) else nullcontext(state.model)
            with whole as net, resilin.no_grad():
                net.get_submodule("0").weight.mul_(0.5)
            at("written")
            state.commit()

    for site in ("forward", "written"):
        (expected,) = play(partial(make, stage=0), trained, 1)
        assert set(play(make, trained, 3, [Change(3, site, (1,), 2)])) == {expected}


def test_a_load_that_is_interrupted_by_a_loss_is_never_taken_for_a_commit() -> None:
    """One of the two survivors has neither its own pieces of that commit nor a buddy that has them."""

    def trained(state: State, at: At) -> None:
        train(state, at, until=3)
        with resilin.no_grad():
            for piece in state.model.parameters():
                piece.fill_(7.0)  # as a load fills pieces in place, in its course
        at("loading")
        dist.barrier()

    with pytest.raises(StateError, match=r"ranks \[1\] of the world of 3 went while a state was being loaded"):
        play(make, trained, 3, [Change(3, "loading", (1,), 2)])


def test_pieces_that_somebody_else_writes_are_refused_at_the_commit() -> None:
    def trained(state: State, at: At) -> None:
        with resilin.no_grad():
            next(state.model.parameters()).mul_(2)
        state.commit()

    def before_the_step(state: State, at: At) -> None:
        with resilin.no_grad():
            next(state.model.parameters()).mul_(2)
        state.optimizer.step()

    for loop in (trained, before_the_step):
        with pytest.raises(UsageError, match=r"pieces of parameters were written by.*with model\.gathered\(\)"):
            play(make, loop, 2)
    play(partial(make, buddies=False), trained, 2)  # then nobody has another copy


class Tied(nn.Module):
    """An embedding whose weight is the head's, too; layers that are computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 12)
        self.blocks = nn.ModuleList([nn.Linear(12, 12) for _ in range(2)])
        self.norm = nn.LayerNorm(12)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = x + recomputed(block, x, use_reentrant=False).tanh()
        return nn.functional.linear(self.norm(x), self.embed.weight)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "on the CPU": {"cpu_offload": True},
    "mixed": {"mixed_precision": zero.MixedPrecisionPolicy(param_dtype=resilin.bfloat16, reduce_dtype=resilin.float32)},
}


@pytest.mark.parametrize(("stage", "how"), [(2, "plain"), (3, "plain"), (3, "on the CPU"), (3, "mixed"), (2, "mixed")])
def test_a_history_of_worlds_has_the_bits_of_ddp_in_the_same_worlds(stage: int, how: str) -> None:
    """Every rank has data of its own; mixed precision is compared with itself where nobody is lost."""

    def made(seed: int, stage: int) -> State:
        resilin.manual_seed(seed)
        net = Tied()
        model = zero.shard(net, stage, **OPTIONS[how]) if stage else net
        return State(model=model, optimizer=optim.AdamW(model.parameters(), 0.05), sampler=ElasticSampler(8, 4, 4))

    def trained(state: State, at: At) -> None:
        model = state.model if isinstance(state.model, zero.ShardedModule) else DistributedDataParallel(state.model)
        while state.step < STEPS:
            for plan in state.sampler.steps():
                state.optimizer.zero_grad()
                words = np.random.default_rng([state.step, dist.get_rank()]).integers(0, 7, (2, 5))
                out = model(Tensor._wrap(words))
                at("forward")
                nn.functional.cross_entropy(out.reshape(-1, 7), Tensor._wrap(words.reshape(-1))).backward()
                at("reduced")
                state.optimizer.step()
                at("applied")
                state.commit(plan)
                at("committed")
                if state.step == STEPS:
                    break

    # before the first collective of a step: so all survivors redo it, with any strategy
    losses = [Change(1, "forward", (2,), 2), Change(2, "forward", (0,), 3), Change(4, "forward", (1,), 2)]
    if how == "mixed":  # the same worlds, in which nobody is lost
        undisturbed = [Change(change.step, "committed", (), change.size) for change in losses]
        expected = play(partial(made, stage=stage), trained, 3, undisturbed)
    else:
        expected = play(partial(made, stage=0), trained, 3, losses)
    assert set(play(partial(made, stage=stage), trained, 3, losses)) == set(expected)


# ---------------------------------------------------------------------- without buddies


@pytest.mark.parametrize("stage", STAGES)
def test_without_buddies_nothing_is_kept_or_sent_and_worlds_that_lose_nobody_go_on(stage: int) -> None:
    changes = [Change(1, "committed", (), 3), Change(3, "committed", (), 4)]
    stats: list[dict[str, object]] = []

    def trained(state: State, at: At) -> None:
        train(state, at)
        stats.append(state.model.stats())

    assert set(play(partial(make, stage=stage, buddies=False), trained, 2, changes)) == {undisturbed()}
    assert not any("buddy" in each or "kept_bytes" in each for each in stats)


@pytest.mark.parametrize("site", ["forward", "applied", "committed"])
def test_without_buddies_a_loss_names_the_setting_and_what_recovers(site: str) -> None:
    with pytest.raises(StateError) as raised:
        play(partial(make, buddies=False), train, 3, [Change(2, site, (1,), 3)])
    assert "ranks [1] of the world of 3 went, and with them the only copy of what they held" in str(raised.value)
    assert "buddies=False" in str(raised.value)
    assert "Load the last checkpoint" in str(raised.value)
