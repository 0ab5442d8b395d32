"""A divided optimizer in checkpoints: saved by four ranks, loaded by any number of them and by the plain optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from divided import ALL, bits, divided, flat_state, on_one, parameters, plain, shapes_for, train

from resilin import checkpoint
from resilin.errors import CheckpointMismatch
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer

SAVED, LATER = range(4), range(4, 6)


def save(path: Path, name: str, world: int) -> None:
    """A checkpoint of parameters and optimizer after SAVED."""

    def work(rank: int) -> None:
        params, optimizer = divided(name)
        train(params, optimizer, SAVED)
        checkpoint.save(path, {"params": params, "optimizer": optimizer})

    run_ranks(world, work).results()


@pytest.mark.parametrize("name", ["AdamW", "NAdam", "Adafactor"])
def test_what_four_ranks_saved_is_loaded_by_any_number(tmp_path: Path, name: str) -> None:
    want, state = plain(name, [*SAVED, *LATER])
    save(tmp_path / "four", name, 4)

    def load(rank: int) -> tuple[list[bytes], Any]:
        params, optimizer = divided(name, parameters_as_bucket_view=True)
        checkpoint.load(tmp_path / "four", {"params": params, "optimizer": optimizer})
        train(params, optimizer, LATER)
        return bits(params), on_one(optimizer, rank)

    for world in (1, 2, 3, 5):
        results = run_ranks(world, load).results()
        assert [got for got, _ in results] == [want] * world
        assert flat_state(results[0][1]) == flat_state(state)


@pytest.mark.parametrize("name", ["AdamW", "Adafactor"])
def test_the_plain_optimizer_and_the_divided_one_load_what_the_other_saved(tmp_path: Path, name: str) -> None:
    want, _ = plain(name, [*SAVED, *LATER])
    cls, options = ALL[name]
    save(tmp_path / "divided", name, 3)
    params = parameters(shapes_for(name))
    optimizer = cls(params, **options)
    checkpoint.load(tmp_path / "divided", {"params": params, "optimizer": optimizer})
    train(params, optimizer, LATER)
    assert bits(params) == want

    params = parameters(shapes_for(name))
    optimizer = cls(params, **options)
    train(params, optimizer, SAVED)
    checkpoint.save(tmp_path / "plain", {"params": params, "optimizer": optimizer})

    def load(rank: int) -> list[bytes]:
        params, optimizer = divided(name)
        checkpoint.load(tmp_path / "plain", {"params": params, "optimizer": optimizer})
        train(params, optimizer, LATER)
        return bits(params)

    assert run_ranks(2, load).results() == [want] * 2


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path: Path) -> None:
    save(tmp_path / "saved", "AdamW", 2)
    want, _ = plain("AdamW", SAVED)

    def load(rank: int) -> list[bytes]:
        params, optimizer = divided("AdamW")
        train(params, optimizer, range(2))
        others = parameters(((5, 5), (3,)))
        other = ZeroRedundancyOptimizer(others, ALL["AdamW"][0])
        with pytest.raises(CheckpointMismatch):
            checkpoint.load(tmp_path / "saved", {"params": others, "optimizer": other})
        train(params, optimizer, range(2, 4))
        return bits(params)

    assert run_ranks(2, load).results() == [want] * 2


def test_a_checkpoint_of_another_kind_of_optimizer_changes_nothing(tmp_path: Path) -> None:
    params, optimizer = plain_of("SGD")
    train(params, optimizer, SAVED)
    checkpoint.save(tmp_path, {"params": params, "optimizer": optimizer})

    def load(rank: int) -> tuple[list[bytes], list[bytes]]:
        params, optimizer = divided("AdamW")
        train(params, optimizer, SAVED)
        before = bits(params)
        with pytest.raises(CheckpointMismatch, match=r"optimizer: ZeroRedundancyOptimizer.*another kind, as SGD is"):
            checkpoint.load(tmp_path, {"params": params, "optimizer": optimizer})
        return before, bits(params)

    for before, after in run_ranks(2, load).results():
        assert before == after


def plain_of(name: str) -> tuple[list[Any], Any]:
    """Parameters and a plain optimizer of them."""
    cls, options = ALL[name]
    params = parameters(shapes_for(name))
    return params, cls(params, **options)
