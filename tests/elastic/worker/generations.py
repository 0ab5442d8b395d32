"""Generations of a training job with ranks as threads: a test plays the agents and decides who dies and who joins.

play(make, train, size=4, changes=[Change(step=2, site="forward", lost=(1,), size=3)]) -> a digest per rank of the end

`make(seed)` gives a fresh `State`, with other initial values for every seed: who joins must receive everything.
`train(state, at)` trains; it calls `at(site)` where a change may strike, last of all `at("committed")`. The sites
"moment 0", "moment 1", ... are what `fault_points` and `call_phases` announce on a rank, from the change's step on;
"action 0", "action 1", ... those of a pipeline alone.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import resilin
from resilin import distributed as dist
from resilin._base import fault_points
from resilin.core.host_copies import on_host
from resilin.distributed.wire import call_phases
from resilin.elastic.worker import digests, session, sync, trees
from resilin.elastic.worker.loop import RECOVERABLE
from resilin.elastic.worker.session import World
from resilin.elastic.worker.state import State
from resilin.errors import WorldChanged
from resilin.testing.ranks import run_ranks

TIMEOUT_S = 60.0
At = Callable[[str], None]
Train = Callable[[State, At], None]


@dataclass(frozen=True)
class Change:
    """What ends a generation: the first time that `site` is reached with `step` steps committed, or more."""

    step: int
    site: str
    lost: tuple[int, ...]
    """Ranks that die there (modulo the world's size); none: the world changes for all ranks at that commit."""
    size: int
    """Workers of the next generation; survivors come first, or keep their `seats`."""
    restart: bool = False
    """Everybody ends, and a new job goes on from what rank 0 saved last; it saves at the site "committed"."""
    seats: bool = False
    """Whether survivors keep their ranks where the size allows it, as agents have it; others fill the gaps."""


class Died(Exception):
    """A rank is gone, with all it had."""


class _OwnWorld(threading.local):
    world: World | None = None
    announced: Callable[..., None] | None = None


def digest(state: State) -> str:
    """Of parameters, buffers, optimizer, scheduler, sampler, plain values, the random state and the step: what does not
    depend on how state is divided."""
    saved = {name: value for name, value in state.state_dict().items() if name not in ("generation", "extra")}
    tree, tensors = trees.split(saved)
    return digests.digest([tree, [on_host(tensor) for tensor in tensors]]).hex()


def play(make: Callable[[int], State], train: Train, size: int, changes: Sequence[Change] = ()) -> list[str]:
    """Train through `changes`, or those that strike before the end; the digest of every rank that saw the end."""
    seeds = itertools.count(1)
    resilin.manual_seed(0)
    members: list[State | None] = [None] * size
    disk: list[Any] = []
    with _own_worlds() as own:
        for number, change in enumerate([*changes, None], 1):
            alike = not disk and not any(members)  # then rank 0's values are the job's, as at its very start
            fresh = [next(seeds) * (not alike or rank > 0) for rank in range(len(members))]

            def rank_main(
                rank: int, members: Any = members, number: int = number, change: Any = change, fresh: Any = fresh
            ) -> str:  # fmt: skip
                size = len(members)
                own.world = World(
                    rank=rank, world_size=size, local_rank=rank, local_world_size=size, node_rank=0, node_count=1,
                    generation=number, reason="a test",
                )  # fmt: skip

                def at(site: str) -> None:
                    if site == "committed" and rank == 0 and any(each.restart for each in changes):
                        disk[:] = [trees.frozen(state.state_dict())]
                    strike(change, state, rank, size, site)

                state = members[rank]
                if state is None:
                    with dist.use_group(None):  # as in a process that has not entered elastic.run yet
                        state = members[rank] = make(fresh[rank])
                    if disk:
                        state.load_state_dict(trees.thawed(disk[-1]))
                else:
                    state._roll_back()
                own.announced = _announcer(change, state, at)
                with call_phases.listening(own.announced):
                    sync.make_equal(state, dist.default_group(), rank, size)
                    state._begins()
                    train(state, at)
                own.announced = None
                return digest(state)

            outcome = run_ranks(len(members), rank_main, timeout_s=TIMEOUT_S)
            strange = [e for e in outcome.errors.values() if not isinstance(e, (Died, *RECOVERABLE))]
            if strange:
                raise strange[0]
            if change is None or not outcome.errors:
                return outcome.results()
            if change.restart:
                members = [None] * change.size
                continue
            dead = {rank for rank, error in outcome.errors.items() if isinstance(error, Died)}
            members = _next_members(members, dead, change)
    raise AssertionError("the last generation has no end")


def _next_members(members: Sequence[State | None], dead: set[int], change: Change) -> list[State | None]:
    survivors = [(rank, state) for rank, state in enumerate(members) if rank not in dead][: change.size]
    seats: dict[int, State | None] = {}
    if change.seats:
        seats = {rank: state for rank, state in survivors if rank < change.size}
    free = [rank for rank in range(change.size) if rank not in seats]
    seats.update(zip(free, [state for rank, state in survivors if rank not in seats], strict=False))
    return [seats.get(rank) for rank in range(change.size)]


def _announcer(change: Change | None, state: State, at: At) -> Callable[..., None]:
    """Numbers what is announced on one rank, once the change's step has come."""
    numbers = itertools.count()

    def announced(*what: object) -> None:
        if change is None or state.step < change.step:
            return
        if change.site.startswith("moment "):
            at(f"moment {next(numbers)}")
        elif change.site.startswith("action ") and what == ("pipeline",):
            at(f"action {next(numbers)}")

    return announced


def strike(change: Change | None, state: State, rank: int, size: int, site: str) -> None:
    """Raise if this is where `change` strikes."""
    if change is None or site != change.site or state.step < change.step:
        return
    if not change.lost:
        raise WorldChanged("a test changes the world", state._generation)
    if rank in {lost % size for lost in change.lost}:
        raise Died


@contextmanager
def _own_worlds() -> Iterator[_OwnWorld]:
    """Let `session.world()` tell each thread its own rank."""
    own, real = _OwnWorld(), session.world
    session.world = lambda: own.world or real()  # type: ignore[assignment]
    fault_points.listen(lambda name: own.announced(name) if own.announced is not None else None)
    try:
        yield own
    finally:
        fault_points.listen(None)
        session.world = real  # type: ignore[assignment]
