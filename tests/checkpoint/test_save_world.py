"""Several ranks: any number of them loads what any number has saved, and what differs between them is an error."""

import extent
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trained_states import digest

import resilin
from resilin import checkpoint, nn, optim
from resilin.checkpoint import Sliced
from resilin.core.tensor import wrap
from resilin.errors import CheckpointError, CheckpointMismatch, CollectiveMismatch, PeerLost, UsageError
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import run_ranks

WORLD = 4


def cut(numel, cuts, world_size, rank):
    """This rank's range of a row, for cuts given as fractions."""
    ends = [0, *sorted(int(numel * fraction) for fraction in cuts[: world_size - 1]), numel]
    return ends[rank], ends[rank + 1]


def sliced(whole, cuts, world_size, rank, empty=False):
    start, stop = cut(whole.numel(), cuts, world_size, rank)
    held = whole.reshape(-1)[start:stop].clone()
    return Sliced(whole.shape, whole.dtype, start, held.zero_() if empty else held)


shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
fractions = st.lists(st.floats(0, 1), min_size=WORLD, max_size=WORLD)


@pytest.mark.slow
@settings(max_examples=extent.examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(shapes, st.sampled_from(["float32", "int16", "bfloat16"])), min_size=1, max_size=5),
       st.lists(st.booleans(), min_size=5, max_size=5), fractions, st.integers(0, 1 << 30))  # fmt: skip
def test_what_four_ranks_save_any_number_loads_with_equal_hashes(tmp_path, kinds, divided, cuts, seed):
    rng = np.random.default_rng(seed)
    whole = {
        f"t{number}": resilin.tensor(rng.integers(0, 100, shape)).to(getattr(resilin, dtype))
        for number, (shape, dtype) in enumerate(kinds)
    }
    whole["big"] = wrap(rng.standard_normal(50_000).astype(np.float32))
    parts = {name for name, flag in zip(whole, divided, strict=False) if flag} | {"big"}
    path = tmp_path / str(seed)

    def save(rank):
        state = {k: sliced(v, cuts, WORLD, rank) if k in parts else v for k, v in whole.items()}
        checkpoint.save(path, {"tensors": state, "n": 1})

    run_ranks(WORLD, save).results()
    expected = digest({"tensors": whole, "n": 1})
    for world_size in (1, 2, 3, 5):

        def load(rank, world_size=world_size):
            tree = checkpoint.load(path)
            state = {
                k: sliced(v, [0.3, 0.31, 0.9, 0.95], world_size, rank, empty=True)
                if k in parts
                else resilin.zeros_like(v)
                for k, v in whole.items()
            }
            checkpoint.load(path, {"tensors": state, "n": 0})
            for name, value in state.items():
                if name in parts:
                    original = whole[name].reshape(-1)[value.start : value.stop]
                    assert bool((value.tensor == original).all()), name
                else:
                    assert bool((value == whole[name]).all()), name
            return digest(tree)

        assert run_ranks(world_size, load).results() == [expected] * world_size
    assert digest(checkpoint.load(path)) == expected
    assert checkpoint.verify(path) == []


def models(seed):
    resilin.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 30))
    optimizer = optim.AdamW(model.parameters())
    return {"model": model, "optimizer": optimizer, "epoch": seed}


def test_modules_and_optimizers_move_between_worlds(tmp_path):
    state = models(3)
    state["model"](resilin.randn(4, 40)).sum().backward()
    state["optimizer"].step()
    expected = digest({"m": state["model"].state_dict(), "o": state["optimizer"].state_dict()})
    run_ranks(3, lambda rank: checkpoint.save(tmp_path, state, step=1)).results()

    def load(rank):
        fresh = models(10 + rank)
        checkpoint.load(tmp_path, fresh)
        return fresh["epoch"], digest({"m": fresh["model"].state_dict(), "o": fresh["optimizer"].state_dict()})

    assert run_ranks(2, load).results() == [(3, expected)] * 2


