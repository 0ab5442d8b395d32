"""One stage of a pipelined model: a module, its place among the stages, and the group in which they meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from resilin.core.device import device as device_of
from resilin.core.tensor import Parameter, Tensor
from resilin.distributed.group.default_group import default_group, is_initialized
from resilin.distributed.group.process_group import ProcessGroup
from resilin.errors import UsageError, UsageTypeError
from resilin.nn.modules.module import Module
from resilin.pipeline.messages import MOST_STAGES
from resilin.pipeline.sync.skip.namespace import SkipName
from resilin.pipeline.sync.skip.skippable import skippables_of
from resilin.pipeline.sync.skip.tracker import SkipTracker, use_skip_tracker

CHECKPOINTS = ("never", "except_last", "always")


def check_checkpoint(mode: str) -> None:
    """UsageError for what does not say which micro-batches keep their inputs alone."""
    if mode not in CHECKPOINTS:
        raise UsageError(f"checkpoint is not one of 'always', 'except_last', or 'never': got {mode!r:.80}")


class PipelineStage:
    """A stage: `submodule` computes what the stage before hands on; a schedule says when.

    What comes in may be any number of tensors, None and plain values, in tuples, lists and dicts, of shapes and dtypes
    that change between micro-batches: they travel in each message. A tuple or list that a stage returns becomes the
    positional arguments of the next, anything else its only one. Keyword arguments come from `schedule.step` on each
    rank. Weights keep the names of the module that was cut: `stage.submod.state_dict()` is a part of its state dict.
    """

    def __init__(
        self,
        submodule: Module,
        stage_index: int,
        num_stages: int,
        device: Any,
        input_args: Any = None,
        output_args: Any = None,
        output_grads: Any = None,
        input_grads: Any = None,
        group: ProcessGroup | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        get_mesh: Any = None,
        *,
        checkpoint: str = "never",
        tied: Mapping[str, str] | None = None,
        skip_keys: Mapping[SkipName, str] | None = None,
    ) -> None:
        """Make a stage.

        Args:
            submodule: what it computes.
            stage_index: its place, from 0.
            num_stages: how many there are on all ranks together.
            device: where it computes; tensors that come from other ranks are put there.
            input_args: examples of the inputs, one tensor or a tuple. Each micro-batch is compared with them, and an
                error says where shape or dtype differ; shapes may change without them. Only the first stage's and later
                ones' positional tensors count.
            output_args: the same of the outputs.
            output_grads: the same of the gradients that come back; None for those of which there is none.
            input_grads: the same of the gradients that are sent back.
            group: of the ranks that have the stages. Default: the default group.
            dw_builder: called after the first half of a backward that is split, which then runs whole; what it returns
                is called as the second half.
            get_mesh: not supported: there are no distributed tensors.
            checkpoint: which micro-batches keep their inputs alone and compute again in backward: "never",
                "except_last", or "always".
            tied: weights that other stages have, too: names of parameters of `submodule` -> a name that all stages use
                for the weight. Their gradients are summed over the stages.
            skip_keys: what all stages call skip tensors that are in namespaces; those in none go by their names.

        Raises: UsageError for numbers and names that do not fit, UsageTypeError for wrong types.
        """
        if not isinstance(submodule, Module):
            raise UsageTypeError(f"PipelineStage: submodule: expected a Module, got {type(submodule).__name__}")
        for name, number in (("num_stages", num_stages), ("stage_index", stage_index)):
            if not isinstance(number, int) or isinstance(number, bool):
                raise UsageTypeError(f"PipelineStage: {name}: expected an int, got {type(number).__name__}")
        if not 0 < num_stages <= MOST_STAGES:
            raise UsageError(f"PipelineStage: num_stages: expected 1 to {MOST_STAGES}, got {num_stages}")
        if not 0 <= stage_index < num_stages:
            raise UsageError(f"Stage index {stage_index} is out of range of {num_stages}")
        if get_mesh is not None:
            raise UsageError("PipelineStage: get_mesh: there are no distributed tensors; leave it out")
        check_checkpoint(checkpoint)
        self.submod = submodule
        self.stage_index, self.num_stages = stage_index, num_stages
        self.device = device_of(device)
        self.group = default_group() if group is None and is_initialized() else group
        self.group_size = 1 if self.group is None else self.group.size()
        self.group_rank = 0 if self.group is None else self.group.rank()
        if self.group_size > num_stages:
            raise UsageError(
                f"Pipeline group size {self.group_size} cannot be larger than number of stages {num_stages}"
            )
        self.has_backward = False
        """Whether its schedule has a `loss_fn`, so that gradients are computed; a schedule sets it."""
        self.dw_builder, self.checkpoint = dw_builder, checkpoint
        self.input_args, self.output_args = _examples(input_args, "input_args"), _examples(output_args, "output_args")
        self.output_grads = _examples(output_grads, "output_grads")
        self.input_grads = _examples(input_grads, "input_grads")
        self.tied = dict(tied or {})
        self._check_tied()
        stashed, popped = _open_skips(submodule)
        self._skip_names = {_key(name, skip_keys, stage_index): name for name in (*stashed, *popped)}
        self.stashes = tuple(sorted(_key(name, skip_keys, stage_index) for name in stashed))
        """What layers of this stage stash for later stages."""
        self.pops = tuple(sorted(_key(name, skip_keys, stage_index) for name in popped))
        """What layers of this stage pop that earlier ones have stashed."""

    def _check_tied(self) -> None:
        known = dict(self.submod.named_parameters(remove_duplicate=False))
        for name in self.tied:
            if name not in known:
                raise UsageError(f"PipelineStage: tied: stage {self.stage_index} has no parameter {name!r}")

    def tied_parameters(self) -> dict[str, Parameter]:
        """Give the parameters that other stages have, too, by the name that all of them use."""
        known: dict[str, Any] = dict(self.submod.named_parameters(remove_duplicate=False))
        return {key: known[name] for name, key in self.tied.items()}

    def compute(self, module: Any, args: Any, kwargs: Any, popped: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Give what `module`, the stage's or what is inside of it, returns, and what its layers stash for later stages.

        popped: what earlier stages have stashed for them.
        """
        if not self._skip_names:
            return module(*args, **kwargs), {}
        tracker = SkipTracker({self._skip_names[key]: popped[key] for key in self.pops})
        with use_skip_tracker(tracker):
            output = module(*args, **kwargs)
        return output, {key: tracker.load(self._skip_names[key]) for key in self.stashes}

    @property
    def is_first(self) -> bool:
        """Whether it gets what `step` is given."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Whether its outputs are the model's."""
        return self.stage_index == self.num_stages - 1

    def __repr__(self) -> str:
        return (
            f"<PipelineStage {self.stage_index} of {self.num_stages}, rank {self.group_rank} of {self.group_size}, "
            f"{type(self.submod).__name__}>"
        )


