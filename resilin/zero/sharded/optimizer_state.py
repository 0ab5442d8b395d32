"""The state of an optimizer of pieces as that of an optimizer of whole parameters: out and in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import resilin.distributed as dist
from resilin.checkpoint import sliced
from resilin.checkpoint.sliced import Sliced
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError, UsageTypeError
from resilin.optim import Optimizer, state_checks
from resilin.optim.numpy_state import with_tensors
from resilin.resharding.survivor import Survivor, hand_over
from resilin.zero.sharded.flatten import gathered_whole
from resilin.zero.sharded.unit import ShardedParameter, Unit

State = dict[str, Any]
_LOAD = "OptimizerState.load_state_dict"


@runtime_checkable
class Sharded(Protocol):
    """A sharded module, as this file sees it."""

    @property
    def units(self) -> Sequence[Unit]:
        """What is gathered together."""

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks; None for one without any."""

    def follower(self, optimizer: Optimizer) -> Survivor:
        """What lives on of `optimizer` when the world changes."""

    def compare_groups(self, optimizer: Optimizer) -> None:
        """CollectiveMismatch, on all ranks, when `optimizer` has parameters in other groups on some. A collective."""


class OptimizerState:
    """What `optimizer`, made of a sharded module's pieces, remembers, in the form that it has without sharding.

        state = zero.OptimizerState(model, optimizer)
        whole = state.state_dict()         # loads into optim.AdamW(net.parameters()), which has the same groups
        checkpoint.save(path, {"model": model, "optimizer": state})

    Parameters have the numbers that their pieces have in `optimizer`: the order of `named_parameters()` is the
    module's, so groups made by name are alike. Tensors as long as the piece are cut as the parameter is; others
    (`step`) are equal on all ranks.

    Raises UsageError when a group holds anything but pieces of `model`.
    """

    def __init__(self, model: Sharded, optimizer: Optimizer) -> None:
        if not isinstance(model, Sharded) or not isinstance(optimizer, Optimizer):
            raise UsageTypeError(
                "OptimizerState: expected what zero.shard returned and an optimizer of its parameters(), got "
                f"{type(model).__name__} and {type(optimizer).__name__}"
            )
        self.model, self.optimizer = model, optimizer
        self._places = {id(p): (unit, n) for unit in model.units for n, p in enumerate(unit.pieces)}
        for piece in self._pieces():
            if id(piece) not in self._places:
                raise UsageError(
                    f"OptimizerState: the optimizer holds a tensor of shape {list(piece.shape)} that is no piece of "
                    "the model; make it of model.parameters()"
                )
        self.reconfigurable = model.follower(optimizer)

    def _pieces(self) -> list[ShardedParameter]:
        return [piece for group in self.optimizer.param_groups for piece in group["params"]]

    # ---- out -------------------------------------------------------------------------------------------------------

    def state_dict(self, rank0_only: bool = False) -> State:
        """The whole state on every rank, or on rank 0 alone (elsewhere {}): copies. All ranks call it.

        Raises CollectiveMismatch on all ranks when they have parameters in other groups.
        """
        self.model.compare_groups(self.optimizer)
        whole = self._gathered(rank0_only)
        if rank0_only and self.model.units[0].rank:
            return {}
        return self._packed(lambda piece, name, value: whole[id(piece), name])

    def sharded_state_dict(self) -> State:
        """This rank's ranges as `checkpoint.Sliced`, sharing the optimizer's memory; no communication."""
        return self._packed(
            lambda piece, name, value: Sliced(piece.logical_shape, value.dtype, piece.start, value.detach())
        )

    def _packed(self, divided: Callable[[ShardedParameter, str, Tensor], Any]) -> State:
        found = self.optimizer.state_dict()
        pieces = self._pieces()
        state = {}
        for number, entry in found["state"].items():
            piece = pieces[number] if isinstance(number, int) else None
            state[number] = {
                name: divided(piece, name, value)
                if piece is not None and self._is_divided(piece, name, value)
                else copy.deepcopy(value)
                for name, value in entry.items()
            }
        return {"state": state, "param_groups": copy.deepcopy(found["param_groups"])}

    def _is_divided(self, piece: ShardedParameter, name: str, value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and name not in self.optimizer._counters
            and tuple(value.shape) == (piece.numel(),)
        )

    def _gathered(self, rank0_only: bool) -> dict[tuple[int, str], Tensor]:
        """Whole tensors by piece and name; one collective for each unit and name."""
        found: dict[tuple[int, str], Tensor] = {}
        for unit in self.model.units:
            entries = [self.optimizer.state.get(piece, {}) for piece in unit.pieces]
            names = {
                name: value
                for piece, entry in zip(unit.pieces, entries, strict=True)
                for name, value in entry.items()
                if self._is_divided(piece, name, value)
            }
            for name in sorted(names):
                row = unit.home_dev.xp.zeros(unit.share, names[name]._array.dtype)
                for part, entry in zip(unit.spread(row), entries, strict=True):
                    if name in entry:
                        part[...] = entry[name]._array
                whole = gathered_whole(unit, self.model.group, row)
                if rank0_only and unit.rank:
                    continue
                for piece, array in zip(unit.pieces, unit.views(whole), strict=True):
                    found[id(piece), name] = wrap(array.copy(), unit.home_dev)
        return found

    # ---- in --------------------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of an optimizer of whole parameters, or what `sharded_state_dict` gave on any ranks.

        All ranks load one that has the same entries: after the next step they compare them (CollectiveMismatch).
        Raises UsageError when groups do not match in size, the state is of another kind of optimizer, or it does not
        fit its parameters: nothing is loaded.
        """
        self.check_loadable(state_dict)
        state_dict = with_tensors(self.optimizer, state_dict)
        local = self._changed(state_dict, self._own)
        self.reconfigurable.before_update(overwritten=True)
        self.optimizer.load_state_dict({**state_dict, "state": local})
        hand_over([self.reconfigurable])

    load_sharded_state_dict = load_state_dict

    def check_loadable(self, state_dict: Mapping[str, Any]) -> None:
        """What `load_state_dict` raises for a state that does not fit, before anything is changed; no communication.

        For its tensors anything that has a shape will do: checkpoints ask before they read.
        """
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
            raise UsageTypeError(f"{_LOAD}: expected what an optimizer's state_dict() gave")
        state_checks.check_tree(_LOAD, state_dict)
        state_checks.check_keys(_LOAD, state_dict)
        kept = self._changed(state_dict, lambda piece, name, value: piece if self._is_cut(name, value) else value)
        self.optimizer.check_loadable({**state_dict, "state": kept})  # its kind, groups and names
        for number, piece in self._by_number(state_dict).items():
            self._check_shapes(piece, number, state_dict["state"].get(number))

    def _check_shapes(self, piece: ShardedParameter, number: Any, entry: Any) -> None:
        for name, value in entry.items() if isinstance(entry, Mapping) else ():
            if self._is_cut(name, value) and tuple(value.shape) != piece.logical_shape:
                unit, place = self._places[id(piece)]
                raise UsageError(
                    f"{_LOAD}: {name} of parameter {number} has shape {list(value.shape)}, {unit.names[place]} here "
                    f"has {list(piece.logical_shape)}"
                )

    def _changed(self, state_dict: Mapping[str, Any], change: Callable[[ShardedParameter, str, Any], Any]) -> State:
        """The state, with what `change(piece, name, value)` makes of the entries of parameters."""
        by_number = self._by_number(state_dict)
        return {
            number: {name: change(by_number[number], name, value) for name, value in entry.items()}
            if number in by_number and isinstance(entry, Mapping)
            else entry
            for number, entry in state_dict["state"].items()
        }

    def _by_number(self, state_dict: Mapping[str, Any]) -> dict[Any, ShardedParameter]:
        """The pieces by the numbers that their parameters have in a state."""
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        return dict(zip(saved, self._pieces(), strict=False))  # that there are as many is said with the groups

    def _is_cut(self, name: str, value: Any) -> bool:
        """Whether `value`, the entry `name` of a saved state, is as long as its parameter."""
        return name not in self.optimizer._counters and hasattr(value, "shape")

    def _own(self, piece: ShardedParameter, name: str, value: Any) -> Any:
        """What this rank holds of one value."""
        if not self._is_cut(name, value):
            return value
        if not piece.numel():
            return wrap(piece._dev.xp.empty(0, value.dtype.np), piece._dev)
        with no_grad():
            return sliced.part(value, piece.start, piece.start + piece.numel()).to(piece._dev)