@pytest.mark.parametrize("transport", ["tcp", "hosts"])
def test_ranks_on_other_transports_load_the_same(tmp_path, transport):
    state = {"big": resilin.randn(1 << 19), "turned": resilin.randn(60, 70).t(), "small": resilin.ones(3)}
    checkpoint.save(tmp_path, state)
    loaded = run_ranks(3, lambda rank: digest(checkpoint.load(tmp_path)), transport=transport).results()
    assert loaded == [digest(state)] * 3


def test_each_rank_writes_its_share(tmp_path):
    state = {"a": resilin.randn(1 << 9, 1 << 9), "b": resilin.randn(1 << 9, 1 << 8)}
    run_ranks(3, lambda rank: checkpoint.save(tmp_path, state)).results()
    sizes = [file.stat().st_size for file in sorted(tmp_path.glob("data-*"))]
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) < 150_000


def test_buffers_that_differ_between_ranks_are_all_rank_0s(tmp_path):
    """As after a forward of plain DDP: PyTorch's users keep rank 0's, whatever the number of channels."""

    def save(rank):
        resilin.manual_seed(0)
        module = nn.BatchNorm1d(150_000)
        module(resilin.full((2, 150_000), float(rank)) + resilin.rand(2, 150_000))
        checkpoint.save(tmp_path, {"module": module})
        return digest(module.state_dict())

    expected = run_ranks(4, save).results()
    assert len(set(expected)) == 4
    assert digest(checkpoint.load(tmp_path)["module"]) == expected[0]


@pytest.mark.parametrize("call", ["save", "save_async"])
def test_tensors_that_should_be_equal_are_compared_and_named(tmp_path, call):
    def save(rank, differ=True):
        state = {
            "same": resilin.ones(3), "mine": resilin.full((4,), float(differ and rank == 2)),
            "large": resilin.full((300, 300), float(differ and rank > 0)),
            "n": Sliced((3,), resilin.int64, rank, resilin.tensor([rank])),
        }  # fmt: skip
        getattr(checkpoint, call)(tmp_path / "c", state, compare=True)

    refused(
        save, CollectiveMismatch, world_size=3, match=["differ from rank 0's: mine (on rank 2), large (on rank 1, 2)."]
    )
    assert not (tmp_path / "c").exists()
    run_ranks(3, lambda rank: save(rank, differ=False)).results()
    refused(
        lambda rank: checkpoint.save(tmp_path, {}, compare=bool(rank)), CollectiveMismatch, match="the same compare"
    )


def refused(fn, kind, *, world_size=2, match=""):
    outcome = run_ranks(world_size, fn, abort=False)
    assert sorted(outcome.errors) == list(range(world_size))
    assert all(isinstance(error, kind) for error in outcome.errors.values()), outcome.errors
    for error in outcome.errors.values():
        for text in match if isinstance(match, list) else [match]:
            assert text in str(error)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda rank: {"a": 1, "b": 1} if rank else {"a": 1}, ["state", "['b'] on rank 1 only"]),
        (lambda rank: {"a": resilin.zeros(3 + rank)}, ['[\'a\'] is "float32[3]', "float32[4]"]),
        (lambda rank: {"a": resilin.zeros(3), "lr": 0.5 + rank}, ["['lr'] is 0.5 on rank 0 and 1.5 on rank 1"]),
        (lambda rank: {"a": sliced(resilin.zeros(8), [0.5], 2, 1) if rank else resilin.zeros(8)}, ['divided" on rank']),
    ],
)  # fmt: skip
def test_other_trees_are_refused_on_all_ranks_with_both_sides(tmp_path, make, match):
    refused(lambda rank: checkpoint.save(tmp_path / "c", make(rank)), CollectiveMismatch, match=match)
    assert not (tmp_path / "c").exists()


def test_other_paths_and_steps_are_refused_on_all_ranks(tmp_path):
    refused(lambda rank: checkpoint.save(tmp_path / str(rank), {}), CollectiveMismatch, match=["/0", "/1"])
    refused(lambda rank: checkpoint.save(tmp_path, {}, step=rank), CollectiveMismatch, match="step")
    checkpoint.save(tmp_path, {}, step=0)
    refused(lambda rank: checkpoint.load(tmp_path, step=rank or None), CollectiveMismatch, match="step")
    refused(lambda rank: checkpoint.load(tmp_path, strict=bool(rank)), CollectiveMismatch, match="strict")


