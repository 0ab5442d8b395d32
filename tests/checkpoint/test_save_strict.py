"""Plain values whose keys, lengths or kinds differ from the checkpoint's: strict names them, else both's are loaded."""

import collections
import random

import numpy as np
import pytest

import resilin
from resilin import checkpoint, nn, optim
from resilin.data import ElasticSampler
from resilin.errors import CheckpointError, CheckpointMismatch, UsageTypeError
from resilin.testing.ranks import run_ranks

SAVED = {"config": {"lr": 1, "deep": {"a": 1, "b": 2}}, "epoch": 7, "steps": [1, 2, 3], "betas": (1, 2)}


@pytest.fixture
def path(tmp_path):
    checkpoint.save(tmp_path, SAVED)
    return tmp_path


def like(**changed):
    return {"config": {"lr": 0, "deep": {"a": 0, "b": 0}}, "epoch": 0, "steps": [0, 0, 0], "betas": (0, 0)} | changed


def copied(value):
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return list(value) if isinstance(value, list) else value


NAMED = [
    ({"epoch": 0}, [], ["config", "steps", "betas"], {"epoch": 7}),
    (
        {"typo": 0, "config": {"lr": 0}},
        ["typo"], ["epoch", "steps", "betas", "config/deep"], {"typo": 0, "config": {"lr": 1}},
    ),
    (like(typo=0), ["typo"], [], {**SAVED, "typo": 0}),
    (
        like(config={"lr": 0, "new": True, "deep": {"a": 0, "c": 3}}),
        ["config/new", "config/deep/c"], ["config/deep/b"],
        SAVED | {"config": {"lr": 1, "new": True, "deep": {"a": 1, "c": 3}}},
    ),
    (like(steps=[0]), [], ["steps/1", "steps/2"], SAVED | {"steps": [1]}),
    (like(steps=[0] * 5), ["steps/3", "steps/4"], [], SAVED | {"steps": [1, 2, 3, 0, 0]}),
]  # fmt: skip


@pytest.mark.parametrize(("state", "missing", "unexpected", "loaded"), NAMED)
def test_plain_states_of_other_keys_and_lengths_are_named_at_every_level(path, state, missing, unexpected, loaded):
    state, before = copied(state), copied(state)
    with pytest.raises(CheckpointMismatch, match=r"strict=False loads what fits\. Nothing was changed") as told:
        checkpoint.load(path, state)
    assert (sorted(told.value.missing), sorted(told.value.unexpected)) == (sorted(missing), sorted(unexpected))
    assert state == before
    done = checkpoint.load(path, state, strict=False)
    assert (sorted(done.missing_keys), sorted(done.unexpected_keys)) == (sorted(missing), sorted(unexpected))
    assert state == loaded


def test_the_same_keys_and_lengths_are_filled_in_place(path):
    state = like(betas=[0, 0])
    parts = [state["config"], state["config"]["deep"], state["steps"]]
    done = checkpoint.load(path, state)
    assert (done.missing_keys, done.unexpected_keys) == ([], [])
    assert state == {**SAVED, "betas": [1, 2]}
    assert list(map(id, parts)) == [id(state["config"]), id(state["config"]["deep"]), id(state["steps"])]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"config": 3}, "config: a dict in the checkpoint, 3 here"),
        ({"config": [1]}, "config: a dict in the checkpoint, a list of 1 here"),
        ({"config": (1,)}, "config: a dict in the checkpoint, a tuple of 1 here"),
        ({"steps": 3}, "steps: a list of 3 in the checkpoint, 3 here"),
        ({"steps": {"a": 1}}, "steps: a list of 3 in the checkpoint, a dict here"),
        ({"epoch": {"a": 1}}, "epoch: 7 in the checkpoint, a dict here"),
        ({"epoch": {}}, "epoch: 7 in the checkpoint, a dict here"),
        ({"epoch": [1]}, "epoch: 7 in the checkpoint, a list of 1 here"),
    ],
)
def test_a_value_in_place_of_a_dict_or_list_is_told(path, changed, why, strict):
    state = like(**changed)
    before = copied(state)
    with pytest.raises(CheckpointMismatch, match=why):
        checkpoint.load(path, state, strict=strict)
    assert state == before


@pytest.mark.parametrize("state", [[], [1, 2], {"a": 1}])
def test_a_state_of_the_other_kind_is_told(tmp_path, state):
    checkpoint.save(tmp_path / "dict", {"b": 1})
    checkpoint.save(tmp_path / "list", [1])
    checkpoint.save(tmp_path / "none", None)
    for other in ("list" if isinstance(state, dict) else "dict", "none"):
        with pytest.raises(
            CheckpointMismatch, match=r"the state: (a dict|a list of 1|None) in the checkpoint, a .* here"
        ):
            checkpoint.load(tmp_path / other, copied(state))


