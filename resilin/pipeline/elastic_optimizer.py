"""What an optimizer of stages' parameters remembers: divided as the stages are, and whole for those who save it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.optim import LBFGS, Optimizer
from resilin.pipeline import stage_states
from resilin.pipeline.elastic_state import StageOptimizerContent, StagesContent, StageTensors
from resilin.resharding.survivor import Survivor, hand_over

State = dict[str, Any]


class DividesOptimizers(Protocol):
    """The pipeline, as this file sees it."""

    def optimizer_state(self, optimizer: Optimizer) -> StageOptimizerState:
        """See ElasticPipeline."""


class Dividing:
    """What a parameter says of optimizers that have it (`dist.reconfigurable.divided`)."""

    def __init__(self, owner: weakref.ref[DividesOptimizers]) -> None:
        self._owner = owner

    def __call__(self, optimizer: Optimizer) -> StageOptimizerState:
        owner = self._owner()
        if owner is None:
            raise UsageError("a parameter of a pipeline's stage: the ElasticPipeline that it is of is gone")
        return owner.optimizer_state(optimizer)

    def __deepcopy__(self, memo: Any) -> Dividing:
        return Dividing(self._owner)


class StageOptimizerState:
    """The state of `optimizer`, made of `ElasticPipeline.parameters()`; it has the form that it has without a pipeline.

    Steps of the optimizer tell the pipeline's second copies of what they write.
    """

    def __init__(self, optimizer: Optimizer, tensors: StageTensors, stages: StagesContent, module: Survivor) -> None:
        if isinstance(optimizer, LBFGS):
            raise UsageError(
                "ElasticPipeline: LBFGS makes its direction of dot products over all parameters, of which a rank has "
                "those of its stages only; use another optimizer"
            )
        self.optimizer = optimizer
        self._tensors, self._stages, self._module = tensors, stages, module
        self.reconfigurable = Survivor(StageOptimizerContent(optimizer, tensors, stages))
        optimizer.register_step_pre_hook(lambda *_: self._before())
        optimizer.register_step_post_hook(lambda *_: self._after())

    def _before(self) -> None:
        if (self._module.group is None) != (self.reconfigurable.group is None):
            raise UsageError(
                "ElasticPipeline: inside elastic.run the pipeline and its optimizer live on together; give both to "
                "elastic.State(model=..., optimizer=...)"
            )
        if self._module.group is not None:
            self._module.before_update()
            self.reconfigurable.before_update()
        self._stages.end_step()

    def _after(self) -> None:
        if self._module.group is not None:
            hand_over([self._module, self.reconfigurable])

    # --- out ---

    def _numbers(self) -> dict[int, int]:
        """The number that a parameter has in the optimizer -> the one that it has in the pipeline."""
        known = {id(tensor): number for number, tensor in enumerate(self._tensors.parameters)}
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        return {place: known[id(param)] for place, param in enumerate(params) if id(param) in known}

    def state_dict(self) -> State:
        """Give the whole state on every rank, in copies. All ranks call it."""
        return self._gathered(lambda value, number: value)

    def sharded_state_dict(self) -> State:
        """Give the same with tensors of a parameter's shape as `checkpoint.Sliced`, empty where they are not here."""

        mine = frozenset(self._stages.stages)

        def cut(value: Any, number: int) -> Any:
            like = self._tensors.parameters[number]
            if not isinstance(value, Tensor) or value.shape != like.shape:
                return value
            return stage_states.cut(value, value, bool(self._tensors.users(number) & mine))

        return self._gathered(cut)

    def _gathered(self, change: Callable[[Any, int], Any]) -> State:
        found = self.optimizer.state_dict()
        group = self._module.group or (dist.default_group() if dist.is_initialized() else None)
        size, rank = (1, 0) if group is None else (group.size(), group.rank())
        placement = self._stages.placement(size)
        state: dict[int, Any] = {}
        for place, number in self._numbers().items():
            owner = placement.holders(min(self._tensors.users(number)))[0] if size > 1 else 0
            entry = _plain(found["state"].get(place)) if rank == owner else None
            if size > 1:
                box = [entry]
                dist.broadcast_object_list(box, group_src=owner, group=group)
                entry = box[0]
            if entry is not None:
                state[place] = {name: change(_tensor(value), number) for name, value in entry.items()}
        return {"state": state, "param_groups": copy.deepcopy(found["param_groups"])}

    # --- in ---

    def check_loadable(self, state_dict: Mapping[str, Any]) -> None:
        """Raise what `load_state_dict` raises for a state that does not fit, before anything is changed."""
        self.optimizer.check_loadable(state_dict)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, whole or sliced. All ranks call it. What the optimizer refuses is not loaded at all."""
        self.check_loadable(state_dict)
        here = {each.number for each in self._tensors.held(self._stages.stages)}
        numbers = self._numbers()
        state = {
            place: {name: _whole(value) for name, value in entry.items()}
            for place, entry in state_dict["state"].items()
            if numbers.get(place) in here
        }
        self.reconfigurable.before_update(overwritten=True)
        self.optimizer.load_state_dict({**state_dict, "state": state})
        hand_over([self.reconfigurable])

    load_sharded_state_dict = load_state_dict


def _plain(entry: Any) -> Any:
    """An entry with arrays in place of tensors."""
    if entry is None:
        return None
    return {
        name: ("tensor", value._array) if isinstance(value, Tensor) else ("value", value)
        for name, value in entry.items()
    }


def _tensor(told: tuple[str, Any]) -> Any:
    kind, value = told
    return Tensor._wrap(value.copy()) if kind == "tensor" else value


def _whole(value: Any) -> Any:
    if isinstance(value, Tensor) or not hasattr(value, "part"):
        return value
    count = 1
    for length in value.shape:
        count *= length
    return value.part(0, count).reshape(value.shape)
