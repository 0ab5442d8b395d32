"""A pipeline that lives on in every world: stages of lost ranks come back from their second copies.

world of 4, 2 stages   0: stage 0   1: stage 1 | 2: stage 0   3: stage 1     two replicas
rank 1 is lost         0: stage 0   2: stage 1   3: waits                    one replica, until somebody comes
rank 0 is lost, too    2: stages 0 and 1 ...
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import resilin.distributed as dist
from resilin.core.tensor import Parameter, Tensor
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire import shard_tree
from resilin.errors import (
    CollectiveTimeout,
    DistNetworkError,
    GroupAborted,
    PeerLost,
    UsageError,
    UsageTypeError,
    WorldChanged,
)
from resilin.nn import Module
from resilin.nn.modules.state import IncompatibleKeys
from resilin.optim import Optimizer
from resilin.pipeline import elastic_optimizer, stage_states
from resilin.pipeline.broken_step import BrokenStep
from resilin.pipeline.clipping import clip_grad_norm_
from resilin.pipeline.cutting import Pipe, build_stage
from resilin.pipeline.elastic_placement import ElasticPlacement
from resilin.pipeline.elastic_schedule import ElasticSchedule, plan_for
from resilin.pipeline.elastic_state import StagesContent, StageTensors
from resilin.pipeline.microbatch import check_count
from resilin.pipeline.plan import generate
from resilin.pipeline.reducing import Shard
from resilin.pipeline.stage import check_checkpoint
from resilin.pipeline.step import check_loss_fn
from resilin.resharding.survivor import Survivor, hand_over

DataParallel = Callable[[Module, ProcessGroup], Module]
_WORLD_ENDS = (PeerLost, GroupAborted, WorldChanged, DistNetworkError, CollectiveTimeout)


class ElasticPipeline:
    """The stages of a model in whatever world there is, for `elastic.run`.

        pipe = pipelining.pipeline(model, (x,), split_spec={"layers.4": SplitPoint.BEGINNING})
        model = pipelining.ElasticPipeline(pipe, n_microbatches=8, loss_fn=loss_fn)
        optimizer = optim.AdamW(model.parameters())

        @elastic.run(state=elastic.State(model=model, optimizer=optimizer, sampler=sampler))
        def train():
            for plan in sampler.steps(model.replica, model.replicas):
                ...
                model.step(x, target=y)
                optimizer.step()
                state.commit(plan)

    Every rank makes the whole model; in a world each keeps its stages alone. With as many ranks as the schedule is for
    each has its stages; with fewer, some have more; with more, whole pipelines are replicated where `data_parallel`
    says how gradients are reduced, and who is left over waits. A rank's parameters and what an optimizer remembers of
    them have a second copy on another rank. A step that was broken off is gone on with where its stages are left, see
    `redo`. The bits of training do not depend on any of that.
    """

    def __init__(
        self,
        pipe: Pipe,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        schedule: str = "1F1B",
        *,
        device: Any = "cpu",
        checkpoint: str = "never",
        scale_grads: bool = True,
        data_parallel: DataParallel | None = None,
        stages_per_rank: int | None = None,
        redo: Literal["unfinished", "step"] = "unfinished",
    ) -> None:
        """Make one of a module that `pipeline()` has cut. Outside of elastic.run it is placed at its first step.

        Args:
            pipe: the stages.
            n_microbatches: how many micro-batches a batch is split into; those of all replicas together.
            loss_fn: gives the loss of (output, target). None: forward only.
            schedule: by PyTorch's name, for worlds with ranks enough: one for each stage ("1F1B", "GPipe"), or for each
                `stages_per_rank` of them ("Interleaved1F1B", "ZBVZeroBubble", ...). With fewer ranks, and for replicas
                with fewer micro-batches than it takes, forwards and backwards are made by turns in an order planned for
                them.
            device: where stages compute; divided state is kept on the host.
            checkpoint: see PipelineStage.
            scale_grads: see PipelineScheduleSingle.
            data_parallel: wraps a stage's module for the group of ranks that have it, in each world anew, such as
                `lambda module, group: DistributedDataParallel(module, process_group=group, shards=n_microbatches)`.
            stages_per_rank: how many stages the schedule has on each rank. Default: the schedule's own, 1 or 2.
            redo: what is made again of a step in which a rank is lost. "unfinished": what lost stages had done, and
                whatever nobody had; what stages hand on is kept until the end of the step for that. "step": all of it,
                and nothing is kept. Steps with `data_parallel`, tied weights, skip connections, or gradients of steps
                before, are made again whole.

        Raises: UsageError for numbers of stages and micro-batches that the schedule does not take, and arguments
            without a meaning.
        """
        if not isinstance(pipe, Pipe):
            raise UsageTypeError(
                f"ElasticPipeline: pipe: expected what pipelining.pipeline() returns, got {type(pipe).__name__}"
            )
        check_count("ElasticPipeline", n_microbatches)
        if redo not in ("unfinished", "step"):
            raise UsageError(f'ElasticPipeline: redo: expected "unfinished" or "step", got {redo!r}')
        check_checkpoint(checkpoint)
        check_loss_fn("ElasticPipeline", loss_fn)
        self._schedule_name = generate.schedule(schedule).name
        per_rank = generate.schedule(schedule).stages_per_rank if stages_per_rank is None else stages_per_rank
        check_count("ElasticPipeline", per_rank, "stages_per_rank")
        place = _placing(pipe.num_stages, per_rank, generate.schedule(schedule).style, data_parallel is not None)
        generate.generate(schedule, place(1).whole_ranks, n_microbatches, per_rank)  # what it refuses, on all ranks
        self.pipe, self.num_stages = pipe, pipe.num_stages
        self._modules = [pipe.get_stage_module(number) for number in range(pipe.num_stages)]
        self._n_microbatches, self._loss_fn, self._scale_grads = n_microbatches, loss_fn, scale_grads
        self._device, self._checkpoint, self._data_parallel = device, checkpoint, data_parallel
        self._names = stage_states.Names(self._modules)
        self._tensors = StageTensors(self._names.parameters, self._names.buffers, self._names.users)
        self._content = StagesContent(self._tensors, place)
        self._survivor = Survivor(self._content)
        # by id of the optimizer, which they hold
        self._followers: dict[int, elastic_optimizer.StageOptimizerState] = {}
        self._logs = redo == "unfinished" and data_parallel is None
        self._broken: BrokenStep | None = None  # what is left here of a step, until the next world's first
        self._world: ProcessGroup | None = None  # that the schedule is made for
        self._schedule: ElasticSchedule | None = None
        for parameter in self._names.parameters:
            parameter.divided = elastic_optimizer.Dividing(weakref.ref(self))  # type: ignore[attr-defined]

    # --- the world ---

    @property
    def reconfigurable(self) -> Survivor:
        """See `dist.reconfigurable.Divided`."""
        return self._survivor

    @property
    def placement(self) -> ElasticPlacement:
        """Where the stages are now."""
        group = self._group()
        return self._content.placement(1 if group is None else group.size())

    @property
    def replicas(self) -> int:
        """How many whole pipelines there are."""
        return self.placement.replicas

    @property
    def replica(self) -> int:
        """The pipeline that this rank is in; 0 for one that waits, so that all go through the sampler alike."""
        group = self._group()
        return self.placement.replica_of(0 if group is None else group.rank()) or 0

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages that this rank has."""
        return self._content.stages

    @property
    def steps(self) -> int:
        """How many steps were made: random numbers of `step` depend on it. Set it when training goes on."""
        return self._content.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._content.steps = steps

    def _group(self) -> ProcessGroup | None:
        if self._survivor.group is not None:
            return self._survivor.group
        return dist.default_group() if dist.is_initialized() else None

    def _placed(self) -> ElasticSchedule | None:
        """The schedule of this world; None on a rank that waits. Collective in a new world."""
        group = self._group()
        if self._world is None or self._world is not group:
            if group is None:
                raise UsageError(
                    "ElasticPipeline: there is no process group; call resilin.distributed.init_process_group() first, "
                    "or register the pipeline in elastic.State and use it inside elastic.run"
                )
            if self._survivor.group is None:
                self._content.place(group)
            self._schedule = self._scheduled(group)
            self._world = group
        return self._schedule

    def _scheduled(self, group: ProcessGroup) -> ElasticSchedule | None:
        placement, rank = self.placement, group.rank()
        own, mine = group, placement.replica_of(rank)
        if placement.replicas * placement.ranks < group.size() or placement.replicas > 1:
            for replica in range(placement.replicas):
                ranks = range(replica * placement.ranks, (replica + 1) * placement.ranks)
                made = dist.new_group(list(ranks))
                own = made if replica == mine else own
        modules: dict[int, Module] = dict(enumerate(self._modules))
        if self._data_parallel is not None:
            for stage in range(self.num_stages):
                twins = dist.new_group(list(placement.holders(stage)))
                if stage in self.stages:
                    modules[stage] = self._data_parallel(modules[stage], twins)
        if mine is None:
            return None
        info = self.pipe.info()
        count = len(shard_tree.plan(self._n_microbatches, placement.replicas).run(mine))
        stages = [build_stage(modules[n], n, info, self._device, own, self._checkpoint) for n in self.stages]
        plan = plan_for(placement, self._schedule_name, count)
        broken, self._broken = self._broken, None
        version = self._survivor.version
        return ElasticSchedule(stages, plan, self._loss_fn, self._scale_grads, version, broken, self._logs)

    # --- steps ---

    def step(self, *args: Any, target: Any = None, losses: list[Any] | None = None, **kwargs: Any) -> Any:
        """Run one batch, forward and backward: `args` on ranks with the first stage, `target` on those with the last.

        Returns what a schedule's `step` does; None on a rank that waits. All ranks of the world call it.
        """
        return self._run(lambda one: one.step(*args, target=target, losses=losses, **kwargs))

    def step_shards(self, shards: Sequence[Shard], *args: Any, losses: list[Any] | None = None, **named: Any) -> Any:
        """Run one batch whose micro-batches are a sampler's shards, as `step_shards` of a schedule does.

        For replicas, with `data_parallel`: `sampler.steps(pipeline.replica, pipeline.replicas)` gives `plan.shards`.
        """
        return self._run(lambda one: one.step_shards(shards, *args, losses=losses, **named))

    def eval(self, *args: Any, target: Any = None, losses: list[Any] | None = None, **kwargs: Any) -> Any:
        """Run one batch forward only, without recording; see a schedule's `eval`."""
        schedule = self._placed()
        return None if schedule is None else schedule.eval(*args, target=target, losses=losses, **kwargs)

    def _run(self, run: Callable[[Any], Any]) -> Any:
        schedule = self._placed()
        self._content.begin_step()
        result = None
        if schedule is not None:
            schedule.steps = self._content.steps
            try:
                result = run(schedule)
            except _WORLD_ENDS:
                self._broken = schedule.broken_off(self._content.buffers_before())
                raise
        self._content.steps += self._loss_fn is not None
        return result

    def train(self, mode: bool = True) -> ElasticPipeline:
        """Set the stages' mode, as a module's `train` does."""
        for module in self._modules:
            module.train(mode)
        return self

    # --- parameters and state ---

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield all parameters under the names that they have in the module that was cut.

        Of stages that are on other ranks they have a shape and no memory: reading gives zeros, writing an error.
        """
        yield from self._names.named_parameters()

    def parameters(self) -> Iterator[Parameter]:
        """Yield all parameters."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all buffers, as `named_parameters` does."""
        yield from self._names.named_buffers()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, as a module's `zero_grad` does."""
        for module in self._modules:
            module.zero_grad(set_to_none)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor | None:
        """Scale the gradients of all stages so that their norm, taken as one vector, is at most `max_norm`.

        Returns the norm before; None on a rank that waits. All ranks of the world call it, after `step`. See
        `pipelining.clip_grad_norm_`.
        """
        schedule = self._placed()
        return None if schedule is None else clip_grad_norm_(schedule.stages, max_norm, norm_type, error_if_nonfinite)

    def optimizer_state(self, optimizer: Optimizer) -> elastic_optimizer.StageOptimizerState:
        """Give what knows the state of an optimizer of the stages' parameters, whole and divided."""
        if id(optimizer) not in self._followers:
            self._followers[id(optimizer)] = elastic_optimizer.StageOptimizerState(
                optimizer, self._tensors, self._content, self._survivor
            )
        return self._followers[id(optimizer)]

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the module that was cut: whole tensors, on every rank. All ranks call it."""
        return stage_states.whole(self._names, self.placement, self._group())

    def sharded_state_dict(self) -> dict[str, Any]:
        """Give the same with this rank's tensors as `checkpoint.Sliced`, empty of stages elsewhere; no communication.

        It loads at any number of stages and ranks, and into the module itself.
        """
        return stage_states.sliced(self._names, self.stages)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Take over a state of the module that was cut, whole or sliced. All ranks call it.

        Raises UsageError that lists names and shapes that do not fit; nothing is loaded then.
        """
        keys = stage_states.check(self._names, state_dict, strict)
        self._survivor.before_update(overwritten=True)
        stage_states.load(self._names, self.stages, state_dict)
        self._broken = None
        self._content.end_step()
        hand_over([self._survivor])
        return keys

    load_sharded_state_dict = load_state_dict

    def __repr__(self) -> str:
        return f"<ElasticPipeline of {self.num_stages} stages, here {list(self.stages)} of {self.placement}>"


def _placing(stages: int, per_rank: int, style: str, replicated: bool) -> Callable[[int], ElasticPlacement]:
    """Where the stages are, by the size of the world."""
    return lambda world_size: ElasticPlacement(stages, world_size, replicated, per_rank, style)