def test_what_is_empty_or_none_takes_whatever_there_is(tmp_path):
    saved = {"losses": [0.5, 0.25], "best": {"weights": resilin.ones(2), "loss": 0.25}, "seen": {"a": {"b": 1}}}
    checkpoint.save(tmp_path, saved)
    state = {"losses": [], "best": None, "seen": {}}
    losses, seen = state["losses"], state["seen"]
    checkpoint.load(tmp_path, state)
    assert (state["losses"], state["seen"]) == (saved["losses"], saved["seen"])
    assert state["losses"] is losses
    assert state["seen"] is seen
    assert state["best"]["weights"].tolist() == [1, 1]
    everything = {}
    checkpoint.load(tmp_path, everything)
    assert sorted(everything) == sorted(saved)
    checkpoint.save(tmp_path, {"best": None})
    checkpoint.load(tmp_path, state | {"best": {"loss": 3}}, strict=False)


def test_counts_are_values_whatever_their_keys(tmp_path):
    grouped = collections.defaultdict(int, a=1)
    checkpoint.save(tmp_path, {"count": collections.Counter("aab"), "grouped": grouped})
    state = {"count": collections.Counter("xyz"), "grouped": collections.defaultdict(int, z=2)}
    checkpoint.load(tmp_path, state)
    assert state == {"count": collections.Counter("aab"), "grouped": {"a": 1}}
    assert state["grouped"]["new"] == 0  # it is a defaultdict still


class Extra(nn.Module):
    """Its extra state has other keys over time."""

    def __init__(self, **seen):
        super().__init__()
        self.seen = seen

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, state):
        self.seen = state


class Custom:
    def __init__(self, **tree):
        self.tree = tree

    def state_dict(self):
        return self.tree

    def load_state_dict(self, tree):
        self.tree = tree


def test_objects_take_their_own_tree_whole(tmp_path):
    saved = {"extra": Extra(a=1, b=[1, 2]), "custom": Custom(a=[1, 2], b={"c": 1}), "n": 1}
    checkpoint.save(tmp_path, saved)
    state = {"extra": Extra(z=1), "custom": Custom(b={"d": 5}, e=1), "n": 0}
    done = checkpoint.load(tmp_path, state)
    assert (done.missing_keys, done.unexpected_keys) == ([], [])
    assert state["extra"].seen == saved["extra"].seen
    assert state["custom"].tree == saved["custom"].tree


class Picky(Custom):
    def load_state_dict(self, tree):
        self.tree = {"a": tree["a"]}


def test_an_object_that_was_something_else_is_told(tmp_path):
    optimizer = optim.AdamW(nn.Linear(2, 2).parameters())
    for stored in (5, "text", [1], resilin.ones(2)):
        checkpoint.save(tmp_path, {"o": stored})
        for thing in (optimizer, Custom(a=1), nn.Linear(2, 2), ElasticSampler(range(9), batch_size=1, shards=1)):
            with pytest.raises(CheckpointMismatch, match=rf"o: .* in the checkpoint, a {type(thing).__name__} here"):
                checkpoint.load(tmp_path, {"o": thing})


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"param_groups": 3, "state": {}}, r'state\["param_groups"\] must be a list of dicts, got 3'),
        ({"param_groups": [[]], "state": {}}, r"param_groups\[0\] must be a dict, got \[\]"),
        ({"param_groups": [{"params": [0, 1]}], "state": 3}, r'state\["state"\] must be a dict of entries .* got 3'),
    ],
)
def test_a_tree_that_no_optimizer_made_is_told(tmp_path, stored, words):
    checkpoint.save(tmp_path, {"o": stored})
    with pytest.raises(CheckpointMismatch, match=rf"o: AdamW.load_state_dict: {words}"):
        checkpoint.load(tmp_path, {"o": optim.AdamW(nn.Linear(2, 2).parameters())})


def test_an_object_that_cannot_take_its_state_is_named(tmp_path):
    checkpoint.save(tmp_path, {"deep": [Custom(b=1)], "n": resilin.ones(1)})
    with pytest.raises(
        CheckpointError, match=r"deep/0 is a Picky, which cannot take .*: KeyError\('a'\); load another"
    ):
        checkpoint.load(tmp_path, {"deep": [Picky(a=1)], "n": resilin.ones(1)})


class Failing(Custom):
    def load_state_dict(self, tree):
        raise RuntimeError("boom")


