"""Fixed shards give the bits of one undisturbed worker, in every world and through every change of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from itertools import product
from typing import Any

import extent
import pytest
import zoo
from generations import Change, play
from hypothesis import given, settings
from hypothesis import strategies as st


def results(kind: str, size: int, *changes: Change) -> set[str]:
    """The digests of all ranks at the end."""
    return set(play(partial(zoo.make, zoo.KINDS[kind]), partial(zoo.train, zoo.KINDS[kind]), size, changes))


@cache
def undisturbed(kind: str) -> str:
    """The digest of one worker that nothing happens to."""
    (one,) = results(kind, 1)
    return one


def rotating(kinds: Iterable[str], others: Iterable[Any]) -> list[Any]:
    """Every kind with each of the others, of which the short run has one for each kind, and each of them."""
    kinds, others = list(kinds), list(others)
    chosen = {(kind, others[number % len(others)]) for number, kind in enumerate(kinds)}
    return extent.short(product(kinds, others), of=lambda *case: case in chosen)


@pytest.mark.parametrize(("kind", "size"), rotating(zoo.KINDS, [2, 3, 5, 8]))
def test_every_model_ends_with_the_bits_of_one_worker_in_every_world(kind: str, size: int) -> None:
    assert results(kind, size) == {undisturbed(kind)}


@pytest.mark.parametrize("size", range(1, 9))
def test_a_world_of_every_size_gives_the_same_bits(size: int) -> None:
    kind = "dense, momentum, clipped"
    assert results(kind, size) == {undisturbed(kind)}


CHANGES = {
    "replaced, in every phase of a step": (
        3,
        Change(0, "forward", (1,), 3),
        Change(1, "backward", (0,), 3),
        Change(1, "reduced", (2,), 3),
        Change(2, "applied", (0,), 3),
        Change(3, "committed", (1,), 3),
    ),
    "grown and shrunk at commits, also at the epoch's border": (
        2,
        Change(1, "committed", (), 5),
        Change(2, "committed", (), 7),
        Change(3, "committed", (), 3),
        Change(4, "committed", (), 1),
    ),
    "fewer and fewer until one is left": (
        6,
        Change(1, "backward", (0, 3), 4),
        Change(2, "reduced", (1, 2), 2),
        Change(3, "applied", (0,), 1),
    ),
    "stopped wholly and started anew": (
        4,
        Change(2, "backward", (1,), 2, restart=True),
        Change(3, "committed", (), 6, restart=True),
        Change(4, "applied", (5,), 1),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "story"), rotating(zoo.KINDS, CHANGES))
def test_every_model_ends_with_the_bits_of_one_worker_whatever_happens_to_the_world(kind: str, story: str) -> None:
    size, *changes = CHANGES[story]
    assert results(kind, size, *changes) == {undisturbed(kind)}


sites = st.sampled_from(["forward", "backward", "reduced", "applied", "committed"])
losses = st.builds(
    Change, step=st.integers(0, 5), site=sites, lost=st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple),
    size=st.integers(1, 8), restart=st.booleans(),
)  # fmt: skip
resizes = st.builds(Change, step=st.integers(0, 5), site=st.just("committed"), lost=st.just(()), size=st.integers(1, 8))


@settings(max_examples=extent.examples(12), deadline=None)
@given(
    kind=st.sampled_from(["dense, momentum, clipped", "dense, zeroed late, EMA", "dense, accumulated", "partly used"]),
    size=st.integers(1, 8),
    changes=st.lists(losses | resizes, max_size=4),
)
def test_any_sequence_of_changes_ends_with_the_same_bits(kind: str, size: int, changes: list[Change]) -> None:
    assert results(kind, size, *changes) == {undisturbed(kind)}
