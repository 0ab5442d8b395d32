"""One loop for training: `steps` gives steps, a step gives its shards with their data, entered and left.

for step in steps(loader):      the next step from the last commit on; the one before is committed
    for x, y in step:           with model.shard(shard): for each shard of this rank, the data fetched ahead
        ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import resilin.distributed as dist
from resilin.core import rng
from resilin.data.elastic_sampler import ElasticSampler, Shard, StepPlan
from resilin.data.shard_batches import ShardBatches
from resilin.ddp.wrapper import wrapper_of
from resilin.elastic.worker import registered_samplers
from resilin.errors import UsageError


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingStep(StepPlan):
    """A step of `steps`: a StepPlan that gives the data of its shards.

    for x, y in step:       # once; each shard of this rank that has samples, in its block
        loss_fn(model(x), y).backward()
    """

    _course: _Course

    @property
    def shard(self) -> Shard | None:
        """The shard whose data was given last, while its block is open: for `ShardSums.add`."""
        return self._course.shard

    @property
    def complete(self) -> bool:
        """Whether all of this rank's shards were computed."""
        return self._course.complete

    def __iter__(self) -> Iterator[Any]:
        """Give the data of one shard after the other; its block is open until the next is asked for.

        UsageError the second time: shards are entered in order, and once.
        """
        return self._course.begin(self)


class _Course:
    """How far a step has come."""

    __slots__ = ("_batches", "_feed", "begun", "complete", "shard")

    def __init__(self, feed: _Feed, batches: Iterator[Any] | None) -> None:
        self._feed, self._batches = feed, batches
        self.begun = self.complete = False
        self.shard: Shard | None = None

    def begin(self, step: TrainingStep) -> Iterator[Any]:
        """See TrainingStep."""
        if self.begun:
            _refuse(f"step {step.step}: its shards are given once; what was to be computed again comes with a new step")
        self.begun = True
        return self._shards(step)

    def _shards(self, step: TrainingStep) -> Iterator[Any]:
        # Left by `break` or by an error, this generator is closed there and then: so are the blocks.
        models = self._feed.models()
        try:
            for shard in step.shards:
                with contextlib.ExitStack() as blocks:
                    for model in models:
                        blocks.enter_context(model.shard(shard))
                    if not models:
                        blocks.enter_context(rng.keyed(shard.step, shard.number))
                    self.shard = shard
                    if len(shard):
                        yield shard if self._batches is None else self._next(shard)
            self.complete = True
        finally:
            self.shard = None

    def _next(self, shard: Shard) -> Any:
        assert self._batches is not None, "asked for a loader's batch"
        try:
            return next(self._batches)
        except StopIteration:
            raise UsageError(
                f"elastic.steps: the loader has ended before step {shard.step}, shard {shard.number} of {shard.total}; "
                "it gives a batch for every shard with samples, to this loop alone"
            ) from None


