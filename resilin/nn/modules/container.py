"""Containers of modules and parameters."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Self, overload

from resilin.core.tensor import Parameter, Tensor
from resilin.nn.modules.module import Module
from resilin.nn.modules.parameter_dict import describe

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.nn import ParameterDict as ParameterDict


def _position(index: Any, length: int, owner: str) -> int:
    place = operator.index(index)
    if not -length <= place < length:
        raise IndexError(f"{owner}: index {place} is out of range for {length} entries")
    return place % length


class _Listing(Module):
    """Sub-modules named "0", "1", ..., in order. One may be None: it keeps its place and has no state."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.isdigit()]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._sliced(index)
        return next(islice(self, _position(index, len(self), type(self).__name__), None))

    def _sliced(self, index: slice) -> Self:
        return type(self)(list(self)[index])

    def __setitem__(self, index: int, module: Module | None) -> None:
        keys = list(self._modules)
        setattr(self, keys[_position(index, len(keys), type(self).__name__)], module)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        del modules[index if isinstance(index, slice) else _position(index, len(modules), type(self).__name__)]
        self._number(modules)

    def _number(self, modules: list[Module | None]) -> None:
        """Make `modules`, which have been checked, the entries."""
        self._modules = {str(place): module for place, module in enumerate(modules)}

    def append(self, module: Module | None) -> Self:
        """Add `module` at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module | None]) -> Self:
        """Add all `modules` at the end."""
        if not isinstance(modules, Iterable):
            raise TypeError(f"{type(self).__name__}.extend: expected an iterable, got {type(modules).__name__}")
        for module in list(modules):  # which may be this one
            self.append(module)
        return self

    def insert(self, index: int, module: Module | None) -> Self:
        """Put `module` before position `index`."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}.insert: expected a Module or None, got {type(module).__name__}")
        modules = list(self)
        modules.insert(index, module)
        self._number(modules)
        return self

    def pop(self, index: int | slice = -1) -> Any:
        """Remove the module at `index` and give it back."""
        module = self[index]
        del self[index]
        return module


class Sequential(_Listing):
    """Calls its modules one after the other. Takes them as arguments, or one ordered mapping of names."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            self.extend(args)

    def _sliced(self, index: slice) -> Self:
        return type(self)(OrderedDict(list(self._modules.items())[index]))

    def __add__(self, other: Sequential) -> Sequential:
        if not isinstance(other, Sequential):
            return NotImplemented
        return Sequential(*self, *other)

    def __iadd__(self, other: Sequential) -> Self:
        if not isinstance(other, Sequential):
            return NotImplemented
        return self.extend(other)

    def __mul__(self, times: int) -> Sequential:
        if not isinstance(times, int):
            return NotImplemented
        if times <= 0:
            raise ValueError(f"Sequential: expected a positive number of repetitions, got {times}")
        return Sequential(*list(self) * times)

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        return self.extend(list(self * times)[len(self) :])

    def insert(self, index: int, module: Module | None) -> Self:
        """Put `module` before position `index`, which must be one of 0 ... len."""
        if not isinstance(module, Module):
            raise TypeError(f"Sequential.insert: expected a Module, got {type(module).__name__}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Sequential.insert: index {index} is out of range for {len(self)} entries")
        return super().insert(index, module)

    def forward(self, input: Any) -> Any:
        """The last module's output."""
        for module in self:
            input = module(input)
        return input


class ModuleList(_Listing):
    """A list whose modules belong to the owner."""

    def __init__(self, modules: Iterable[Module | None] | None = None) -> None:
        super().__init__()
        self.extend(() if modules is None else modules)

    def __repr__(self) -> str:
        """As in PyTorch: equal neighbours once, `(0-2): 3 x Linear(...)`."""
        lines = []
        first = 0
        for text, same in groupby(repr(module) for module in self):
            count = len(list(same))
            label = f"({first}): " if count == 1 else f"({first}-{first + count - 1}): {count} x "
            lines.append(label + text.replace("\n", "\n  "))
            first += count
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)" if lines else f"{self._get_name()}()"

    def __add__(self, other: Iterable[Module | None]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, modules: Iterable[Module | None]) -> Self:
        return self.extend(modules)


class ModuleDict(Module):
    """A dict whose modules belong to the owner, in order of insertion. A module may be None."""

    def __init__(
        self, modules: Mapping[str, Module | None] | Iterable[tuple[str, Module | None]] | ModuleDict | None = None
    ) -> None:
        super().__init__()
        self.update({} if modules is None else modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module | None) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> ValuesView[Any]:
        """The modules."""
        return self._modules.values()

    def items(self) -> ItemsView[str, Any]:
        """Names and modules."""
        return self._modules.items()

    def update(self, modules: Mapping[str, Module | None] | Iterable[tuple[str, Module | None]] | ModuleDict) -> None:
        """Add or replace modules."""
        pairs = list(modules.items()) if isinstance(modules, Mapping | ModuleDict) else modules
        for place, pair in enumerate(pairs):
            if not isinstance(pair, Iterable) or len(list(pair)) != 2:
                raise ValueError(f"ModuleDict.update: expected (name, module) as element {place}, got {pair!r}")
            self[pair[0]] = pair[1]

    def pop(self, key: str) -> Any:
        """Remove the module called `key` and give it back."""
        module = self[key]
        del self[key]
        return module

    def clear(self) -> None:
        """Remove all."""
        self._modules.clear()


class ParameterList(Module):
    """A list whose parameters belong to the owner.

    Tensors become parameters; anything else is kept as it is and is no part of the state.
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(() if values is None else values)

    def __len__(self) -> int:
        return self._size

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.isdigit()]

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, str(index)) for index in range(self._size))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return ParameterList(list(self)[index])
        return getattr(self, str(_position(index, self._size, "ParameterList")))

    def __setitem__(self, index: int, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            value = Parameter(value)
        setattr(self, str(_position(index, self._size, "ParameterList")), value)

    def append(self, value: Any) -> Self:
        """Add `value` at the end."""
        self._size += 1
        self[-1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add all `values` at the end."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(f"ParameterList.extend: expected an iterable of values, got {type(values).__name__}")
        for value in list(values):  # which may be this one
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return "\n".join(f"  ({index}): {describe(value)}" for index, value in enumerate(self))
