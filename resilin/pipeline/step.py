"""One step of one rank: plays its row of a plan, action by action.

    F   take in what the stage before has sent, compute, send it on
    B   take in the gradients, compute those of inputs and weights, send the former back; I and W are its two halves

What is received is waited for where it is needed. What is sent is on its way at once, and its receiver takes it when it
comes to it: inside a host out of this rank's memory, otherwise out of what its connections have taken in while it
computed. All that a step holds is in its object: a step that failed is dropped, and can be begun again by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilin._base import fault_points
from resilin.core import rng
from resilin.core.autograd import checkpoint
from resilin.core.autograd.grad_mode import enable_grad, no_grad
from resilin.core.autograd.graph import stand_in
from resilin.core.state.versions import in_common
from resilin.core.tensor import Tensor
from resilin.errors import UsageTypeError
from resilin.pipeline import values
from resilin.pipeline.messages import Exchange, MessageKind, RngState, Route, StageMessage
from resilin.pipeline.microbatch_graph import Gradients, MicrobatchGraph, Source
from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    Action,
    ComputationType,
)
from resilin.pipeline.reducing import Shard, reducing
from resilin.pipeline.stage import PipelineStage, check_examples
from resilin.pipeline.step_log import Given, StepLog
from resilin.pipeline.tied_weights import TiedWeights

OUTPUT = ""  # the name of what goes to the next stage, beside those of skip tensors


@dataclass
class StepBatch:
    """What a rank gives for a step, by micro-batch.

    Args:
        args: positional arguments of the first stage.
        kwargs: keyword arguments of this rank's stages.
        targets: of the loss; None: there are none.
        shards: what the micro-batches are shards of; None: they are no shards.
    """

    args: Sequence[tuple[Any, ...]]
    kwargs: Sequence[Mapping[str, Any]]
    targets: Sequence[Any] | None = None
    shards: Sequence[Shard] | None = None

    def has_samples(self, microbatch: int) -> bool:
        """Whether there is anything to compute: shards of a ragged step may be empty."""
        return self.shards is None or len(self.shards[microbatch]) > 0

    def rng_key(self, step: int, microbatch: int) -> tuple[int, int]:
        """What the random numbers of a micro-batch depend on, beside the seed."""
        if self.shards is None:
            return step, microbatch
        return self.shards[microbatch].step, self.shards[microbatch].number


@dataclass
class Results:
    """What a step gives on the rank with the last stage, by micro-batch."""

    outputs: dict[int, Any] = field(default_factory=dict)
    losses: dict[int, Tensor] = field(default_factory=dict)


class PipelineStep:
    """A step, or an evaluation, of one rank."""

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        exchange: Exchange,
        batch: StepBatch,
        number: int,
        *,
        loss: Callable[[Any, int], Tensor] | None,
        trains: bool,
        tied: TiedWeights | None,
        skips: Mapping[str, tuple[int, int]],
        keep_outputs: bool = True,
        log: StepLog | None = None,
    ) -> None:
        """loss: of the output of a micro-batch. tied: None in evaluations. log: of one that another world may end."""
        self._stages = {stage.stage_index: stage for stage in stages}
        self._exchange, self.batch, self.number = exchange, batch, number
        self._loss, self._trains, self._tied, self._keep_outputs = loss, trains, tied, keep_outputs
        self._names = sorted(skips)
        self._skips = skips
        self.log = log
        self.graphs: dict[tuple[int, int], MicrobatchGraph] = {}
        """By stage and micro-batch, from its forward to the last half of its backward."""
        self.losses: dict[int, Tensor] = {}
        """That backward begins at."""
        self.results = Results()

    def play(self, actions: Sequence[Action]) -> None:
        """Do all actions, in order, and wait until what was sent has been taken."""
        for action in actions:
            for part in action.parts:
                self._do(part)
        if self._tied is not None:
            self._tied.advance(wait=True)

    def _do(self, action: Action) -> None:
        if fault_points.heard is not None:
            fault_points.heard("pipeline")
        stage, microbatch = self._stages[action.stage_index], action.microbatch_index
        assert microbatch is not None, "a computation is of one micro-batch"
        try:
            if action.computation_type is FORWARD:
                self._forward(stage, microbatch)
            else:
                self._backward(stage, microbatch, action)
        except Exception as error:
            error.add_note(f"pipeline: action {action} of step {self.number}")
            raise
        if self._tied is not None:
            self._tied.advance()

    # --- forward ---

    def _forward(self, stage: PipelineStage, microbatch: int) -> None:
        if not self.batch.has_samples(microbatch):
            return
        args, sources, generator = self._inputs(stage, microbatch)
        popped, from_skips = self._popped(stage, microbatch)
        kwargs = dict(self.batch.kwargs[microbatch])
        check_examples(stage, "input_args", microbatch, args)
        with rng.using(generator), enable_grad() if self._trains else no_grad():
            self._computes()
            output, stashed = self._run(stage, microbatch, args, kwargs, popped)
            loss = self._loss(output, microbatch) if stage.is_last and self._loss is not None else None
        check_examples(stage, "output_args", microbatch, _as_arguments(output))
        graph = MicrobatchGraph([*sources, *from_skips], list(self._tied_weights(stage)))
        if self._trains:
            self.graphs[stage.stage_index, microbatch] = graph
        if loss is not None:
            self.results.losses[microbatch] = loss.detach()
            if self._trains:
                self.losses[microbatch] = loss
        given = self._given(stage, microbatch, output, stashed, generator, graph)
        self._give(stage, FORWARD, microbatch, given)

    def _inputs(self, stage: PipelineStage, microbatch: int) -> tuple[tuple[Any, ...], list[Source], rng.Generator]:
        """The arguments, where they came from, and the generator that the micro-batch draws from."""
        if stage.is_first:
            with rng.keyed(*self.batch.rng_key(self.number, microbatch)) as generator:
                pass
            return tuple(self.batch.args[microbatch]), [], generator
        message = self._receive(Route(MessageKind.FORWARD, stage.stage_index - 1, stage.stage_index), microbatch, stage)
        value, source = self._leaves(message)
        assert message.rng is not None, "the first stage has sent it along"
        generator = rng.default_generator().clone_state()
        generator.manual_seed(message.rng.seed)
        generator.stream, generator.offset = message.rng.stream, message.rng.offset
        return _as_arguments(value), [source], generator

    def _popped(self, stage: PipelineStage, microbatch: int) -> tuple[dict[str, Any], list[Source]]:
        found, sources = {}, []
        for name in stage.pops:
            message = self._receive(self._skip(MessageKind.SKIP, name), microbatch, stage)
            found[name], source = self._leaves(message)
            sources.append(source)
        return found, sources

    def _leaves(self, message: StageMessage) -> tuple[Any, Source]:
        """The value of a message, whose tensors are leaves here; a stage may write those that are alone.

        Writes are counted with those of the stage that sent them, where both are on this rank.
        """
        leaves = [tensor.detach() for tensor in message.tensors]
        told = message.layout.tensors
        shown = list(leaves)
        for place, (leaf, layout) in enumerate(zip(leaves, told, strict=True)):
            if self._trains and layout.wants_grad:
                leaf.requires_grad_()
                shown[place] = stand_in(leaf) if layout.is_alone else leaf
        return values.put_together(message.layout, shown), Source(leaves, [each.in_parts for each in told])

    def _run(
        self, stage: PipelineStage, microbatch: int, args: Any, kwargs: Any, popped: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Compute: the output, and what was stashed."""
        module = stage.submod.module if self.batch.shards is not None else stage.submod
        last = microbatch == len(self.batch.kwargs) - 1
        again = stage.checkpoint == "always" or (stage.checkpoint == "except_last" and not last)
        if not (again and self._trains):
            return stage.compute(module, args, kwargs, popped)
        return checkpoint.checkpoint(stage.compute, module, args, kwargs, popped, use_reentrant=False)  # type: ignore[no-any-return]

    def _given(
        self,
        stage: PipelineStage,
        microbatch: int,
        output: Any,
        stashed: Mapping[str, Any],
        generator: rng.Generator,
        graph: MicrobatchGraph,
    ) -> Given:
        """What goes to other stages after a forward."""
        several, sharing = _in_common([output, *stashed.values()])
        where = RngState(generator._seed, generator.stream, generator.offset)
        given: Given = []
        for name in stage.stashes:
            tensors, layout = values.take_apart(stashed[name], several, sharing)
            graph.keep(name, tensors)
            kept = values.apart_from_buffers(tensors, stage.submod)
            given.append((self._skip(MessageKind.SKIP, name), self._message(microbatch, kept, layout)))
        if not stage.is_last:
            tensors, layout = values.take_apart(output, several, sharing)
            graph.keep(OUTPUT, tensors)
            tensors = values.apart_from_buffers(tensors, stage.submod)
            route = Route(MessageKind.FORWARD, stage.stage_index, stage.stage_index + 1)
            given.append((route, self._message(microbatch, tensors, layout, where)))
        elif self._keep_outputs:
            self.results.outputs[microbatch] = _detached(output)
        return given

    # --- backward ---

    def _backward(self, stage: PipelineStage, microbatch: int, action: Action) -> None:
        kind = action.computation_type
        completes = kind in (FULL_BACKWARD, BACKWARD_WEIGHT)
        found: Any = {}
        if not self.batch.has_samples(microbatch):
            with reducing(stage.submod, self.batch.shards, microbatch, self._is_last_of(microbatch), completes):
                pass
        else:
            graph = self.graphs[stage.stage_index, microbatch]
            with reducing(stage.submod, self.batch.shards, microbatch, self._is_last_of(microbatch), completes):
                if kind is BACKWARD_WEIGHT or self._has_inputs(stage, microbatch):
                    self._computes()
                    found = graph.backward_weights()
                    self._give(stage, BACKWARD_WEIGHT, microbatch, [])
                else:
                    found = self._backward_inputs(stage, microbatch, graph, whole=kind is FULL_BACKWARD)
            if completes:
                del self.graphs[stage.stage_index, microbatch]
        if completes and self._tied is not None:
            self._tied.add(stage.stage_index, microbatch, found)

    def _has_inputs(self, stage: PipelineStage, microbatch: int) -> bool:
        """Whether the first half of a backward was done before this step was broken off."""
        return self.log is not None and microbatch < self.log.here[stage.stage_index].inputs

    def _backward_inputs(self, stage: PipelineStage, microbatch: int, graph: MicrobatchGraph, whole: bool) -> Any:
        """A whole backward, or its first half; sends the gradients back. The contributions to tied weights."""
        gradients, loss = (
            self._gradients(stage, microbatch),
            self.losses.pop(microbatch, None) if stage.is_last else None,
        )
        self._computes()
        found: Any = {}
        if whole:
            inputs, found = graph.backward(gradients, loss)
        elif stage.dw_builder is not None:
            inputs, _ = graph.backward(gradients, loss)
            graph.defer(stage.dw_builder())
        else:
            inputs = graph.backward_inputs(gradients, loss)
        routes = [] if stage.is_first else [Route(MessageKind.BACKWARD, stage.stage_index, stage.stage_index - 1)]
        routes += [self._skip(MessageKind.SKIP_BACKWARD, name) for name in stage.pops]
        given: Given = []
        for route, grads in zip(routes, inputs, strict=True):
            if route.kind is MessageKind.BACKWARD:
                check_examples(stage, "input_grads", microbatch, tuple(grads))
            given.append((route, self._message(microbatch, *values.take_apart(grads))))
        self._give(stage, FULL_BACKWARD if whole else BACKWARD_INPUT, microbatch, given)
        return found

    def _gradients(self, stage: PipelineStage, microbatch: int) -> list[tuple[str, Gradients]]:
        """What has come back, that of the furthest stage first: a backward without pipeline would come to it first."""
        found = []
        for name in sorted(stage.stashes, key=lambda each: -self._skips[each][1]):
            route = self._skip(MessageKind.SKIP_BACKWARD, name)
            message = self._receive(route, microbatch, stage)
            found.append((name, values.put_together(message.layout, message.tensors)))
        if not stage.is_last:
            route = Route(MessageKind.BACKWARD, stage.stage_index + 1, stage.stage_index)
            message = self._receive(route, microbatch, stage)
            grads = values.put_together(message.layout, message.tensors)
            check_examples(stage, "output_grads", microbatch, tuple(grads))
            found.append((OUTPUT, grads))
        return found

    def _tied_weights(self, stage: PipelineStage) -> Iterator[Tensor]:
        if self._tied is not None:
            yield from self._tied.weights(stage.stage_index).values()

    def _is_last_of(self, microbatch: int) -> bool:
        return microbatch == len(self.batch.kwargs) - 1

    # --- messages ---

    def _skip(self, kind: MessageKind, name: str) -> Route:
        source, target = self._skips[name]
        if kind is MessageKind.SKIP_BACKWARD:
            source, target = target, source
        return Route(kind, source, target, self._names.index(name))

    def _receive(self, route: Route, microbatch: int, stage: PipelineStage) -> StageMessage:
        return self._exchange.receive(route, self.number, microbatch, self._trains, stage.device)

    def _message(
        self, microbatch: int, tensors: list[Tensor], layout: values.ValueLayout, where: RngState | None = None
    ) -> StageMessage:
        return StageMessage(self.number, microbatch, self._trains, where, tensors, layout)

    def _computes(self) -> None:
        if self.log is not None:
            self.log.computing = True

    def _give(self, stage: PipelineStage, kind: ComputationType, microbatch: int, given: Given) -> None:
        """An action of a stage is done: send what it gave. Who is lost meanwhile does not undo it."""
        if self.log is not None:
            given = self.log.did(stage.stage_index, kind, microbatch, given)
        for route, message in given:
            self._exchange.send(route, message)