def _open_skips(module: Module) -> tuple[list[SkipName], list[SkipName]]:
    """What skippable layers of a stage stash and do not pop, and what they pop that none of them has stashed."""
    stashed: dict[SkipName, None] = {}
    popped: list[SkipName] = []
    for _, layer in skippables_of(module):
        for name in layer.poppable():
            if name in stashed:
                del stashed[name]
            else:
                popped.append(name)
        stashed |= dict.fromkeys(layer.stashable())
    return list(stashed), popped


def _key(name: SkipName, keys: Mapping[SkipName, str] | None, stage: int) -> str:
    if keys is not None and name in keys:
        return keys[name]
    if name.namespace is not None:
        raise UsageError(
            f"PipelineStage: stage {stage} has skip tensor {name.name!r} in a namespace, which other processes do not "
            "know: cut the whole module with pipeline(), or say with skip_keys what all stages call it"
        )
    return name.name


def _examples(given: Any, name: str) -> tuple[Tensor | None, ...] | None:
    if given is None:
        return None
    found = tuple(given) if isinstance(given, tuple | list) else (given,)
    for value in found:
        if value is not None and not isinstance(value, Tensor):
            raise UsageTypeError(f"PipelineStage: {name}: expected tensors, got {type(value).__name__}")
    return found


def check_examples(stage: PipelineStage, name: str, microbatch: int, values: tuple[Any, ...]) -> None:
    """UsageError where tensors of a micro-batch differ from the stage's examples `name`, if it was given any."""
    examples: tuple[Tensor | None, ...] | None = getattr(stage, name)
    if examples is None:
        return
    found = [value for value in values if isinstance(value, Tensor) or value is None]
    told = [None if each is None else (tuple(each.shape), str(each.dtype)) for each in examples]
    here = [None if each is None else (tuple(each.shape), str(each.dtype)) for each in found]
    if told != here:
        raise UsageError(
            f"stage {stage.stage_index}, micro-batch {microbatch}: {name} were said to be {_spoken(told)}, they are "
            f"{_spoken(here)}; leave {name} out where shapes change between micro-batches"
        )


def _spoken(metas: list[Any]) -> str:
    return ", ".join("None" if meta is None else f"{meta[1]} {list(meta[0])}" for meta in metas) or "none"
