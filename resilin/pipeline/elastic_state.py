"""What a pipeline divides among the ranks of any world, for `resharding.Survivor`: each rank has its stages' tensors.

    step        forwards and backwards ─► optimizer.step: both copies ─► updated ─► given to the buddy ─► barrier
    a new world stages placed anew ─► their tensors from who has them, or kept them ─► memory of all others is freed

Buffers (batch norm's statistics) are divided as parameters are, under numbers that follow theirs. Forwards write them,
so what they were before the step is kept until the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core.machine import memory
from resilin.core.tensor import Tensor
from resilin.distributed.api.reconfigurable import Lot, Slice, Version
from resilin.optim import Optimizer
from resilin.pipeline.elastic_placement import ElasticPlacement
from resilin.resharding import state_slices
from resilin.resharding.state_slices import Piece

_VALUE = "value"  # what slices of a parameter or buffer are called, as an optimizer's are "exp_avg"
_ADVICE = "register the pipeline outside of elastic.run only, or keep its stages on the CPU"


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """See `state_slices.HeldSlices`: a tensor of a stage is held whole."""

    number: int
    proxy: Tensor
    piece: Piece
    total: int
    whole: bool = True


class StageTensors:
    """All parameters and buffers by number, and which stages use each."""

    def __init__(
        self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], users: Sequence[frozenset[int]]
    ) -> None:
        self.parameters, self.buffers = list(parameters), list(buffers)
        self.all = [*parameters, *buffers]
        self._users = users
        self._held = [
            HeldTensor(number, tensor, Piece(number, 0, tensor.numel()), tensor.numel())
            for number, tensor in enumerate(self.all)
        ]

    def held(self, stages: Sequence[int]) -> list[HeldTensor]:
        """What a rank with these stages holds."""
        mine = frozenset(stages)
        return [each for each in self._held if self._users[each.number] & mine]

    def users(self, number: int) -> frozenset[int]:
        """The stages that use a tensor."""
        return self._users[number]

    def numbers(self, stages: Sequence[int]) -> dict[int, range]:
        """The same, as `state_slices.ranges` takes it."""
        return {each.number: range(each.total) for each in self.held(stages)}


class _Divided:
    """What both contents have: tensors, of which a rank has those of its stages.

    placement: where the stages are in a world of a size.
    """

    def __init__(self, tensors: StageTensors, placement: Callable[[int], ElasticPlacement]) -> None:
        self._tensors, self.placement = tensors, placement
        self.stages: tuple[int, ...] = self.placement(1).stages_of(0)
        """Those whose tensors this rank has; before the first world all."""

    def shared(self) -> Mapping[str, Tensor]:
        """See `Content`: nothing is."""
        return {}

    def written_by(self, rank: int) -> Mapping[str, range]:
        """See `Content`: nothing is."""
        return {}

    def wanted(self, totals: Mapping[str, int], rank: int, world_size: int) -> Mapping[str, range]:
        """See `Content`."""
        mine = self._tensors.numbers(self.placement(world_size).stages_of(rank))
        return state_slices.ranges(mine, totals, frozenset(mine))

    def _move(self, group: dist.ProcessGroup) -> None:
        self.stages = self.placement(group.size()).stages_of(group.rank())


class StagesContent(_Divided):
    """The values of the stages' parameters and buffers."""

    def __init__(self, tensors: StageTensors, placement: Callable[[int], ElasticPlacement]) -> None:
        super().__init__(tensors, placement)
        self.steps = 0
        """How many steps were made: random numbers depend on it."""
        self._before: dict[int, Any] | None = None  # buffers by number, before the step that is under way

    def begin_step(self) -> None:
        """Forwards are about to write buffers."""
        if self._before is None:
            first = len(self._tensors.parameters)
            held = self._tensors.held(self.stages)
            self._before = {each.number: each.proxy._array.copy() for each in held if each.number >= first}

    def buffers_before(self) -> dict[int, Any]:
        """Buffers of this rank's stages, by their id: what they were before the step that is under way."""
        return {id(self._tensors.all[number]): array for number, array in (self._before or {}).items()}

    def end_step(self) -> None:
        """Buffers are what they are to be after the step."""
        self._before = None

    def common_state(self) -> Any:
        """See `Content`."""
        return {"steps": self.steps}

    def load_common_state(self, state: Any) -> None:
        """See `Content`."""
        self.steps = int(state["steps"])

    def extra_state(self) -> Any:
        """See `Content`: the module that was cut counts no steps."""
        return self.common_state()

    def load_extra_state(self, state: Any) -> None:
        """See `Content`."""
        self.load_common_state(state)

    def own(self, version: Version) -> Lot:
        """See `Content`."""
        held, before = self._tensors.held(self.stages), self._before or {}
        slices = {
            f"{each.number}.{_VALUE}": Slice(
                0, each.total, np.ascontiguousarray(before.get(each.number, each.proxy._array)).reshape(-1)
            )
            for each in held
            if each.total
        }
        return Lot(version, slices, {}, {str(each.number): range(each.total) for each in held})

    def writes(self) -> Sequence[int]:
        """Those to parameters: buffers are written by forwards."""
        first = len(self._tensors.parameters)
        return [each.proxy._writes for each in self._tensors.held(self.stages) if each.number < first]

    def units(self) -> Mapping[str, int]:
        """All parameters and buffers."""
        return {str(number): tensor.numel() for number, tensor in enumerate(self._tensors.all)}

    def use(self, lot: Lot, group: dist.ProcessGroup) -> None:
        """See `Content`: memory of what is not here any more is freed."""
        for tensor in self._tensors.all:
            state_slices.check_on_host(tensor, _ADVICE)
        self._before = None
        self.place(group)
        for each in self._tensors.held(self.stages):
            one = lot.slices.get(f"{each.number}.{_VALUE}")
            if one is not None:  # what has no elements is not sent
                _become(each.proxy, one.array.reshape(each.proxy._array.shape))

    def place(self, group: dist.ProcessGroup) -> None:
        """Have this rank's stages in the world of `group`, with the values that are here; free the others' memory."""
        self._move(group)
        here = {each.number for each in self._tensors.held(self.stages)}
        freed = False
        for number, tensor in enumerate(self._tensors.all):
            tensor._grad, tensor._grad_slot = None, None
            if number not in here:
                freed |= any(tensor._array.strides)  # else it was elsewhere before, too
                tensor._array = np.broadcast_to(np.zeros((), tensor._array.dtype), tensor._array.shape)  # of no size
                tensor._bump()
        if freed:
            memory.empty_cache()  # stages elsewhere may be much larger than all that is computed here


