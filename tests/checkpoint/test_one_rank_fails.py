"""An object of the state that fails on one rank, in whatever way: every rank hears which one, where, and why."""

import pytest

import resilin
from resilin import checkpoint
from resilin.errors import DistError
from resilin.testing.ranks import run_ranks

WORLD = 3
CULPRIT = 1


class Thing:
    """Its methods raise what they are told to."""

    def __init__(self, gives=None, takes=None):
        self.gives, self.takes = gives, takes

    def state_dict(self):
        if self.gives is not None:
            raise self.gives
        return {"a": 1}

    def load_state_dict(self, state):
        if self.takes is not None:
            raise self.takes


def on_one(rank, **raising):
    return {"deep": [Thing(**(raising if rank == CULPRIT else {}))], "w": resilin.ones(3)}


def told(fn, kind):
    """What each rank but the culprit raised, and the culprit's own with its notes; all raise."""
    outcome = run_ranks(WORLD, fn, abort=False)
    assert sorted(outcome.errors) == list(range(WORLD))
    own = outcome.errors.pop(CULPRIT)
    for error in outcome.errors.values():
        assert isinstance(error, kind), error
    return own, [str(error) for error in outcome.errors.values()]


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_object_that_ends_its_process_while_it_is_loaded_is_named_on_all_ranks(tmp_path, end):
    checkpoint.save(tmp_path, on_one(0))

    def load(rank):
        return checkpoint.load(tmp_path, on_one(rank, takes=end))

    own, others = told(load, DistError)
    assert own is end
    for text in others:
        assert f"rank {CULPRIT} aborted the group: {type(end).__name__}: checkpoint.load, group " in text
        assert "deep/0 is a Thing, whose load_state_dict raised this" in text


@pytest.mark.parametrize("call", ["save", "save_async"])
@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_object_that_ends_its_process_while_it_is_saved_is_named_on_all_ranks(tmp_path, call, end):
    def save(rank):
        getattr(checkpoint, call)(tmp_path / "c", on_one(rank, gives=end))

    own, others = told(save, DistError)
    assert own is end
    for text in others:
        assert f"rank {CULPRIT} aborted the group: {type(end).__name__}: checkpoint.save, group " in text
        assert "the state['deep'][0] is a Thing, whose state_dict raised this" in text
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("call", ["save", "save_async"])
def test_an_object_whose_state_dict_fails_is_named_on_all_ranks(tmp_path, call):
    def save(rank):
        getattr(checkpoint, call)(tmp_path / "c", on_one(rank, gives=KeyError("lost")))

    own, others = told(save, KeyError)
    assert isinstance(own, KeyError)
    assert own.__notes__ == ["save: the state['deep'][0] is a Thing, whose state_dict raised this"]
    for text in others:
        assert f"rank {CULPRIT} failed: 'lost'; {own.__notes__[0]}" in text
    assert not (tmp_path / "c").exists()


def test_an_object_whose_state_dict_fails_while_it_is_loaded_is_named_on_all_ranks(tmp_path):
    checkpoint.save(tmp_path, on_one(0))

    def load(rank):
        return checkpoint.load(tmp_path, on_one(rank, gives=OSError("lost")))

    own, others = told(load, OSError)
    assert own.__notes__ == ["load: deep/0 is a Thing, whose state_dict raised this"]
    for text in others:
        assert f"rank {CULPRIT} failed: lost; {own.__notes__[0]}" in text