def _as_arguments(value: Any) -> tuple[Any, ...]:
    """What a stage returned, as the positional arguments of the next one."""
    return tuple(value) if type(value) in (tuple, list) else (value,)


def _in_common(given: Sequence[Any]) -> tuple[frozenset[int], frozenset[int]]:
    """The ids of tensors that are in more than one of the values, and of those that share memory with another."""
    seen: dict[int, Tensor] = {}
    several: set[int] = set()
    for value in given:
        here = {id(tensor): tensor for tensor in values.take_apart(value)[0]}
        several |= seen.keys() & here.keys()
        seen |= here
    return frozenset(several), frozenset(map(id, in_common(seen.values())))


def _detached(value: Any) -> Any:
    """An output as its user gets it: the graph behind it is gone, or will be."""
    tensors, layout = values.take_apart(value)
    return values.put_together(layout, [tensor.detach() for tensor in tensors])


def check_loss_fn(where: str, loss_fn: Any) -> None:
    """UsageTypeError unless it is a function, or None."""
    if loss_fn is not None and not callable(loss_fn):
        raise UsageTypeError(f"{where}: loss_fn: expected a function of (output, target), got {loss_fn!r:.80}")


def check_loss(loss: Any, microbatch: int) -> Tensor:
    """Give `loss`. UsageTypeError unless a backward can begin at it."""
    if not isinstance(loss, Tensor):
        raise UsageTypeError(
            f"loss_fn: expected a tensor of one element, got {type(loss).__name__}, micro-batch {microbatch}"
        )
    return loss
