"""State: commit, rollback, and what counts as intact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import distributed as dist
from resilin import nn, optim
from resilin.core import rng
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.elastic import ledger
from resilin.elastic.ledger import Entry, Ledger
from resilin.elastic.worker import sync, transfer, trees
from resilin.elastic.worker.digests import digest
from resilin.elastic.worker.state import State
from resilin.elastic.worker.sync import Report, choose
from resilin.errors import PeerLost, StateError, UsageError
from resilin.testing.ranks import run_ranks


def make(**more: Any) -> State:
    resilin.manual_seed(0)  # the random state is the thread's, shared by all states of a test
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2)
    sampler = ElasticSampler(20, 4, 2)
    return State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, best=0.0, **more)


def half_step(state: State, seed: int = 0) -> None:
    """Everything of a step before optimizer.step()."""
    x = Tensor._wrap(np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32))
    state.optimizer.zero_grad()
    (state.model(x) ** 2).mean().backward()


def step(state: State, seed: int = 0) -> None:
    half_step(state, seed)
    state.optimizer.step()
    state.scheduler.step()
    state.best += 1.5
    state.commit(next(state.sampler.steps()))


def contents(state: State) -> bytes:
    """Everything that a rollback must bring back."""
    left_out = ("rng", "generation")
    tree, tensors = trees.split({name: value for name, value in state.state_dict().items() if name not in left_out})
    return digest([tree, [tensor._array for tensor in tensors]])


def test_a_rollback_brings_back_everything_that_a_half_step_changed() -> None:
    state = make()
    for seed in range(3):
        step(state, seed)
    before = contents(state)
    half_step(state, seed=9)
    state.best = 99.0
    state.extra = "new"
    state.scheduler.step()
    assert contents(state) != before
    assert state._roll_back()
    assert state._intact()
    assert contents(state) == before
    assert (state.step, state.sampler.step, state.best) == (3, 3, 4.5)
    with pytest.raises(AttributeError, match="no 'extra'"):
        _ = state.extra


def test_a_rank_interrupted_after_optimizer_step_is_not_intact() -> None:
    state = make()
    step(state)
    half_step(state)
    assert state._intact()
    state.optimizer.step()
    assert not state._intact()
    assert not state._roll_back()


def test_the_first_optimizer_step_counts_too_although_the_state_had_no_tensors_yet() -> None:
    state = make()
    state._joined(0, 1)
    half_step(state)
    state.optimizer.step()
    assert not state._intact()


def test_with_snapshots_every_rank_is_intact_after_a_rollback() -> None:
    state = make(snapshot=True)
    for seed in range(2):
        step(state, seed)
    before = contents(state)
    half_step(state, seed=3)
    state.optimizer.step()
    assert state._roll_back()
    assert state._intact()
    assert contents(state) == before
    step(state, seed=4)
    straight = make()
    for seed in (0, 1, 4):
        step(straight, seed)
    assert contents(state) == contents(straight)


WRITES = {
    "data": lambda p: p.data.add_(1),
    "a view of data": lambda p: p.data.reshape(-1)[1:].fill_(7),
    "detach": lambda p: p.detach().mul_(2),
    "an older alias": lambda p, alias=[]: alias[0].add_(1) if alias else alias.append(p.data),
    "assignment of data": lambda p: setattr(p, "data", p.data + 1),
    "a vector": lambda p: nn.utils.vector_to_parameters(resilin.ones(p.numel()), [p]),
    "no_grad": resilin.no_grad()(lambda p: p.add_(1)),
}


@pytest.mark.parametrize("way", WRITES)
def test_a_parameter_written_past_autograd_is_not_intact(way: str) -> None:
    state = make()
    weight = next(state.model.parameters())
    if way == "an older alias":
        WRITES[way](weight)  # takes the alias; the next call writes through it
    step(state)
    version = weight._version
    _ = weight.data.sum(), weight.detach().numpy()
    assert state._intact(), "reading is not writing"
    WRITES[way](weight)
    assert not state._intact()
    assert weight._version == version or way in ("detach", "no_grad"), "backward need not know"


def test_writes_to_memory_that_a_parameter_was_given_are_noticed() -> None:
    first, second = resilin.ones(3), resilin.ones(3)
    module = nn.Linear(3, 1)
    module.bias = nn.Parameter(first)
    module.weight.data = second.reshape(1, 3)
    state = State(model=module)
    for memory in (first, second):
        state.commit()
        assert state._intact()
        memory.add_(1)
        assert not state._intact()


def test_snapshots_bring_back_what_was_written_through_a_numpy_array() -> None:
    state = make(snapshot=True)
    step(state)
    before = contents(state)
    for param in state.model.parameters():
        param.detach().numpy()[...] = 5
    assert state._roll_back()
    assert contents(state) == before


@pytest.mark.parametrize("write", [lambda b: b.data.add_(1), lambda b: b.numpy().__iadd__(1), lambda b: b.add_(1)])
def test_a_commit_holds_buffers_however_they_were_written(write: Any) -> None:
    state = make()
    buffer = state.model.get_submodule("1").running_mean
    step(state)
    write(buffer)
    state.commit()
    committed = buffer.tolist()
    write(buffer)
    assert state._roll_back()
    assert buffer.tolist() == committed


def test_a_rollback_can_be_repeated_and_leaves_the_commit_untouched() -> None:
    state = make(history={"losses": [1, 2]})
    step(state)
    before = contents(state)
    for _ in range(2):
        state.history["losses"].append(3)
        half_step(state)
        state._roll_back()
        assert contents(state) == before


def test_a_checkpoint_of_the_state_goes_on_with_the_same_bits() -> None:
    straight, saved, loaded = make(), make(), make()
    for seed in range(2):
        step(straight, seed)
        step(saved, seed)
    loaded.load_state_dict(saved.state_dict())
    step(straight, 5)
    step(loaded, 5)
    assert contents(straight) == contents(loaded)
    with pytest.raises(UsageError, match="expected the objects"):
        State(other=optim.SGD([Tensor._wrap(np.ones(1), requires_grad=True)], lr=1)).load_state_dict(saved.state_dict())


def test_a_checkpoint_on_disk_is_taken_over(tmp_path: Path) -> None:
    state, other = make(), make()
    step(state)
    resilin.save(state.state_dict(), tmp_path / "checkpoint")
    other.load_state_dict(resilin.load(tmp_path / "checkpoint"))
    assert other.fingerprint() == state.fingerprint()


def test_plain_values_are_attributes_and_registered_objects_cannot_be_replaced() -> None:
    state = make()
    state.best = 3
    assert state.best == 3
    with pytest.raises(UsageError, match="'model' is a registered object"):
        state.model = None
    with pytest.raises(UsageError, match="'step' is a name of State itself"):
        state.step = 3
    with pytest.raises(UsageError, match="'commit' is a name of State itself"):
        State(commit=3)
    with pytest.raises(AttributeError, match="State has no 'absent'; registered: model, optimizer"):
        _ = state.absent


def test_commit_with_a_plan_needs_one_sampler() -> None:
    plan = next(ElasticSampler(4, 2, 1).steps())
    with pytest.raises(UsageError, match="expected one registered ElasticSampler to move, found 0"):
        State(best=0).commit(plan)


def test_the_largest_world_is_what_the_sampler_has_shards_for() -> None:
    assert State(best=0.0)._largest_world() == 0
    assert State(sampler=ElasticSampler(32, 8, 4))._largest_world() == 4


def test_every_commit_of_a_plan_is_in_the_ledger(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    state, book = make(), Ledger(path)
    state._use_ledger(book)
    for seed in range(5):
        step(state, seed)
    state.commit()  # nothing consumed
    book.close()
    assert ledger.read(path)[1] == Entry(0, 1, 4, 4, 1, 0, after=1, samples=20, length=20, seed=0)
    assert ledger.verify(ledger.read(path), 20).ok


def test_states_with_one_history_have_one_fingerprint_and_anything_else_changes_it() -> None:
    one, other = make(), make()
    assert one.fingerprint() == other.fingerprint()
    for seed in range(2):
        step(one, seed)
        step(other, seed)
    resilin.randn(3)  # the random state is left out
    before = one.fingerprint()
    assert before == other.fingerprint()
    assert len(bytes.fromhex(before)) == 32
    changes = (
        lambda: one.model[0].weight.data.add_(1e-7),
        lambda: one.model[1].running_mean.add_(1.0),
        lambda: one.optimizer.state_dict()["state"][0]["exp_avg"].add_(1.0),
        lambda: one.optimizer.param_groups[0].update(lr=0.2),
        lambda: one.scheduler.step(),
        lambda: one.sampler.advance(next(one.sampler.steps())),
        lambda: setattr(one, "best", 99.0),
    )
    seen = {before}
    for change in changes:
        change()
        seen.add(one.fingerprint())
    assert len(seen) == 1 + len(changes)


def test_a_job_that_goes_on_from_a_checkpoint_counts_generations_on_in_the_ledger(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    first, second = make(), make()
    step(first)
    second.load_state_dict(first.state_dict())
    book = Ledger(path)
    second._use_ledger(book)
    step(second)
    book.close()
    assert [(entry.step, entry.generation) for entry in ledger.read(path)] == [(1, 2)]
    assert second.state_dict()["generation"] == 2


def test_accumulated_steps_are_committed_together(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    state, book = make(), Ledger(path)
    state._use_ledger(book)
    first, second, third, *_ = state.sampler.steps()
    with pytest.raises(UsageError, match="the next step is"):
        make().commit(second)
    state.commit(first, second)
    state.commit(third)
    book.close()
    assert (state.step, state.sampler.step) == (2, 3)
    assert [entry.step for entry in ledger.read(path)] == [0, 1, 2]


def test_the_random_state_goes_back_too() -> None:
    state = make()
    step(state)
    drawn = resilin.rand(3).numpy().copy()
    state._roll_back()
    assert np.array_equal(resilin.rand(3).numpy(), drawn)
    assert rng.get_rng_state() is not None


# ---------------------------------------------------------------------------------------- who is right


def report(
    step: int = 5, settled: bool = True, intact: bool = True, digest: bytes = b"d", generation: int = 2
) -> Report:
    return Report(settled=settled, step=step, intact=intact, digests={"all": digest}, generation=generation)


def test_survivors_at_the_same_step_transfer_nothing() -> None:
    choice = choose([report(), report(), report()])
    assert (choice.sources, choice.receivers, choice.agreed) == ((0, 1, 2), (), True)


def test_those_behind_and_newcomers_receive_from_all_at_the_highest_step() -> None:
    choice = choose([report(4), report(5), report(0, settled=False), report(5)])
    assert (choice.sources, choice.receivers) == ((1, 3), (0, 2))


def test_a_dirty_rank_is_never_a_source() -> None:
    assert choose([report(intact=False), report()]).sources == (1,)


def test_a_step_that_the_others_redid_is_taken_from_them() -> None:
    choice = choose([report(generation=2), report(generation=4), report(generation=4)])
    assert (choice.sources, choice.receivers) == ((1, 2), (0,))


def test_a_newcomer_with_a_higher_step_does_not_win_over_survivors() -> None:
    assert choose([report(9, settled=False), report(5)]).sources == (1,)


def test_at_the_start_the_lowest_rank_at_the_highest_step_is_the_only_source() -> None:
    assert choose([report(0, settled=False)] * 3).sources == (0,)
    assert choose([report(0, settled=False), report(7, settled=False), report(7, settled=False)]).sources == (1,)


def test_sources_whose_small_parts_differ_do_not_agree() -> None:
    choice = choose([report(), report(digest=b"e")])
    assert (choice.receivers, choice.agreed) == ((), False)


def test_when_nobody_is_intact_the_error_says_what_to_do() -> None:
    with pytest.raises(StateError, match=r"step 5 any more.*right after optimizer.step.*snapshot=True"):
        choose([report(intact=False), report(4), report(intact=False)])


# ---------------------------------------------------------------------------------------- transfer between states


def test_a_newcomer_becomes_equal_to_its_sources_with_every_part_and_bit() -> None:
    states = [make(), make(), make()]
    for state in states[:2]:
        for seed in range(3):
            step(state, seed)
        state.__dict__["_settled"] = True
    for param in states[2].model.parameters():
        param._array += 1
    states[1].scheduler.gamma = 0.5  # a stale learning rate rule: replaced by rank 0's

    def join(rank: int) -> int:
        if rank == 1:
            states[1]._capture()
        return sync.make_equal(states[rank], dist.default_group(), rank, 3)

    moved = run_ranks(3, join).results()
    expected = contents(states[0])
    assert [contents(state) == expected for state in states] == [True] * 3
    assert states[1].scheduler.gamma == 0.1
    assert moved[2] == moved[0] + moved[1] > 0
    assert states[2].sampler.plan(2, 3, epoch=0, position=0, step=0).shards[0].number == 1
    assert next(states[2].sampler.steps()).shards[0].number == 1
    for state in states:
        step(state, seed=8)
    assert contents(states[2]) == contents(states[0])


def test_a_source_that_dies_in_the_middle_of_a_transfer_leaves_the_receiver_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead, behind = make(), make()
    for seed in range(3):
        step(ahead, seed)
    step(behind, 0)
    before = contents(behind)
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 64)
    real = transfer.unseal
    received = []

    def dies_later(*args: Any) -> None:
        real(*args)
        received.append(args)
        if len(received) == 5:
            raise PeerLost("the source died", [0])

    monkeypatch.setattr(transfer, "unseal", dies_later)
    states = [ahead, behind]
    for state in states:
        state.__dict__["_settled"] = True
    outcome = run_ranks(2, lambda rank: sync.make_equal(states[rank], dist.default_group(), rank, 2))
    assert isinstance(outcome.errors[1], PeerLost)
    assert len(received) == 5
    assert behind._roll_back()
    assert behind._intact()
    assert contents(behind) == before


def test_a_newcomer_with_another_model_is_refused_with_both_shapes() -> None:
    source, other = State(model=nn.Linear(4, 3)), State(model=nn.Linear(4, 2))
    with pytest.raises(
        StateError, match=r"parameter 'weight' is weight \(2, 4\) float32 here and weight \(3, 4\) float32"
    ):
        other._accept(source._layout())
    with pytest.raises(StateError, match=r"the source registers the objects \['model'\], this rank \['net'\]"):
        State(net=nn.Linear(4, 3))._accept(source._layout())