def test_a_state_on_one_rank_and_none_on_another_is_refused_on_all(tmp_path):
    checkpoint.save(tmp_path, {"a": resilin.zeros(4)})
    refused(
        lambda rank: checkpoint.load(tmp_path, None if rank else {"a": resilin.ones(4)}),
        CollectiveMismatch,
        match=["the same state; ", '"given" on rank 0 and "None" on rank 1'],
    )


def test_one_ranks_mistake_is_told_to_all(tmp_path):
    refused(
        lambda rank: checkpoint.save(tmp_path, {"a": object()} if rank else {"a": 1}),
        UsageError,
        match="['a'] is a obj",
    )
    checkpoint.save(tmp_path, {"a": resilin.zeros(2)})
    target = [{"a": resilin.zeros(2)}, {"a": resilin.zeros(3)}]
    refused(lambda rank: checkpoint.load(tmp_path, target[rank]), CheckpointMismatch, match="float32[3] here")


def test_elements_that_no_rank_holds_are_named_on_all(tmp_path):
    def save(rank):
        held = Sliced((10,), resilin.float32, 5 * rank, resilin.zeros(4))
        checkpoint.save(tmp_path, {"w": held})

    refused(save, UsageError, match="elements [4, 5) of 'w'")


@pytest.mark.parametrize(("call", "at"), [("save", 0), ("save", 3), ("load", 1), ("load", 5)])
def test_a_rank_that_dies_ends_the_others(tmp_path, call, at):
    state = {"a": resilin.randn(512, 512), "b": resilin.ones(3)}
    checkpoint.save(tmp_path, state, step=1)
    faults = FaultPlan().kill(rank=1, at="all_gather", call=at)

    def work(rank):
        if call == "save":
            checkpoint.save(tmp_path, state, step=2)
        else:
            checkpoint.load(tmp_path, {key: resilin.zeros_like(value) for key, value in state.items()})

    outcome = run_ranks(3, work, faults=faults, timeout_s=10)
    assert faults.all_fired()
    assert sorted(outcome.errors) == [0, 2]
    assert all(isinstance(error, PeerLost) for error in outcome.errors.values())
    assert digest(checkpoint.load(tmp_path, step=1)) == digest(state)


def test_a_rank_whose_writing_fails_is_named_by_all(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, {"a": resilin.ones(4)}, step=1)
    (tmp_path / "step-2").write_text("a file where a folder should be")
    refused(lambda rank: checkpoint.save(tmp_path, {"a": resilin.zeros(4)}, step=2), CheckpointError, match="step-2")
    assert checkpoint.latest(tmp_path) == str(tmp_path / "step-1")


def test_only_members_of_a_group_save_with_it(tmp_path):
    def work(rank):
        group = resilin.distributed.new_group([0, 2])
        if rank == 1:
            with pytest.raises(UsageError, match="no member"):
                checkpoint.save(tmp_path, {}, group=group)
            return None
        return checkpoint.save(tmp_path, {"a": resilin.ones(2)}, group=group)

    run_ranks(3, work).results()
    assert checkpoint.load(tmp_path)["a"].tolist() == [1, 1]


def test_buckets_hold_checkpoints_as_folders_do():
    state = {"a": resilin.randn(256, 512), "n": 1}
    root = "memory://buckets-hold-checkpoints/run"

    def work(rank):
        for step in range(3):
            checkpoint.save(root, {**state, "n": step}, step=step, keep_last=2)
        checkpoint.save_async(root, {**state, "n": 3}, step=3, keep_last=2).wait()
        return digest(checkpoint.load(root))

    assert run_ranks(2, work).results() == [digest({**state, "n": 3})] * 2
    assert [one.step for one in checkpoint.list_checkpoints(root)] == [2, 3]
    assert checkpoint.latest(root) == f"{root}/step-3"
    assert checkpoint.verify(root) == []
