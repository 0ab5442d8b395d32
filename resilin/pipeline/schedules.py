"""Schedules: who computes which micro-batch when. Each is a plan (`plan/`) that one runtime (`step.py`) plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.pipeline.plan import csv
from resilin.pipeline.plan.action import Action, ComputationType
from resilin.pipeline.plan.communication import add_communication
from resilin.pipeline.plan.gradient_order import in_order
from resilin.pipeline.plan.plan import from_actions
from resilin.pipeline.plan.validate import validate
from resilin.pipeline.schedule_base import PipelineSchedule
from resilin.pipeline.stage import PipelineStage

_Action, _ComputationType = Action, ComputationType  # by these names programs that write plans import them


class PipelineScheduleSingle(PipelineSchedule):
    """A schedule with one stage on each rank."""

    def __init__(
        self,
        stage: PipelineStage,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: tuple[Any, ...] | None = None,
        kwargs_chunk_spec: dict[str, Any] | None = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
    ) -> None:
        """Make a schedule.

        Args:
            stage: this rank's.
            n_microbatches: how many micro-batches a batch is split into.
            loss_fn: gives the loss of (output, target) on the last stage; every rank gives one, so that all know that
                there is a backward. None: forward only.
            args_chunk_spec: how positional arguments are split, a TensorChunkSpec for each.
            kwargs_chunk_spec: how keyword arguments are.
            output_merge_spec: how the outputs of micro-batches are joined.
            scale_grads: whether gradients are divided by the number of micro-batches: right for a loss that is a mean.

        Raises: UsageError for numbers that the schedule does not take.
        """
        super().__init__(
            [stage], n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads
        )
        self._stage = stage


class PipelineScheduleMulti(PipelineSchedule):
    """A schedule with several stages on each rank."""

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: tuple[Any, ...] | None = None,
        kwargs_chunk_spec: dict[str, Any] | None = None,
        output_merge_spec: Any = None,
        use_full_backward: bool | None = None,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
    ) -> None:
        """Make a schedule.

        Args:
            stages: this rank's, as `stage_indices` says.
            n_microbatches: how many micro-batches a batch is split into.
            loss_fn: see PipelineScheduleSingle.
            args_chunk_spec: see there.
            kwargs_chunk_spec: see there.
            output_merge_spec: see there.
            use_full_backward: accepted; plans say it.
            scale_grads: see PipelineScheduleSingle.
            backward_requires_autograd: accepted.

        Raises: UsageError for numbers that the schedule does not take, and for stages that belong elsewhere.
        """
        super().__init__(
            stages, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads
        )

    def _dump_csv(
        self, filename: str | Path, format: Literal["compute_only", "compute_comms"] = "compute_only"
    ) -> None:
        """Write the plan, one line for each rank; with compute_comms what is sent and received, too."""
        _check_format(format)
        if self._plan is None:
            raise UsageError(f"{type(self).__name__}: it has no plan yet")
        plan = self._plan.computations()
        csv.write(plan if format == "compute_only" else add_communication(plan), filename)

    def _load_csv(
        self, filename: str | Path, format: Literal["compute_only", "compute_comms"] = "compute_only"
    ) -> None:
        """Play the plan of a file instead, once it is proved complete and free of deadlock.

        A gradient that comes before those of earlier micro-batches is held back until they are summed. UsageError says
        what is wrong with a plan, and for one of other stages, ranks or micro-batches.
        """
        _check_format(format)
        plan = csv.read(filename)
        if plan.has_communication != (format == "compute_comms"):
            there = "has" if plan.has_communication else "lacks"
            raise UsageError(f"{filename}: format {format!r}: the plan {there} what is sent and received")
        validate(plan, in_order=False)
        self._set_plan(in_order(plan.computations()))

    def set_plan(self, actions: Mapping[int, Sequence[Action | None]]) -> None:
        """Play a plan of one's own: actions by rank. UsageError as of `_load_csv`."""
        plan = from_actions(actions)
        validate(plan, in_order=False)
        self._set_plan(in_order(plan.computations()))


class ScheduleGPipe(PipelineScheduleSingle):
    """All forwards, then all backwards: every rank keeps all micro-batches."""

    name = "GPipe"


class Schedule1F1B(PipelineScheduleSingle):
    """Forwards and backwards by turns: a rank keeps at most as many micro-batches as there are ranks."""

    name = "1F1B"


class ScheduleLoopedBFS(PipelineScheduleMulti):
    """Several stages on each rank, in a loop; all forwards of a stage before those of the rank's next one."""

    name = "LoopedBFS"


class ScheduleInterleaved1F1B(PipelineScheduleMulti):
    """Several stages on each rank, in a loop; forwards and backwards by turns."""

    name = "Interleaved1F1B"


class ScheduleInterleavedZeroBubble(PipelineScheduleMulti):
    """Interleaved, with weight gradients put where a rank would wait."""

    name = "InterleavedZeroBubble"


class ScheduleZBVZeroBubble(PipelineScheduleMulti):
    """Two stages on each rank, in a V: the first and the last are on rank 0. Weight gradients fill the waits."""

    name = "ZBVZeroBubble"


class ScheduleDualPipeV(PipelineScheduleMulti):
    """Two stages on each rank, in a V, with forwards and backwards of different micro-batches side by side."""

    name = "DualPipeV"


def _check_format(format: str) -> None:
    if format not in ("compute_only", "compute_comms"):
        raise UsageError(f'format: expected "compute_only" or "compute_comms", got {format!r}')


_CLASSES: tuple[type[PipelineSchedule], ...] = (
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleGPipe,
    ScheduleLoopedBFS,
    ScheduleInterleavedZeroBubble,
    PipelineScheduleSingle,
    PipelineScheduleMulti,
    ScheduleZBVZeroBubble,
    ScheduleDualPipeV,
)


def get_schedule_class(schedule_name: str) -> Any:
    """Give the class of a schedule by its name, in upper or lower case. UsageError names those there are."""
    known = {(cls.name or cls.__name__): cls for cls in _CLASSES}
    for name, cls in known.items():
        if name.lower() == schedule_name.lower():
            return cls
    raise UsageError(f"Unknown schedule name '{schedule_name}'. The valid options are {list(known)}")
