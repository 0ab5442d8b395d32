"""Cut a module into stages at the paths of its parts, without a tracer.

That takes a module whose parts run in a row: a Sequential, or one whose forward hands the output of each part to the
next and returns that of the last, as most models written in blocks do. A run on an example proves it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn

from resilin.core import rng
from resilin.core.autograd.grad_mode import no_grad
from resilin.distributed.group.process_group import ProcessGroup
from resilin.errors import UsageError, UsageTypeError
from resilin.nn import ModuleList, Sequential
from resilin.nn.modules.module import Module
from resilin.pipeline import values
from resilin.pipeline.stage import PipelineStage
from resilin.pipeline.sync.skip.namespace import SkipName
from resilin.pipeline.sync.skip.skippable import skippables_of

_INSTEAD = (
    "cutting it there needs a tracer, which resilin does not have yet: cut at other paths, move what is between the "
    "parts into one of them, or make each stage's module by hand and give it to PipelineStage"
)


class SplitPoint(Enum):
    """Where a module is cut: before or behind one of its parts."""

    BEGINNING = 1
    END = 2


def pipe_split() -> NoReturn:
    """Mark a cut in a module's forward. UsageError: only a tracer can follow it, and there is none yet."""
    raise UsageError(
        "pipe_split: marks in code need a tracer, which resilin does not have yet: name the cut in "
        'pipeline(..., split_spec={"layers.4": SplitPoint.BEGINNING})'
    )


@dataclass(frozen=True)
class PipeInfo:
    """What stages must know of the module that they were cut from.

    Args:
        num_stages: how many there are.
        tied: by stage, its parameters that others have, too, with the name that all use.
        skip_keys: what all stages call skip tensors.
        has_loss_and_backward: whether stages compute the loss themselves: never, the schedule's `loss_fn` does.
    """

    num_stages: int
    tied: tuple[Mapping[str, str], ...] = ()
    skip_keys: Mapping[SkipName, str] = field(default_factory=dict)
    has_loss_and_backward: bool = False


