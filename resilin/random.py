"""The names of torch.random: seeds and the state of the generators. docs/determinism.md says what repeats when."""

from __future__ import annotations

from resilin.core.rng import (
    Generator,
    default_generator,
    fork_rng,
    get_rng_state,
    initial_seed,
    manual_seed,
    own_generator,
    seed,
    set_rng_state,
)

__all__ = [
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
    "thread_safe_generator",
]


def thread_safe_generator() -> Generator | None:
    """In a thread that has a generator of its own, as a data loader's worker has, that one; else None, the default."""
    return own_generator()
