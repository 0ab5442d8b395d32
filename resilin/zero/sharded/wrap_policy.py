"""Which parameters of a module are gathered together: its units. Reads the tree of modules, moves no memory.

A *unit* is what stage 3 gathers before it is used and frees after it: the parameters below one module, without those of
units inside of it. A parameter that several units share (tied embeddings) is a unit of its own, gathered for each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilin.errors import UsageError, UsageTypeError
from resilin.nn import Module, ModuleDict, ModuleList, Parameter, Sequential

Units = Callable[[Module], bool] | Collection[Any] | None

_LISTS = (ModuleList, ModuleDict)  # they have no forward: their elements are what is called


@dataclass
class Members:
    """The parameters of one unit.

    name:    the path of the first module that the unit belongs to; "" is the root.
    named:   parameters and their names in the root, in order of registration.
    modules: the modules whose forward uses them; the root is not among them: what it owns is gathered when it is read.
    """

    name: str
    named: list[tuple[str, Parameter]] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)


def choose(root: Module, units: Units) -> list[Members]:
    """The units of `root`, in order of registration of their first parameters; one dtype, device and `requires_grad` in
    each.

    units: None: each child that has parameters, with the elements of lists and of Sequentials in the place of these,
    and within them the elements of each ModuleList or ModuleDict. Else a function that says of a module whether it is
    a unit, or a collection of modules and classes of modules; an empty one makes `root` the only unit.
    """
    chosen = _chosen(root, units)
    paths = {id(module): path for path, module in root.named_modules()}
    owners: dict[int, list[Module]] = {}
    names: dict[int, tuple[str, Parameter]] = {}
    for owner, name, param in _owned(root, root, "", chosen):
        names.setdefault(id(param), (name, param))
        sharing = owners.setdefault(id(param), [])
        if owner not in sharing:
            sharing.append(owner)
    found: dict[Any, Members] = {}
    for key, (name, param) in names.items():
        sharing = owners[key]
        kind = (param._array.dtype.name, str(param._dev), param._rg)
        together = (tuple(map(id, sharing)), kind)
        if together not in found:
            used = [module for module in sharing if module is not root]
            found[together] = Members(paths[id(sharing[0])], modules=used)
        found[together].named.append((name, param))
    return list(found.values())


def buckets(root: Module, cap_bytes: int) -> list[Members]:
    """All parameters of `root` in order, cut where `cap_bytes` are together: the units of stage 2, which frees none."""
    found: list[Members] = []
    open_: dict[Any, tuple[Members, int]] = {}
    for name, param in root.named_parameters():
        kind = (param._array.dtype.name, str(param._dev), param._rg)
        members, held = open_.get(kind, (None, cap_bytes))
        if members is None or held >= cap_bytes:
            members, held = Members(name), 0
            found.append(members)
        members.named.append((name, param))
        open_[kind] = (members, held + param._array.nbytes)
    return found


def _chosen(root: Module, units: Units) -> set[int]:
    if units is None:
        return {id(module) for module in _by_default(root)}
    if callable(units) and not isinstance(units, type):
        return {id(module) for module in root.modules() if module is not root and units(module)}
    if not isinstance(units, Collection) or isinstance(units, str):
        raise UsageTypeError(
            "zero.shard: units must be a function of a module, or a collection of modules or classes of modules, got "
            f"{units!r:.80}"
        )
    classes = tuple(unit for unit in units if isinstance(unit, type))
    named = {id(unit) for unit in units if isinstance(unit, Module)}
    inside = {id(module) for module in root.modules()}
    for unit in units:
        if not isinstance(unit, type | Module):
            raise UsageTypeError(f"zero.shard: a unit must be a module or a class of modules, got {unit!r:.80}")
        if isinstance(unit, Module) and id(unit) not in inside:
            raise UsageError(f"zero.shard: unit {type(unit).__name__} is no part of the module that is sharded")
    found = {
        id(module)
        for module in root.modules()
        if module is not root and (id(module) in named or isinstance(module, classes))
    }
    if units and not found:
        raise UsageError(
            f"zero.shard: no module inside of {type(root).__name__} is one of units={units!r:.80}, so all parameters "
            "would be gathered at once; units=[] says that they shall"
        )
    return found


def _by_default(module: Module) -> Iterator[Module]:
    for child in _elements(module, (*_LISTS, Sequential)):
        yield child
        yield from _listed(child)


def _elements(module: Module, opened: Sequence[type[Module]]) -> Iterator[Module]:
    """The children of `module`, with those of containers in their place."""
    for child in module.children():
        if isinstance(child, tuple(opened)):
            yield from _elements(child, opened)
        else:
            yield child


def _listed(module: Module) -> Iterator[Module]:
    """The elements of lists anywhere below `module`."""
    for child in module.children():
        if isinstance(child, _LISTS):
            for element in _elements(child, _LISTS):
                yield element
                yield from _listed(element)
        else:
            yield from _listed(child)


def _owned(owner: Module, module: Module, prefix: str, chosen: set[int]) -> Iterator[tuple[Module, str, Parameter]]:
    """(nearest unit above, name, parameter) of each place of a parameter below `module`."""
    owner = module if id(module) in chosen else owner
    for name, param in module._parameters.items():
        if param is not None:
            yield owner, prefix + name, param
    for name, child in module._modules.items():
        if child is not None:
            yield from _owned(owner, child, f"{prefix}{name}.", chosen)
