"""What all schedules share: the stages of a rank, its plan, and how a batch becomes a step of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from resilin.core.autograd.grad_mode import mode
from resilin.core.tensor import Tensor
from resilin.distributed.agreement.guard import abort_group_on_error
from resilin.errors import UsageError, UsageTypeError
from resilin.pipeline import agreement, microbatch, reducing
from resilin.pipeline.gradients import Gradients
from resilin.pipeline.messages import Exchange
from resilin.pipeline.microbatch import TensorChunkSpec
from resilin.pipeline.plan import generate
from resilin.pipeline.plan.action import Action
from resilin.pipeline.plan.plan import PipelinePlan
from resilin.pipeline.plan.validate import validate
from resilin.pipeline.stage import PipelineStage
from resilin.pipeline.step import PipelineStep, Results, StepBatch, check_loss, check_loss_fn
from resilin.pipeline.step_log import StepLog
from resilin.pipeline.tied_weights import Holder, TiedWeights

_TARGET_CHUNK_SPEC = TensorChunkSpec(0)


class PipelineSchedule:
    """What all schedules share: a plan, the stages of this rank, and how a batch becomes micro-batches."""

    name: ClassVar[str] = ""
    """In `plan.generate.SCHEDULES`; empty for one that has no plan of its own."""

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: tuple[Any, ...] | None = None,
        kwargs_chunk_spec: dict[str, Any] | None = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
    ) -> None:
        self._stages = _checked(stages, type(self).__name__)
        microbatch.check_count(type(self).__name__, n_microbatches)
        check_loss_fn(type(self).__name__, loss_fn)
        first = self._stages[0]
        self._n_microbatches = n_microbatches
        self._loss_fn = loss_fn
        for stage in self._stages:
            stage.has_backward = loss_fn is not None
        self._args_chunk_spec, self._kwargs_chunk_spec = args_chunk_spec, kwargs_chunk_spec
        self._output_merge_spec = output_merge_spec
        self.scale_grads = scale_grads
        self.pp_group_size, self.rank = first.group_size, first.group_rank
        self._num_stages = first.num_stages
        self._group = first.group if first.group_size > 1 else None
        self.steps = 0
        """How many steps were made: random numbers of a micro-batch depend on it. Set it when training goes on."""
        self._agreed: dict[bool, agreement.Agreement] = {}
        self._exchange: Exchange | None = None
        self._plan: PipelinePlan | None = None
        if self.name:
            self._set_plan(
                generate.generate(self.name, self.pp_group_size, n_microbatches, self._num_stages // self.pp_group_size)
            )

    @classmethod
    def stage_indices(cls, rank: int, ranks: int, num_stages: int) -> tuple[int, ...]:
        """Give the stages that a rank of the pipeline has with this schedule."""
        placement = generate.schedule(cls.name).placement(ranks, num_stages)
        return tuple(stage for stage, owner in enumerate(placement) if owner == rank)

    def _set_plan(self, plan: PipelinePlan) -> None:
        """Take a plan, when it is proved and the stages of this rank are those that it places here."""
        validate(plan)
        if (plan.ranks, plan.stages) != (self.pp_group_size, self._num_stages):
            raise UsageError(
                f"{type(self).__name__}: the plan is for {plan.stages} stages on {plan.ranks} ranks, there are "
                f"{self._num_stages} stages on {self.pp_group_size} ranks"
            )
        if plan.microbatches != self._n_microbatches:
            raise UsageError(
                f"{type(self).__name__}: the plan has {plan.microbatches} micro-batches, n_microbatches is "
                f"{self._n_microbatches}"
            )
        here, wanted = [stage.stage_index for stage in self._stages], plan.stages_of(self.rank)
        if sorted(here) != list(wanted):
            raise UsageError(
                f"{type(self).__name__}: rank {self.rank} of the pipeline has stages {sorted(here)}, expected "
                f"{list(wanted)}: stage_indices(rank, ranks, stages) of the schedule's class says which to make"
            )
        self._plan = plan
        self._agreed, self._exchange = {}, None

    @property
    def stages(self) -> tuple[PipelineStage, ...]:
        """Those of this rank."""
        return tuple(self._stages)

    @property
    def pipeline_order(self) -> dict[int, list[Action | None]]:
        """The plan, as PyTorch's schedules show it: actions by rank."""
        return {} if self._plan is None else {rank: list(row) for rank, row in enumerate(self._plan.actions)}

    # --- steps ---

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run one batch through the pipeline, forward and (with a `loss_fn`) backward; every rank calls it.

        Args:
            args: positional arguments of the model, on the rank with the first stage.
            target: of the loss, on the rank with the last stage.
            losses: a list that is filled with the micro-batches' losses there.
            return_outputs: whether the outputs are returned there, without a graph.
            loss_kwargs: more keyword arguments of `loss_fn`.
            kwargs: keyword arguments, on each rank those of its own stages.

        Returns the model's outputs on the rank with the last stage, None elsewhere. Gradients are those of the mean
        over micro-batches, or with scale_grads=False of the sum, added to those that were there.

        Raises: RuntimeError under no_grad; CollectiveMismatch, UsageError on all ranks that do not fit together.
        """
        trains = self._loss_fn is not None
        if trains and not mode.grad:
            raise RuntimeError(
                "step() requires gradients to be enabled for backward computation; it should not be used under "
                "torch.no_grad() context. Please call eval() instead."
            )
        return self._run(lambda: self._split(args, kwargs, target), trains, losses, return_outputs, loss_kwargs)

    def eval(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run one batch through the pipeline, forward only and without recording; as `step` otherwise.

        Modules stay in the mode they are in: call `stage.submod.eval()` for dropout and batch norm. Without a target
        there are no losses.
        """
        return self._run(lambda: self._split(args, kwargs, target), False, losses, return_outputs, loss_kwargs)

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Make a step of micro-batches that are split already, of whatever shapes; under PyTorch's name."""

        def batch() -> StepBatch:
            return self._batch(arg_mbs, kwarg_mbs, target_mbs, None)

        return self._run(batch, self._loss_fn is not None, losses, return_outputs, loss_kwargs)

    def step_shards(
        self,
        shards: Sequence[reducing.Shard],
        arg_mbs: Sequence[tuple[Any, ...]] | None = None,
        kwarg_mbs: Sequence[dict[str, Any]] | None = None,
        target_mbs: Sequence[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Make a step whose micro-batches are a sampler's shards: `plan.shards` of an `ElasticSampler(shards=V)`.

        Stages' modules are wrapped in `DistributedDataParallel(..., process_group=replicas, shards=V)`: each replica of
        the pipeline computes some of the shards, and gradients have the same bits for any number of replicas. They are
        weighted by the shards' samples, so nothing is scaled. What the ranks of one replica are given is as for `step`,
        by micro-batch; an empty shard's is not looked at.
        """
        modules = [stage.submod for stage in self._stages]

        def batch() -> StepBatch:
            tied = [key for stage in self._stages for key in stage.tied.values()]
            reducing.check_shards(modules, shards, self._n_microbatches, tied)
            return self._batch(arg_mbs, kwarg_mbs, target_mbs, shards)

        return self._run(batch, self._loss_fn is not None, losses, return_outputs, loss_kwargs)

    def _run(
        self,
        make: Callable[[], StepBatch],
        trains: bool,
        losses: list[Any] | None,
        return_outputs: bool,
        loss_kwargs: dict[str, Any] | None,
    ) -> Any:
        plan = self._plan
        if plan is None:
            raise UsageError(f"{type(self).__name__}: it has no plan yet: load one with _load_csv")
        if losses is not None and not isinstance(losses, list):
            raise UsageTypeError(f"losses must be a list but got a {type(losses)}")
        batch = self._prepare(plan, make, trains)
        agreed = self._agreed[trains]
        assert self._exchange is not None, "made as ranks agreed"
        with abort_group_on_error(self._group, f"pipeline: step {self.steps}"):
            log = self._log() if trains and batch.shards is None else None
            gradients = Gradients(self._stages, self._scale(batch)) if trains else None
            tied = self._tied(agreed.ties) if trains and agreed.ties else None
            step = PipelineStep(
                self._stages,
                self._exchange,
                batch,
                self.steps,
                loss=self._loss(batch, loss_kwargs),
                trains=trains,
                tied=tied,
                skips=agreed.skips,
                keep_outputs=return_outputs,
                log=log,
            )
            self._play(step, plan if trains else plan.forward_only())
            if gradients is not None:
                gradients.finish()
            if tied is not None:
                tied.totals()
            self._exchange.finish()
        self.steps += trains
        return self._results(step.results, batch, losses, return_outputs)

    def _log(self) -> StepLog | None:
        """What a training step writes down of itself. None: a step that is broken off is dropped."""
        return None

    def _play(self, step: PipelineStep, plan: PipelinePlan) -> None:
        """Do this rank's actions."""
        step.play(plan.computations().of(self.rank))

    def _more(self, batch: StepBatch) -> Any:
        """What else all ranks are to know of this one before the first step: plain values."""
        return None

    def _prepare(self, plan: PipelinePlan, make: Callable[[], StepBatch], trains: bool) -> StepBatch:
        """Split the batch; agree with the other ranks the first time."""
        if trains in self._agreed:
            with abort_group_on_error(self._group, f"pipeline: before step {self.steps}"):
                return self._with_targets(make(), trains)
        made: list[StepBatch] = []

        def prepare() -> dict[str, Any]:
            made.append(self._with_targets(make(), trains))
            more = self._more(made[0]) if trains else None
            said = agreement.said(type(self).__name__, plan, self._stages, trains, self.steps, more)
            said["equal"]["scale_grads"] = bool(self.scale_grads)
            return said

        self._agreed[trains] = agreement.agree(self._group, plan, prepare)
        if self._exchange is None:
            self._exchange = Exchange(self._group, plan.placement, self.rank)
        return made[0]

    def _with_targets(self, batch: StepBatch, trains: bool) -> StepBatch:
        """Give `batch`. UsageError where a backward would have no loss to begin at."""
        if trains and batch.targets is None and self._has_last_stage():
            raise UsageError(
                f"Stage {self._num_stages - 1}: loss_fn and target required for last stage: give target= on the rank "
                "that has it, or call eval() to run forward only"
            )
        return batch

    def _tied(self, ties: Sequence[agreement.Tie]) -> TiedWeights:
        here = {
            Holder(tie.key, stage.stage_index): stage.tied_parameters()[tie.key]
            for tie in ties
            for stage in self._stages
            if stage.stage_index in tie.stages
        }
        assert self._exchange is not None, "made as ranks agreed"
        stages = {tie.key: tie.stages for tie in ties}
        modules = {stage.stage_index: stage.submod for stage in self._stages}
        return TiedWeights(stages, here, modules, self._exchange, self.steps, range(self._n_microbatches))

    def _scale(self, batch: StepBatch) -> int:
        return self._n_microbatches if self.scale_grads and batch.shards is None else 1

    # --- batches ---

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any) -> StepBatch:
        count = self._n_microbatches
        arg_mbs: Any = None
        kwarg_mbs: Any = None
        if args or kwargs:
            arg_mbs, kwarg_mbs = microbatch.split_args_kwargs_into_chunks(
                args, kwargs, count, self._args_chunk_spec, self._kwargs_chunk_spec
            )
        targets = None if target is None else microbatch.split_tensor(target, _TARGET_CHUNK_SPEC, count, "target")
        return self._batch(arg_mbs, kwarg_mbs, targets, None)

    def _batch(self, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, shards: Any) -> StepBatch:
        count = self._n_microbatches
        for name, given in (("arg_mbs", arg_mbs), ("kwarg_mbs", kwarg_mbs), ("target_mbs", target_mbs)):
            if given is not None and len(given) != count:
                raise UsageError(
                    f"Expecting {count} {name} but got {len(given)}: a batch must have a sample for each micro-batch"
                )
        args = [()] * count if arg_mbs is None else arg_mbs
        return StepBatch(args, [{}] * count if kwarg_mbs is None else kwarg_mbs, target_mbs, shards)

    def _loss(self, batch: StepBatch, loss_kwargs: dict[str, Any] | None) -> Callable[[Any, int], Tensor] | None:
        function, targets = self._loss_fn, batch.targets
        if function is None or targets is None:
            return None

        def loss(output: Any, number: int) -> Tensor:
            return check_loss(function(output, targets[number], **(loss_kwargs or {})), number)

        return loss

    def _has_last_stage(self) -> bool:
        return any(stage.is_last for stage in self._stages)

    def _results(self, results: Results, batch: StepBatch, losses: list[Any] | None, return_outputs: bool) -> Any:
        if not self._has_last_stage():
            return None
        if losses is not None:
            losses[:] = [results.losses[number] for number in sorted(results.losses)]
        if not return_outputs or not results.outputs:
            return None
        return microbatch.merge_chunks([results.outputs[n] for n in sorted(results.outputs)], self._output_merge_spec)


def _checked(stages: Sequence[PipelineStage], name: str) -> list[PipelineStage]:
    if isinstance(stages, PipelineStage):
        raise UsageTypeError(f"{name}: expected the list of this rank's stages, got one PipelineStage: give [stage]")
    found = list(stages)
    for stage in found:
        if not isinstance(stage, PipelineStage):
            raise UsageTypeError(f"{name}: expected a PipelineStage, got {type(stage).__name__}")
        if (stage.num_stages, stage.group) != (found[0].num_stages, found[0].group):
            raise UsageError(f"{name}: the stages of a rank must have one num_stages and one group")
    if not found:
        raise UsageError(f"{name}: expected at least one stage")
    return found