class StageModule(Module):
    """Some parts of a module in a row, under the names that they have in it."""

    def __init__(self, parts: Sequence[tuple[str, Module]]) -> None:
        super().__init__()
        self.part_names = [name for name, _ in parts]
        for name, part in parts:
            *above, last = name.split(".")
            holder: Module = self
            for word in above:
                if word not in holder._modules:
                    holder.add_module(word, Module())
                holder = holder._modules[word]  # type: ignore[assignment]
            holder.add_module(last, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the parts; keyword arguments are the first one's."""
        value: Any = args
        for place, name in enumerate(self.part_names):
            given = value if place == 0 else _as_arguments(value)
            value = self.get_submodule(name)(*given, **(kwargs if place == 0 else {}))
        return value


class Pipe(Module):
    """A module, cut into stages. `build_stage` gives one to a rank; the others need not be kept.

    Called, it runs all stages here, one after the other. As in PyTorch stage n is its part `split_gm.submod_pp_n`.
    """

    def __init__(self, stages: Sequence[StageModule], info: PipeInfo) -> None:
        super().__init__()
        self._info = info
        self.split_gm = Module()
        for number, stage in enumerate(stages):
            self.split_gm.add_module(f"submod_pp_{number}", stage)

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return self._info.num_stages

    def info(self) -> PipeInfo:
        """Give what `build_stage` must know."""
        return self._info

    def get_stage_module(self, stage_idx: int) -> StageModule:
        """Give the module of a stage. UsageError when there is none."""
        if not 0 <= stage_idx < self.num_stages:
            raise UsageError(f"Invalid stage index {stage_idx}: there are {self.num_stages} stages")
        stage: StageModule = getattr(self.split_gm, f"submod_pp_{stage_idx}")
        return stage

    def build_stage(
        self, stage_index: int, device: Any, group: ProcessGroup | None = None, checkpoint: str = "never"
    ) -> PipelineStage:
        """Give a stage for schedules. checkpoint: see PipelineStage."""
        return build_stage(self.get_stage_module(stage_index), stage_index, self._info, device, group, checkpoint)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run all stages here, one after the other."""
        value: Any = args
        for number, stage in enumerate(self.split_gm.children()):
            value = stage(*_as_arguments(value), **(kwargs if number == 0 else {}))
        return value

    def __repr__(self) -> str:
        stages = map(self.get_stage_module, range(self.num_stages))
        return f"<Pipe of {self.num_stages} stages: {', '.join('+'.join(stage.part_names) for stage in stages)}>"


def build_stage(
    stage_module: Module,
    stage_index: int,
    pipe_info: PipeInfo,
    device: Any,
    group: ProcessGroup | None = None,
    checkpoint: str = "never",
) -> PipelineStage:
    """Make a stage of a module that `pipeline` cut off, or of what wraps it. checkpoint: see PipelineStage."""
    tied: Mapping[str, str] = pipe_info.tied[stage_index] if pipe_info.tied else {}
    if tied and not isinstance(stage_module, StageModule):
        tied = _inside(stage_module, tied)
    return PipelineStage(
        stage_module,
        stage_index,
        pipe_info.num_stages,
        device,
        group=group,
        checkpoint=checkpoint,
        tied=tied,
        skip_keys=pipe_info.skip_keys,
    )


def _inside(wrapper: Module, tied: Mapping[str, str]) -> dict[str, str]:
    """The names that a stage's parameters have in what wraps its module."""
    for path, module in wrapper.named_modules():
        if isinstance(module, StageModule):
            return {f"{path}.{name}": key for name, key in tied.items()}
    return dict(tied)


def pipeline(
    module: Module,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: Mapping[str, SplitPoint] | None = None,
    split_policy: Callable[..., Any] | None = None,
) -> Pipe:
    """Cut a module into stages; weights stay the same objects, under the same names.

    Args:
        module: runs the parts that are cut apart in a row. They may be nested ("layers.4" in a Sequential or a
            ModuleList), and hand on tuples.
        mb_args: positional arguments of one micro-batch: the module is run on them, without recording and with its
            buffers and random numbers as before, to see that the parts run in a row, and that stages hand on what can
            be sent. A Sequential is not run.
        mb_kwargs: keyword arguments of the same, which the first part takes.
        split_spec: paths of parts, and whether to cut before or behind them.
        split_policy: not supported: it works on a tracer's graph.

    Raises: UsageError where the module does more than run its parts in a row: that needs a tracer. UsageTypeError for
        what no stage can hand on.
    """
    if not isinstance(module, Module):
        raise UsageTypeError(f"pipeline: module: expected a Module, got {type(module).__name__}")
    if not isinstance(mb_args, tuple | list):
        raise UsageTypeError(
            f"pipeline: mb_args: expected a tuple of one micro-batch's arguments, got {type(mb_args).__name__}"
        )
    if split_spec is not None and split_policy is not None:
        raise UsageError("Cannot specify both `split_spec` and `split_policy`. Please use only one of them.")
    if split_policy is not None or not split_spec:
        raise UsageError(f"pipeline: split_spec: expected paths to cut at, such as 'layers.4'; without them {_INSTEAD}")
    if not isinstance(split_spec, Mapping) or not all(isinstance(path, str) for path in split_spec):
        raise UsageTypeError(f"pipeline: split_spec: expected a dict of paths to SplitPoints, got {split_spec!r:.80}")
    for path in split_spec:
        _check_path(module, path)
    parts, expanded = _parts(module, tuple(split_spec))
    if any(type(each).forward is not Sequential.forward for _, each in expanded if not isinstance(each, ModuleList)):
        outputs = _check_row(module, parts, tuple(mb_args), mb_kwargs or {})
        ends = itertools.accumulate(len(chosen) for chosen in _cut(parts, split_spec))
        for end in [*ends][:-1]:  # on every rank, and before any of them waits for what cannot be sent
            values.check(outputs[end - 1], f"pipeline: the output of {parts[end - 1][0]}, behind which it is cut")
    for path, each in expanded:
        own = [*each._parameters, *each._buffers]
        if own:
            raise UsageError(
                f"pipeline: {path or 'the module'} has {own[0]!r} itself, in none of its parts; {_INSTEAD}"
            )
    stages = [StageModule(chosen) for chosen in _cut(parts, split_spec)]
    return Pipe(stages, PipeInfo(len(stages), _tied(module, stages), _skip_keys(parts)))


def _check_path(module: Module, path: str) -> None:
    holder = module
    for place, word in enumerate(path.split(".")):
        if word not in holder._modules or holder._modules[word] is None:
            here = ".".join(path.split(".")[: place + 1])
            raise UsageError(f"Specified target {path} referenced nonexistent module {here}")
        holder = holder._modules[word]  # type: ignore[assignment]


def _parts(module: Module, paths: tuple[str, ...]) -> tuple[list[tuple[str, Module]], list[tuple[str, Module]]]:
    """The parts in their order, and the modules that are taken apart for that."""
    parts: list[tuple[str, Module]] = []
    expanded = [("", module)]

    def visit(holder: Module, prefix: str) -> None:
        for name, child in holder._modules.items():
            if child is None:
                continue
            path = prefix + name
            if isinstance(child, ModuleList) or any(each.startswith(path + ".") for each in paths):
                expanded.append((path, child))
                visit(child, path + ".")
            else:
                parts.append((path, child))

    visit(module, "")
    return parts, expanded


def _cut(parts: Sequence[tuple[str, Module]], spec: Mapping[str, SplitPoint]) -> Iterator[list[tuple[str, Module]]]:
    begins = {0}
    for path, point in spec.items():
        if not isinstance(point, SplitPoint):
            raise UsageError(
                f"pipeline: split_spec[{path!r}]: Unknown split point type {point!r}; expected a SplitPoint"
            )
        within = [place for place, (name, _) in enumerate(parts) if name == path or name.startswith(path + ".")]
        begin = within[0] if point is SplitPoint.BEGINNING else within[-1] + 1
        if begin in (0, len(parts)):
            raise UsageError(f"pipeline: split_spec[{path!r}] cuts nothing off: there is no part on one side of it")
        begins.add(begin)
    places = [*sorted(begins), len(parts)]
    for begin, end in itertools.pairwise(places):
        yield list(parts[begin:end])


# --- the proof that parts run in a row ---


def _check_row(module: Module, parts: Sequence[tuple[str, Module]], args: tuple[Any, ...], kwargs: Any) -> list[Any]:
    """The output of each part. UsageError where they do not run in a row."""
    calls: list[tuple[str, Any, Any, Any]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_grad())
        stack.enter_context(rng.fork_rng())
        stack.enter_context(_buffers_kept(module))
        for path, part in parts:

            def note(_: Any, given: Any, named: Any, output: Any, path: str = path) -> None:
                calls.append((path, given, named, output))

            stack.callback(part.register_forward_hook(note, with_kwargs=True).remove)
        result = module(*args, **kwargs)
    before, named = args, kwargs
    for place, (path, _) in enumerate(parts):
        if place >= len(calls) or calls[place][0] != path:
            there = calls[place][0] if place < len(calls) else "the end"
            raise UsageError(f"pipeline: the module runs {there} where {path} was expected next; {_INSTEAD}")
        _, given, given_named, output = calls[place]
        if not _same(given, before) or set(given_named) != set(named):
            other = parts[place - 1][0] if place else "the module's arguments"
            raise UsageError(f"pipeline: {path} is not given just the output of {other}; {_INSTEAD}")
        before, named = _as_arguments(output), {}
    if len(calls) > len(parts):
        raise UsageError(f"pipeline: the module runs {calls[len(parts)][0]} once more at its end; {_INSTEAD}")
    if not _same(_as_arguments(result), before):
        raise UsageError(f"pipeline: the module returns something else than {parts[-1][0]} does; {_INSTEAD}")
    return [output for _, _, _, output in calls]


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _as_arguments(value: Any) -> tuple[Any, ...]:
    return tuple(value) if type(value) in (tuple, list) else (value,)


@contextlib.contextmanager
def _buffers_kept(module: Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


# --- what several stages have ---


def _tied(module: Module, stages: Sequence[Module]) -> tuple[dict[str, str], ...]:
    names = {id(param): name for name, param in module.named_parameters()}
    having: dict[int, set[int]] = {}
    for number, stage in enumerate(stages):
        for param in stage.parameters():
            having.setdefault(id(param), set()).add(number)
    return tuple(
        {name: names[id(param)] for name, param in stage.named_parameters() if len(having[id(param)]) > 1}
        for stage in stages
    )


def _skip_keys(parts: Sequence[tuple[str, Module]]) -> dict[SkipName, str]:
    """A name for each skip tensor, the same in every process: namespaces are counted as they come."""
    spaces: dict[Any, int] = {}
    keys: dict[SkipName, str] = {}
    for path, part in parts:
        for _, layer in skippables_of(part, path):
            for name in (*layer.poppable(), *layer.stashable()):
                if name.namespace is None:
                    keys[name] = name.name
                else:
                    keys[name] = f"{name.name}#{spaces.setdefault(name.namespace, len(spaces))}"
    return keys