class FailingModule(nn.Linear):
    def load_state_dict(self, tree, strict=True):
        raise RuntimeError("boom")


def test_an_error_of_an_objects_own_says_on_all_ranks_whose_it_is(tmp_path):
    checkpoint.save(tmp_path, {"deep": [Custom(b=1)], "net": nn.Linear(2, 2), "n": resilin.ones(1)})
    one = {"deep": [Failing(a=1)], "net": nn.Linear(2, 2)}, "deep/0 is a Failing"
    other = {"deep": [Custom(a=1)], "net": FailingModule(2, 2)}, "net is a FailingModule"
    for failing, named in (one, other):

        def load(rank, failing=failing):
            whole = {"deep": [Custom(a=1)], "net": nn.Linear(2, 2)}
            return checkpoint.load(tmp_path, {**(failing if rank else whole), "n": resilin.zeros(1)})

        outcome = run_ranks(2, load, abort=False)
        note = f"load: {named}, whose load_state_dict raised this; what was filled before stays filled, load another"
        assert str(outcome.errors[1]) == "boom"
        assert outcome.errors[1].__notes__[0].startswith(note)
        assert type(outcome.errors[0]) is RuntimeError, "as on rank 1"
        assert f"rank 1 failed: boom; {note}" in str(outcome.errors[0])


def test_state_dicts_of_fresh_objects_fit_those_of_trained_ones(tmp_path):
    def made(steps):
        model = nn.Linear(2, 2)
        optimizer = optim.AdamW(model.parameters())
        scheduler = optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
        sampler = ElasticSampler(range(100), batch_size=4, shards=2, seed=3)
        for _ in range(steps):
            model(resilin.ones(1, 2)).sum().backward()
            optimizer.step()
            scheduler.step()
            sampler.advance(next(iter(sampler.steps())))
        return {
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "sampler": sampler.state_dict(),
            "python": random.Random(steps).getstate(),
        }

    trained, fresh = made(3), made(0)
    checkpoint.save(tmp_path, trained)
    done = checkpoint.load(tmp_path, fresh)
    assert (done.missing_keys, done.unexpected_keys) == ([], [])
    assert fresh["optimizer"]["state"].keys() == trained["optimizer"]["state"].keys()
    assert {**fresh, "optimizer": 0} == {**trained, "optimizer": 0}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", ["optimizer", "scheduler", "module"])
def test_nothing_stored_for_an_object_is_told_before_anything_is_changed(tmp_path, kind, strict):
    net = nn.Linear(1, 1)
    checkpoint.save(tmp_path, {"net": net, "other": None})
    here = nn.Linear(1, 1)
    before = here.weight.clone()
    sgd = optim.SGD(here.parameters(), lr=0.1)
    other = {"optimizer": sgd, "scheduler": optim.lr_scheduler.StepLR(sgd, 1), "module": nn.Linear(2, 2)}[kind]
    with pytest.raises(CheckpointMismatch, match="other"):
        checkpoint.load(tmp_path, {"net": here, "other": other}, strict=strict)
    assert bool((here.weight == before).all())


def test_keys_of_other_types_that_read_alike_are_told_apart(tmp_path):
    checkpoint.save(tmp_path, {"by": {1: 2.0}})
    with pytest.raises(CheckpointMismatch) as told:
        checkpoint.load(tmp_path, {"by": {"1": 0.0}})
    assert (told.value.missing, told.value.unexpected) == (("by/'1'",), ("by/1",))
    assert "DistributedDataParallel" not in str(told.value)


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, np.False_)])
def test_a_flag_may_be_numpys_or_a_number_that_is_one(tmp_path, one, other):
    def both(rank):
        given = one if rank else other
        state = {"w": resilin.ones(3)}
        checkpoint.save(tmp_path / "c", state, compare=given)
        return checkpoint.load(tmp_path / "c", state, strict=given).missing_keys

    assert run_ranks(2, both).results() == [[], []]


@pytest.mark.parametrize("compare", [5, "no", None])
@pytest.mark.parametrize("call", ["save", "save_async"])
def test_compare_is_a_flag(tmp_path, call, compare):
    with pytest.raises(UsageTypeError, match=rf"^checkpoint\.save: compare must be True or False, got {compare!r}$"):
        getattr(checkpoint, call)(tmp_path / "c", {}, compare=compare)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("strict", [5, "no", None])
def test_strict_is_a_flag(path, strict):
    with pytest.raises(UsageTypeError, match=rf"^checkpoint\.load: strict must be True or False, got {strict!r}$"):
        checkpoint.load(path, like(), strict=strict)