class _Feed:
    """What `steps` was given, checked."""

    def __init__(self, source: Any, models: tuple[Any, ...]) -> None:
        batch_sampler = getattr(source, "batch_sampler", None)
        self.loader = source if isinstance(batch_sampler, ShardBatches) else None
        sampler = batch_sampler.sampler if isinstance(batch_sampler, ShardBatches) else source
        if not isinstance(sampler, ElasticSampler):
            raise UsageError(
                f"elastic.steps: expected an ElasticSampler, or a loader over one (DataLoader(data, "
                f"batch_sampler=ElasticSampler(...))), got {type(source).__name__}"
            )
        if self.loader is not None and not getattr(self.loader, "in_order", True):
            raise UsageError("elastic.steps: batches belong to shards, so the loader must be made with in_order=True")
        state = registered_samplers.owner_of(sampler)
        if state is None:
            raise UsageError(
                "elastic.steps: the loop commits its steps, so a State must hold the sampler; register it, or the "
                "loader: elastic.State(model=model, optimizer=optimizer, loader=loader)"
            )
        self.sampler, self.state = sampler, state
        self._given = models
        self._models: list[Any] | None = None

    def models(self) -> list[Any]:
        """Whose `shard` blocks are opened: those that were given, or all of the State that have fixed shards."""
        if self._models is None:
            things = self._given or tuple(self.state._objects.values())
            found = {id(model): model for model in map(_sharding, things) if model is not None}
            self._models = list(found.values())
            self._check(self._models)
        return self._models

    def _check(self, models: list[Any]) -> None:
        """UsageError where the sampler has fixed shards, and no module, or the other way round."""
        shards = self.sampler.shards
        if shards is not None and not models:
            _refuse(
                f"elastic.steps: the sampler cuts each step in {shards} fixed shards, but no module of the State "
                f"computes in shards; wrap it before the loop, DistributedDataParallel(model, shards={shards}) or "
                f"zero.shard(model, shards={shards}), or make the sampler without shards"
            )
        if shards is None and models:
            numbers = ", ".join(str(model.shards) for model in models)
            _refuse(
                f"elastic.steps: a module computes in fixed shards ({numbers}), but the sampler was made without; give "
                f"ElasticSampler the same number, shards={models[0].shards}"
            )

    def run(self, epochs: int | None) -> Iterator[TrainingStep]:
        """See steps."""
        self.state._commit_left()
        sampler = self.sampler
        end = sampler.epoch + 1 if epochs is None else epochs
        while sampler.epoch < end:
            batches = None if self.loader is None else iter(self.loader)
            for plan in sampler.steps():
                step = TrainingStep(**vars(plan), _course=_Course(self, batches))
                self.state._give(step)
                yield step
                if sampler.step == plan.step:  # else the program has committed it
                    _check_complete(step)
                    self.state.commit(step)


def steps(source: Any, *models: Any, epochs: int | None = None) -> Iterator[TrainingStep]:
    """Iterate over training steps, each of which gives the data of this rank's shards: the loop of a program.

        loader = DataLoader(data, batch_sampler=ElasticSampler(len(data), batch_size=64, shards=8), num_workers=2)
        state = State(model=model, optimizer=optimizer, loader=loader)
        ...                                             # in @elastic.run's function:
        parallel = DistributedDataParallel(model, shards=8)
        for step in elastic.steps(loader, epochs=20):
            optimizer.zero_grad()
            for x, y in step:
                loss_fn(parallel(x), y).backward()
            optimizer.step()

    source:  a DataLoader over an ElasticSampler, which fetches ahead as it was told; or the sampler, then a step gives
             its shards (`data[shard.indices]`). A State holds it.
    models:  whose shards are entered and left around the data. Default: all modules of the State that have fixed
             shards, by `DistributedDataParallel(..., shards=V)` or by `zero.shard(..., shards=V)`.
    epochs:  go on until so many have been committed, counted from the start of training. Default: to the end of the
             current one.

    It begins after the last commit, so a function that is called again goes on where the job is. A step is a StepPlan:
    `step.step`, `step.epoch`, `step.ends_epoch`, and `step.shard`, the shard at work. It is committed when the next is
    asked for, unless the body has called `state.commit(step)`: so whatever belongs to the step is in the body. A step
    that is left by `break` or `return` after its update counts, too; it is committed when the function returns or
    begins another loop. A body that an error ends commits nothing.

    Without fixed shards each step gives one batch: this rank's part, with draws of its own. With them, one for each of
    its shards; shards without samples are entered and left unseen, those that only repeat (`step.shard.counts`) need
    their backward.

    Raises UsageError where loader, sampler, State and modules do not fit, or shards of a step were left out.
    """
    return _Feed(source, models).run(epochs)


def _sharding(thing: Any) -> Any:
    """What computes the fixed shards of `thing`; None: nothing does."""
    if callable(getattr(thing, "shard", None)):
        return thing if getattr(thing, "shards", None) is not None else None
    wrapper = wrapper_of(thing)
    return wrapper if wrapper is not None and wrapper.shards is not None else None


def _check_complete(step: TrainingStep) -> None:
    if not step.complete:
        _refuse(
            f"elastic.steps: the next step is asked for, but step {step.step} was not computed to its end on this "
            "rank; iterate over all that the step gives (`for x, y in step:`)"
        )


def _refuse(words: str) -> NoReturn:
    """UsageError, on all ranks: the others would wait for this one's part of the sums."""
    error = UsageError(words)
    group = dist.default_group() if dist.is_initialized() else None
    if group is not None and group.size() > 1:
        group.abort(error)
    raise error
