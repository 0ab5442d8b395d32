"""The state of a sharded module as that of a plain one: out, whole or sliced, and in, from either."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import resilin.distributed as dist
from resilin.checkpoint import sliced as slices
from resilin.checkpoint.sliced import Sliced, Slices
from resilin.core import dtype as dtypes
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError
from resilin.nn import Module
from resilin.nn.modules.state import IncompatibleKeys
from resilin.zero.sharded.flatten import gathered_whole
from resilin.zero.sharded.unit import Unit

Place = tuple[Unit, int]


def _tree(module: Module) -> dict[str, Any]:
    """The module's state with the parameters themselves, which may be away; hooks of modules have run."""
    return module.state_dict(keep_vars=True)


def _places(units: Sequence[Unit]) -> dict[int, Place]:
    return {id(param): (unit, number) for unit in units for number, param in enumerate(unit.params)}


def whole(
    module: Module, units: Sequence[Unit], group: dist.ProcessGroup | None, prefix: str, rank0_only: bool
) -> dict[str, Any]:
    """Copies of all tensors, on every rank or on rank 0."""
    found: dict[int, Tensor] = {}
    here = not rank0_only or units[0].rank == 0
    for unit in units:
        row = gathered_whole(unit, group) if not rank0_only or group is None else _on_rank_0(unit, group)
        if here:
            for param, array in zip(unit.params, unit.views(row), strict=True):
                found[id(param)] = wrap(array.copy(), unit.home_dev)
    tree = _tree(module)
    result: dict[str, Any] = type(tree)()
    if hasattr(tree, "_metadata"):
        result._metadata = OrderedDict((prefix + path, about) for path, about in tree._metadata.items())  # type: ignore[attr-defined]
    for name, value in tree.items() if here else ():
        result[prefix + name] = found[id(value)] if id(value) in found else _copy(value)
    return result


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _on_rank_0(unit: Unit, group: dist.ProcessGroup) -> Any:
    whole = unit.home_dev.xp.empty(unit.length, unit.dtype) if group.rank() == 0 else None
    dist.gather_single(
        unit.tensor(unit.shard, home=True),
        None if whole is None else unit.tensor(whole, home=True),
        group_dst=0,
        group=group,
    )
    return whole


def sliced(module: Module, units: Sequence[Unit]) -> dict[str, Any]:
    """This rank's ranges of the parameters, and all else as it is."""
    found: dict[int, Sliced] = {}  # one for all names of a parameter
    for unit in units:
        dtype = dtypes.from_numpy(unit.dtype)
        for param, shape, piece in zip(unit.params, unit.shapes, unit.pieces, strict=True):
            found[id(param)] = Sliced(shape, dtype, piece.start, piece.detach())
    result: dict[str, Any] = {}
    for name, value in _tree(module).items():
        if id(value) in found:
            result[name] = found[id(value)]
        else:
            result[name] = value.detach() if isinstance(value, Tensor) else value
    return result


def load(module: Module, units: Sequence[Unit], state: Mapping[str, Any], strict: bool) -> IncompatibleKeys:
    """Copy this rank's ranges, and the rest, or nothing."""
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict: expected a mapping of names to tensors, got {type(state).__name__}")
    places = _places(units)
    own = _tree(module)
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    problems = [f"Missing key(s) in state_dict: {_listed(missing)}. "] if missing and strict else []
    problems += [f"Unexpected key(s) in state_dict: {_listed(unexpected)}. "] if unexpected and strict else []
    for name, value in own.items():
        if name in state and isinstance(value, Tensor):
            problems += _problem(name, state[name], value, places.get(id(value)))
    if problems:
        raise UsageError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t" + "\n\t".join(problems))
    for name, value in own.items():
        if name in state and id(value) in places:
            unit, number = places[id(value)]
            copy_range(state[name], unit, number)
    rest = {name: state[name] for name, value in own.items() if name in state and id(value) not in places}
    module.load_state_dict(rest, strict=False)
    return IncompatibleKeys(missing, unexpected)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _problem(name: str, given: Any, own: Tensor, place: Place | None) -> list[str]:
    whole = isinstance(given, Tensor)
    if not whole and (place is None or not isinstance(given, Slices)):
        return [f'While copying the parameter named "{name}", expected a Tensor, got {type(given).__name__}']
    if tuple(given.shape) != tuple(own.shape):
        return [
            f"size mismatch for {name}: copying a param with shape {tuple(given.shape)} from checkpoint, "
            f"the shape in current model is {tuple(own.shape)}."
        ]
    if whole or place is None:
        return []
    piece = place[0].pieces[place[1]]
    start, stop = piece.start, piece.start + piece.numel()
    if piece.numel() and not given.start <= start <= stop <= given.stop:
        return [f"{name}: elements [{start}, {stop}) are needed here, [{given.start}, {given.stop}) are given."]
    return []


def copy_range(given: Any, unit: Unit, number: int) -> None:
    """Copy what piece `number` of `unit` holds out of a whole tensor, or slices of one."""
    piece = unit.pieces[number]
    if not piece.numel():
        return
    with no_grad():
        found = slices.part(given, piece.start, piece.start + piece.numel())
        piece.copy_(found.to(unit.home_dev))