class StageOptimizerContent(_Divided):
    """What an optimizer remembers of the stages' parameters."""

    def __init__(self, optimizer: Optimizer, tensors: StageTensors, stages: StagesContent) -> None:
        super().__init__(tensors, stages.placement)
        self._optimizer, self.stages = optimizer, stages.stages  # the module moves apart

    def _mine(self, stages: Sequence[int]) -> list[HeldTensor]:
        updated = {id(param) for group in self._optimizer.param_groups for param in group["params"]}
        return [each for each in self._tensors.held(stages) if id(each.proxy) in updated]

    def extra_state(self) -> Any:
        """See `Content`: nothing."""
        return None

    def load_extra_state(self, state: Any) -> None:
        """See `Content`: there is none."""
        assert state is None, state

    def common_state(self) -> Any:
        """The options of the groups."""
        return state_slices.common_options(self._optimizer.param_groups)

    def load_common_state(self, state: Any) -> None:
        """See `Content`."""
        state_slices.load_options(self._optimizer.param_groups, state)

    def own(self, version: Version) -> Lot:
        """See `Content`."""
        return state_slices.lot_of(self._mine(self.stages), self._optimizer, version)

    def writes(self) -> Sequence[int]:
        """See `Content`: what it would count is known to the optimizer alone."""
        return ()

    def units(self) -> Mapping[str, int]:
        """The parameters that it updates."""
        return {str(each.number): each.total for each in self._mine(self.placement(1).stages_of(0))}

    def use(self, lot: Lot, group: dist.ProcessGroup) -> None:
        """See `Content`."""
        self._move(group)
        state_slices.use(lot, self._mine(self.stages), self._optimizer)


def _become(tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
    """Have these elements. A tensor that has them stays as it is: a step that is gone on with has saved it."""
    if any(tensor._array.strides) and tensor._array.tobytes() == array.tobytes():
        return
    tensor._array = array
    tensor._bump()
